"""Llama on a CPU as `c2t.kernels.llama_layer` runs it: the target, and the layers of a draft head.

transformers' modules keep the weights; these are snapshots of them for decoding.
"""

from collections.abc import Callable, Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from c2t.kernels.llama_layer import PackedLayer, PackedMatrix, PackedNorm, Sight, packable
from c2t.kv_cache import KVCache
from c2t.kv_pool import KVPool
from c2t.models.eagle import EagleHead
from c2t.models.rotations import Rotations
from c2t.ragged import Ragged


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
        states: Float[Tensor, "R H"],
        positions: Int[Tensor, " R"],
        places: Int[Tensor, " R"],
        sight: Sight,
        layer: Callable[[int, Tensor, int, int], Tensor],
        tapped: dict[int, Tensor | None],
    ) -> Float[Tensor, "R H"]:
        """Append R tokens to the cache and return the last layer's outputs in float32.

        places: the tokens' slots. layer(number, like, heads, dim): the buffer of a layer of the cache. The inputs of
        the layers that are keys of `tapped` become its values, (1, R, H); the number of layers stands for the outputs.
        """
        x = states.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        turns = self.rotations.at(positions)
        room = self.layers[0].room(x, sight)
        for number, each in enumerate(self.layers):
            if number in tapped:
                tapped[number] = x[None].clone()
            each(x, turns, layer(number, x, each.kv_heads, each.dim), places, sight, room)
        if len(self.layers) in tapped:
            tapped[len(self.layers)] = x[None].clone()
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
        tokens: Int[Tensor, " R"],
        positions: Int[Tensor, " R"],
        mask: Bool[Tensor, "R n"],
        rows: Ragged,
        cache: KVPool,
        tapped: dict[int, Tensor | None],
    ) -> Float[Tensor, "R H"]:
        """Append R tokens to the cache and return their post-norm states; see `PackedLayers`. Each sees its row's
        committed slots, and of the row's n new ones those in the mask."""
        cache.append(rows)
        sight = Sight.of(cache.first[rows.row], cache.lengths[rows.row], mask, cache.longest)
        states = self.layers(self.embed_tokens(tokens), positions, cache.places, sight, cache.layer, tapped)
        return self.norm(states)


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
        rows: Ragged,
    ) -> Float[Tensor, "B n H"]:
        """See `EagleHead.forward`; only the slots in `rows` are computed."""
        tokens, features, positions, mask = map(rows.take, (tokens, features, positions, mask))
        joined = self.fc(torch.cat([self.embed_tokens(tokens).float(), features.float()], -1))
        batch, new = rows.place.shape
        for number, layer in enumerate(self.layers.layers):
            _, begin = cache.append(number, joined, batch, layer.kv_heads, new, layer.dim)
        first = cache.firsts(batch)[rows.row]
        sight = Sight.of(first, torch.zeros_like(first), mask, 0)
        places = first + begin + rows.slot
        return rows.back(self.layers(joined, positions, places, sight, lambda number, *_: cache.buffers[number], {}))
