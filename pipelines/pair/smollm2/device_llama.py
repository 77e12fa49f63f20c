"""The target's forward for thousands of rows on a device: products in one dtype, sums over the layers in float32.

By hand, not by transformers' layers: a step of writing has to fit into a CUDA graph, and what a layer adds is summed in
float32, as the packed form of `c2t.models.packed_llama` does on a CPU, whose texts and states these are meant to be.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, rotate_half

LONGEST = 2048  # positions that a text may have

# What a layer (its number first) sees, from its queries (*B, heads, D), keys and values (*B, kv_heads, D).
Attend = Callable[[int, Tensor, Tensor, Tensor], Float[Tensor, "*B heads D"]]


class Layer(NamedTuple):
    """Weights of a layer; those that read the same are joined."""

    read_norm: Float[Tensor, " H"]
    qkv: Float[Tensor, "q H"]
    out: Float[Tensor, "H h"]
    norm: Float[Tensor, " H"]
    gate_up: Float[Tensor, "m H"]
    down: Float[Tensor, "H i"]


class DeviceLlama:
    """A Llama's weights on a device. embedding, lm_head: in float32, since bf16 logits have ties."""

    def __init__(self, model: LlamaForCausalLM, device: torch.device, dtype: torch.dtype):
        self.config, self.device, self.dtype = model.config, device, dtype
        self.embedding, self.lm_head, self.norm = (
            module.weight.detach().to(device, torch.float32)
            for module in (model.get_input_embeddings(), model.get_output_embeddings(), model.model.norm)
        )
        self.layers = [self._layer(layer) for layer in model.model.layers]
        turned = model.model.rotary_emb(model.model.norm.weight.float(), torch.arange(LONGEST)[None])
        self.cosine, self.sine = (part[0].to(device) for part in turned)
        self.heads, self.kv_heads = self.config.num_attention_heads, self.config.num_key_value_heads
        self.head_dim: int = self.cosine.shape[1]

    def _layer(self, layer: LlamaDecoderLayer) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        joined = (attention.q_proj, attention.k_proj, attention.v_proj), (attention.o_proj,)
        joined += (mlp.gate_proj, mlp.up_proj), (mlp.down_proj,)
        qkv, out, gate_up, down = (
            torch.cat([module.weight.detach() for module in modules]).to(self.device, self.dtype) for modules in joined
        )
        read_norm, norm = (
            module.weight.detach().to(self.device, torch.float32)
            for module in (layer.input_layernorm, layer.post_attention_layernorm)
        )
        return Layer(read_norm, qkv, out, norm, gate_up, down)

    def embed(self) -> nn.Embedding:
        """Return the embedding as heads have it."""
        return nn.Embedding.from_pretrained(self.embedding, freeze=True)

    def normed(self, hidden: Float[Tensor, "*B H"], weight: Float[Tensor, " H"]) -> Float[Tensor, "*B H"]:
        return F.rms_norm(hidden, weight.shape, weight, self.config.rms_norm_eps)

    def states(
        self, tokens: Int[Tensor, "*B"], positions: Int[Tensor, "*B"], attend: Attend
    ) -> Iterator[Float[Tensor, "*B H"]]:
        """Yield the input of every layer, and last the input of the final norm."""
        hidden = self.embedding[tokens]
        cosine, sine = self.cosine[positions][..., None, :], self.sine[positions][..., None, :]
        sizes = (self.heads + self.kv_heads, self.kv_heads)
        for number, layer in enumerate(self.layers):
            yield hidden
            read = F.linear(self.normed(hidden, layer.read_norm).to(self.dtype), layer.qkv)
            query_key, value = read.unflatten(-1, (-1, self.head_dim)).split(sizes, -2)
            turned = (query_key * cosine + rotate_half(query_key) * sine).to(self.dtype)
            query, key = turned.split((self.heads, self.kv_heads), -2)
            hidden = hidden + F.linear(attend(number, query, key, value).flatten(-2), layer.out)
            gate, up = F.linear(self.normed(hidden, layer.norm).to(self.dtype), layer.gate_up).chunk(2, -1)
            hidden = hidden + F.linear(F.silu(gate) * up, layer.down)
        yield hidden

    def logits(self, hidden: Float[Tensor, "*B H"]) -> Float[Tensor, "*B V"]:
        """Return the next tokens' logits from what `states` yields last."""
        return self.normed(hidden, self.norm) @ self.lm_head.T

    @torch.no_grad()
    def read(
        self, ids: Int[Tensor, "B n"], taps: tuple[int, ...]
    ) -> tuple[Float[Tensor, "B n H"], Float[Tensor, "B n D"]]:
        """Return the post-norm states of texts that are padded on the right, and the inputs of the tapped layers side
        by side (none: 0 wide)."""
        positions = torch.arange(ids.shape[1], device=self.device).expand_as(ids)
        tapped = []
        for number, hidden in enumerate(self.states(ids, positions, causal)):
            if number in taps:
                tapped.append(hidden)
        return self.normed(hidden, self.norm), torch.cat([hidden[..., :0], *tapped], -1)


def causal(
    _number: int,
    query: Float[Tensor, "B n heads D"],
    key: Float[Tensor, "B n kv_heads D"],
    value: Float[Tensor, "B n kv_heads D"],
) -> Float[Tensor, "B n heads D"]:
    """Let each token see those before it, and itself: padding on the right is seen by none of the text."""
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True).transpose(1, 2)
