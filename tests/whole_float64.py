"""Make the tests' float64 models float64 throughout. Transformers rounds to float32 in norms and rotations whatever the
model's type is; a last bit there, which depends on the processor, is enlarged by the layers after it, and may decide
between two tokens. Models of other types are left as they are."""

from types import FunctionType

import torch
from torch import Tensor
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

MODULES = (modeling_llama, modeling_mistral, modeling_qwen2, modeling_qwen3)


def widen(kind: type, own) -> None:
    stock = kind.forward

    def forward(self, x: Tensor, *rest, **named):
        return own(self, x, *rest, **named) if x.dtype == torch.float64 else stock(self, x, *rest, **named)

    # For c2t.models.target.stock it stays the class' own, which it is where models are packed: those are never in
    # float64.
    code = forward.__code__.replace(co_qualname=f"{kind.__qualname__}.forward")
    kind.forward = FunctionType(code, {**globals(), "__name__": kind.__module__}, "forward", None, forward.__closure__)


def norm(self, x: Tensor) -> Tensor:
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def rotation(rotary):
    def turn(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        if self.rope_type == "dynamic":  # frequencies that follow the length are the module's own business
            return rotary(self, x, position_ids)
        angle = position_ids[..., None].double() * self.inv_freq.to(x.device, torch.float64)
        angle = torch.cat((angle, angle), -1)
        return angle.cos() * self.attention_scaling, angle.sin() * self.attention_scaling

    return turn


def install() -> None:
    for module in MODULES:
        for name, kind in vars(module).copy().items():
            if name.endswith("RMSNorm") and kind.__module__ == module.__name__:
                widen(kind, norm)
            if name.endswith("RotaryEmbedding") and kind.__module__ == module.__name__:
                widen(kind, rotation(kind.forward))
