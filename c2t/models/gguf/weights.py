"""The weights of a GGUF file under transformers' names, and what llama.cpp has done to them undone."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig

from c2t.errors import InputError, refusing
from c2t.models.gguf.blocks import dequantized
from c2t.models.gguf.reader import AGAIN, Gguf, TensorEntry

AT_ONCE = 2**19  # weights that are dequantised together, so that they stay in the processor's cache
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
# Parts of a layer -> transformers' names. A family has those that its model has.
PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
PARTS_OF = {
    "phi3": PARTS | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "gemma3": PARTS
    | {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
}
IN_CONFIG = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # see `config`


class Weight(NamedTuple):
    """A weight of the model. name, shape: transformers'. order: the tensor's rows in the order of the model's. less:
    what the file's numbers are more than the model's."""

    name: str
    shape: tuple[int, ...]
    tensor: TensorEntry
    order: Int[Tensor, " R"] | None = None
    less: float = 0.0

    def rows(self, file: Gguf) -> Iterator[UInt8[Tensor, "R b"]]:
        """Yield the file's bytes of some rows after the other."""
        tensor = self.tensor
        if self.order is None:
            yield from file.rows(tensor, max(1, AT_ONCE // tensor.shape[-1]))
        elif len(tensor.shape) == 1:
            [row] = file.rows(tensor, 1)
            yield row.view(len(self.order), -1)[self.order].view(1, -1)
        else:
            [rows] = file.rows(tensor, tensor.rows)
            yield from rows[self.order].split(max(1, AT_ONCE // tensor.shape[-1]))

    def converted(self, file: Gguf, dtype: torch.dtype) -> Iterator[Shaped[Tensor, "R I"]]:
        """Yield the weights in a dtype, some rows after the other."""
        for rows in self.rows(file):
            weights: Float[Tensor, "R I"] = dequantized(rows, self.tensor.type)
            yield (weights.float() - self.less if self.less else weights).to(dtype)


def weights_of(file: Gguf, config: PreTrainedConfig) -> list[Weight]:
    """Return where each weight of the model is in the file, by names. InputError if one is missing, has another shape,
    or if the file has others."""
    with refusing(f"{file.path}: its entries make no model"), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items() if name not in tied}
    weights = [_placed(file, config, tensor) for tensor in file.tensors.values() if tensor.name not in IN_CONFIG]
    if unknown := sorted(weight.tensor.name for weight in weights if weight.name not in shapes):
        raise InputError(f"{file.path}: {unknown[0]}: no {file.architecture} that c2t reads has that tensor")
    if missing := sorted(set(shapes) - {weight.name for weight in weights}):
        raise InputError(f"{file.path}: {len(missing)} weights are missing ({missing[0]}); {AGAIN}")
    for weight in weights:
        if weight.tensor.shape != shapes[weight.name]:
            there, wanted = (" x ".join(map(str, shape)) for shape in (weight.tensor.shape, shapes[weight.name]))
            raise InputError(f"{file.path}: {weight.tensor.name} is {there}, and its entries say {wanted}; {AGAIN}")
    return sorted(weights, key=lambda weight: weight.name)


def _placed(file: Gguf, config: PreTrainedConfig, tensor: TensorEntry) -> Weight:
    parts = re.fullmatch(r"(?:blk\.(\d{1,4})\.)?(\w+)\.(weight|bias)", tensor.name, re.ASCII)
    layer, part, ending = parts.groups() if parts else (None, "", "")
    names = WHOLE if layer is None else PARTS_OF.get(file.architecture, PARTS)
    name = f"{names.get(part, '?')}.{ending}"
    name = name if layer is None else f"model.layers.{int(layer)}.{name}"
    order, less = None, 0.0
    if file.architecture == "llama" and part in ("attn_q", "attn_k"):
        heads = config.num_attention_heads if part == "attn_q" else config.num_key_value_heads
        rows = tensor.shape[0]
        if rows % (2 * heads):
            raise InputError(f"{file.path}: {tensor.name} has {rows:,} rows for {heads} heads; {AGAIN}")
        # llama.cpp turns neighbouring numbers of a head, transformers those half a head apart
        order = torch.arange(rows).view(heads, -1, 2).transpose(1, 2).flatten()
    if file.architecture == "gemma3" and part.endswith("norm"):
        less = 1.0
    return Weight(name, tensor.shape, tensor, order, less)
