"""A Llama in float32 whose rows depend on no other row: every module and attention run row by row. Faults are planted
in it one at a time."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tests.toys import SIZES, language_model

IN_ORDER, REVERSED = "rows-in-order", "rows-reversed"


class RowByRow(nn.Module):
    """A module's rows, each computed alone. fault: computes several rows in its name, as a fast kernel may."""

    def __init__(self, module: nn.Module, fault: Callable[[nn.Module, Tensor], Tensor] | None = None, least: int = 2):
        super().__init__()
        self.hidden, self.fault, self.least = [module], fault, least  # in a list, so that it is no leaf of its own

    @property
    def weight(self) -> Tensor:
        return self.hidden[0].weight

    def forward(self, x: Tensor) -> Tensor:
        if self.fault and self.least <= x.shape[1] <= 20:  # the prompt is longer
            return self.fault(self.hidden[0], x)
        return torch.cat([self.hidden[0](x[:, i : i + 1]) for i in range(x.shape[1])], 1)


def _attention(reverse: bool) -> Callable[..., tuple[Tensor, None]]:
    """Return attention of one query after the other, over the visible keys alone; reverse: in reverse order where there
    are several queries of a tree."""

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_: Any
    ) -> tuple[Tensor, None]:
        queries, keys, groups = query.shape[2], key.shape[2], query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        rows = []
        for number in range(queries):
            seen = (
                torch.arange(keys) <= keys - queries + number
                if attention_mask is None
                else attention_mask[0, 0, number]
            )
            k, v = key[:, :, seen], value[:, :, seen]
            if reverse and 1 < queries <= 20:
                k, v = k.flip(2), v.flip(2)
            weight = (query[:, :, number, None] * k).sum(-1).mul(module.scaling).softmax(-1)
            rows.append((weight[..., None] * v).sum(2))
        return torch.stack(rows, 1), None

    return attend


for name, reverse in ((IN_ORDER, False), (REVERSED, True)):
    ALL_ATTENTION_FUNCTIONS.register(name, _attention(reverse))
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, sdpa_mask)


def exact_model(**sizes: Any) -> PreTrainedModel:
    model = language_model(LlamaConfig(**SIZES, **sizes)).float()
    model.config._attn_implementation = IN_ORDER
    for name, module in list(model.named_modules()):
        if not list(module.children()) and "rotary" not in name:
            replace(model, name, RowByRow(module))
    return model


def replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


def plant(model: PreTrainedModel, name: str, fault: Callable[[nn.Module, Tensor], Tensor], least: int = 2) -> None:
    """Let a module compute `least` or more rows by `fault`."""
    replace(model, name, RowByRow(model.get_submodule(name).hidden[0], fault, least))


def split_k(linear: Any, x: Tensor) -> Tensor:
    """A product whose sum is cut in two."""
    half = x.shape[-1] // 2
    weight = linear.weight
    return nn.functional.linear(x[..., :half], weight[:, :half]) + nn.functional.linear(x[..., half:], weight[:, half:])


def in_two_halves(norm: Any, x: Tensor) -> Tensor:
    """An RMS norm that adds its squares in two halves, each with a rounding to bf16."""
    half = x.shape[-1] // 2
    squares = x.float().pow(2)
    mean = (squares[..., :half].sum(-1, True).bfloat16() + squares[..., half:].sum(-1, True).bfloat16()) / x.shape[-1]
    return norm.weight * (x * torch.rsqrt(mean.float() + norm.variance_epsilon)).to(x.dtype)


def next_number(module: nn.Module, x: Tensor) -> Tensor:
    """The right numbers, each moved to the next one."""
    out = torch.cat([module(x[:, i : i + 1]) for i in range(x.shape[1])], 1)
    return out.nextafter(torch.full_like(out, torch.inf))
