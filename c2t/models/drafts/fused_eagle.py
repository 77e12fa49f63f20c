"""The EAGLE-1/2 head for decoding: `EagleHead`'s arithmetic in few operations, with joined matrices and a table of
rotations. Training and storage keep the module; tests compare the outputs of the two."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from c2t.models.drafts.eagle import EagleHead
from c2t.models.drafts.stock_heads import decoder_layers
from c2t.models.packing.projection import Projection

# Layer, queries (B, h, n, D), keys and values (B, k, n, D) of the new tokens -> (B, h, n, D).
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Layer(NamedTuple):
    """Weights of one decoder layer. read: its input norm, None if it has none. norm: the one before the MLP."""

    read: "Norm | None"
    qkv: Projection
    out: Projection
    norm: "Norm"
    gate_up: Projection
    down: Projection


class Norm:
    """Llama norm in one operation."""

    def __init__(self, module: nn.Module):
        weight: Tensor = module.weight
        self.weight, self.epsilon = weight.detach(), module.variance_epsilon

    def __call__(self, x: Float[Tensor, "*B H"]) -> Float[Tensor, "*B H"]:
        return torch.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


class FusedEagle:
    """Snapshot of an EAGLE-1/2 head's weights for decoding; `serves` says which heads have such a form."""

    @staticmethod
    def serves(head: nn.Module) -> bool:
        """Return True if a head has a fused form: an EAGLE-1/2 head of Llama's own layers, whose rotary frequencies do
        not depend on the length of its table."""
        return bool(decoder_layers(head)) and isinstance(head, EagleHead) and head.rotary.rope_type != "longrope"

    def __init__(self, head: EagleHead):
        self.config, self.embed_tokens, self.fc = head.config, head.embed_tokens, Projection(head.fc)
        self.layers = [fused(layer) for layer in head.layers]
        self.dim: int = head.config.head_dim or head.config.hidden_size // head.config.num_attention_heads
        self._rotary, self._like = head.rotary, next(head.parameters())
        self.cos = self.sin = self._like.new_zeros(0, self.dim)

    def reach(self, positions: int) -> None:
        """Extend the table of rotations to this number of positions, if it is shorter."""
        if positions <= len(self.cos):
            return
        table = torch.arange(max(positions, 2 * len(self.cos), 1024), device=self._like.device)
        cos, sin = self._rotary(self._like.new_zeros(1), table[None])
        half = self.dim // 2  # both halves turn by the same angles, the first one towards minus the second
        self.cos, self.sin = cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)

    def __call__(
        self,
        features: Float[Tensor, "B n H"],
        tokens: Int[Tensor, "B n"],
        positions: Int[Tensor, "B n"],
        attend: Attend,
    ) -> Float[Tensor, "B n H"]:
        """See `EagleHead.forward`; `attend` decides what a token sees, and positions must be below the last `reach`."""
        hidden = self.fc(torch.cat([self.embed_tokens(tokens).to(features.dtype), features], -1))
        rotation = self.cos[positions][:, None], self.sin[positions][:, None]
        for number, layer in enumerate(self.layers):
            hidden = self._layer(number, layer, hidden, rotation, attend)
        return hidden

    def _layer(
        self, number: int, layer: Layer, hidden: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        heads, kv_heads = self.config.num_attention_heads, self.config.num_key_value_heads
        joined = layer.qkv(hidden if layer.read is None else layer.read(hidden))
        joined = joined.unflatten(-1, (heads + 2 * kv_heads, self.dim)).transpose(1, 2)
        turned, value = joined[:, : heads + kv_heads], joined[:, heads + kv_heads :]
        cos, sin = rotation
        turned = turned * cos + turned.roll(self.dim // 2, -1) * sin
        seen = attend(number, turned[:, :heads], turned[:, heads:], value)
        hidden = hidden + layer.out(seen.transpose(1, 2).flatten(2))
        gate, up = layer.gate_up(layer.norm(hidden)).chunk(2, -1)
        return hidden + layer.down(nn.functional.silu(gate) * up)


def fused(layer: nn.Module) -> Layer:
    """Return the weights of a Llama layer, with the matrices that read the same input joined."""
    attention, mlp = layer.self_attn, layer.mlp
    return Layer(
        None if isinstance(layer.input_layernorm, nn.Identity) else Norm(layer.input_layernorm),
        joined((attention.q_proj, attention.k_proj, attention.v_proj)),
        Projection(attention.o_proj),
        Norm(layer.post_attention_layernorm),
        joined((mlp.gate_proj, mlp.up_proj)),
        Projection(mlp.down_proj),
    )


def joined(linears: Iterable[nn.Linear]) -> Projection:
    """Return one projection for several layers with the same input; it gives their outputs side by side."""
    linears = list(linears)
    weight = torch.cat([linear.weight for linear in linears]).detach()
    whole = nn.Linear(weight.shape[1], weight.shape[0], bias=linears[0].bias is not None, device="meta")
    whole.weight = nn.Parameter(weight, requires_grad=False)
    if whole.bias is not None:
        whole.bias = nn.Parameter(torch.cat([linear.bias for linear in linears]).detach(), requires_grad=False)
    return Projection(whole)
