"""Llama on a CPU as `c2t.kernels.llama_layer` runs it: the target, and the layers of a draft head.

transformers' modules keep the weights; these are snapshots of them for decoding.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from c2t.kernels.llama_layer import PackedLayer, PackedMatrix, PackedNorm, Sight, packable
from c2t.kv_cache import KVCache
from c2t.models.eagle import EagleHead
from c2t.models.rotations import Rotations


class PackedLayers:
    """Decoder layers one after the other; `serve` says which can be packed."""

    @staticmethod
    def serve(layers: Iterable[nn.Module], rotary: nn.Module) -> bool:
        """Return True if the kernels can run the layers, and rotary frequencies do not depend on the text's length."""
        return Rotations.serves(rotary) and all(packable(layer, layer.self_attn.head_dim) for layer in layers)

    def __init__(self, layers: Iterable[nn.Module], rotary: nn.Module):
        layers = list(layers)
        config, dim = layers[0].self_attn.config, layers[0].self_attn.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.layers = [PackedLayer(layer, heads, kv_heads, dim) for layer in layers]
        self.rotations = Rotations(rotary, dim)

    def __call__(
        self,
        states: Float[Tensor, "B n H"],
        positions: Int[Tensor, "B n"],
        mask: Bool[Tensor, "B n t"],
        cache: KVCache,
        tapped: dict[int, Tensor | None],
    ) -> Float[Tensor, "R H"]:
        """Append n tokens to the cache and return the last layer's outputs in float32, R = B x n. The inputs of the
        layers that are keys of `tapped` become its values, (B, n, H); the number of layers stands for the outputs."""
        rows, new = positions.shape
        x = states.to(torch.float32, memory_format=torch.contiguous_format, copy=True).flatten(0, 1)
        turns, sight = self.rotations.at(positions), Sight.of(mask)
        room = self.layers[0].room(x, sight)
        for number, layer in enumerate(self.layers):
            if number in tapped:
                tapped[number] = x.clone().unflatten(0, (rows, new))
            buffer, begin = cache.append(number, x, rows, layer.kv_heads, new, layer.dim)
            layer(x, turns, buffer, begin, sight, room)
        if len(self.layers) in tapped:
            tapped[len(self.layers)] = x.clone().unflatten(0, (rows, new))
        return x


class PackedLlama:
    """A target of the Llama family; `serves` says which models have this form."""

    @staticmethod
    def serves(model: PreTrainedModel) -> bool:
        """Return True for a Llama on a CPU, in bf16 or float32, whose dimensions the kernels can run."""
        if model.config.model_type != "llama" or model.config.hidden_act != "silu":
            return False
        return PackedLayers.serve(model.base_model.layers, model.base_model.rotary_emb)

    def __init__(self, model: PreTrainedModel):
        base = model.base_model
        self.embed_tokens: nn.Embedding = base.embed_tokens
        self.layers, self.norm = PackedLayers(base.layers, base.rotary_emb), PackedNorm(base.norm)

    def __call__(
        self,
        tokens: Int[Tensor, "B n"],
        positions: Int[Tensor, "B n"],
        mask: Bool[Tensor, "B n t"],
        cache: KVCache,
        tapped: dict[int, Tensor | None],
    ) -> Float[Tensor, "B n H"]:
        """Append n tokens to the cache and return their post-norm states; see `PackedLayers`."""
        states = self.layers(self.embed_tokens(tokens), positions, mask, cache, tapped)
        return self.norm(states).unflatten(0, tokens.shape)


class PackedEagle:
    """An EAGLE-1/2 head; `serves` says which heads have this form."""

    @staticmethod
    def serves(head: nn.Module) -> bool:
        """Return True for an EAGLE-1/2 head on a CPU, in bf16 or float32, whose dimensions the kernels can run."""
        return isinstance(head, EagleHead) and PackedLayers.serve(head.layers, head.rotary)

    def __init__(self, head: EagleHead):
        self.embed_tokens, self.fc = head.embed_tokens, PackedMatrix(head.fc.weight, head.fc.bias)
        self.layers = PackedLayers(head.layers, head.rotary)

    def __call__(
        self,
        features: Float[Tensor, "B n H"],
        tokens: Int[Tensor, "B n"],
        positions: Int[Tensor, "B n"],
        mask: Bool[Tensor, "B n t"],
        cache: KVCache,
    ) -> Float[Tensor, "B n H"]:
        """See `EagleHead.forward`."""
        joined = self.fc(torch.cat([self.embed_tokens(tokens).float(), features.float()], -1))
        return self.layers(joined, positions, mask, cache, {}).unflatten(0, tokens.shape)
