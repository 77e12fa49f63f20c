"""EAGLE heads on a CPU as `c2t.kernels.decoder_layers` runs them: snapshots of their modules for decoding."""

from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.caches.padded import KVCache
from c2t.caches.ragged import Ragged
from c2t.kernels.decoder_layers import Kind, PackedMatrix, PackedReader
from c2t.kernels.draft_phase import HeadLayers, ResidualInput
from c2t.models.drafts.eagle import EagleHead, Head
from c2t.models.drafts.eagle3 import Eagle3Head
from c2t.models.drafts.stock_heads import decoder_layers
from c2t.models.target.families import FAMILIES
from c2t.models.target.packed_model import Decoder
from c2t.models.target.stock import EMBEDDING, is_stock_module

LLAMA = FAMILIES["llama"]  # whose layers heads are made of


class PackedHead(ABC):
    """A head's layers in the kernels' form; `packed` says which heads have one.

    parts: the same as a draft phase in C reads it.
    """

    decoder: Decoder
    parts: HeadLayers

    @abstractmethod
    def _read(
        self, tokens: Int[Tensor, " R"], states: Float[Tensor, "R H"]
    ) -> tuple[Float[Tensor, "R H"], Float[Tensor, "R O"] | None]:
        """Return what the layers add to; queries, keys and values of the first one, where they are not made from it."""

    def __call__(
        self,
        features: Float[Tensor, "B n H"],
        tokens: Int[Tensor, "B n"],
        positions: Int[Tensor, "B n"],
        mask: Bool[Tensor, "B n t"],
        cache: KVCache,
        rows: Ragged,
        wanted: Int[Tensor, " k"] | None = None,
    ) -> Float[Tensor, "_ H"]:
        """See `EagleHead.forward`. Return the outputs of the slots in `rows`, or those among them whose rising numbers
        are `wanted`: of the others the last layer computes keys and values only."""
        x, read = self._read(rows.take(tokens), rows.take(features))
        hidden = self.decoder.run_padded(x, positions, mask, cache, rows, read, wanted)
        return self.parts.norm(hidden) if self.parts.normed else hidden

    def read(self, features: Float[Tensor, "*B D"]) -> Float[Tensor, "*B H"]:
        """See `Head.read`."""
        return features

    def readable(self, hidden: Float[Tensor, "*R H"]) -> Float[Tensor, "*R H"]:
        """Return what the LM head reads of the head's outputs."""
        if self.parts.norm is None or self.parts.normed:
            return hidden
        return self.parts.norm(hidden)


class PackedEagle(PackedHead):
    """An EAGLE-1/2 head. rounded: in 8 bits, where it can be."""

    def __init__(self, head: EagleHead, rounded: bool):
        self.decoder = Decoder(LLAMA, head.layers, head.rotary, rounded)
        reader = PackedReader.of(head.fc, rounded)
        self.parts = HeadLayers(reader, ResidualInput.JOINED, self.decoder.layers, head.embed_tokens.weight)

    def _read(self, tokens: Tensor, states: Tensor) -> tuple[Tensor, None]:
        return self.parts.reader(self.parts.table, tokens, states), None


class PackedEagle3(PackedHead):
    """An EAGLE-3 head. rounded: in 8 bits, where it can be."""

    def __init__(self, head: Eagle3Head, rounded: bool):
        first, variant = head.midlayer, head.variant
        windows = variant.windows or (0,) * head.num_layers
        family = replace(LLAMA, window=lambda _config, number: windows[number])
        self.decoder = Decoder(family, (first, *head.layers.values()), head.rotary, rounded)
        layers, norms = self.decoder.layers, (LLAMA.norm(first.input_layernorm), LLAMA.norm(first.hidden_norm))
        base = ResidualInput.NORMED if variant.norm_before_residual else ResidualInput.STATE
        reader, norm = PackedReader(layers.reads, norms), LLAMA.norm(head.norm)
        self._head, self._fc = head, None
        if variant.taps:
            self._fc = PackedMatrix(head.fc.weight, head.fc.bias, Kind.of(head.fc.weight, rounded))
        self.parts = HeadLayers(reader, base, layers, head.embed_tokens.weight, norm, variant.norm_output)

    def read(self, features: Float[Tensor, "*B D"]) -> Float[Tensor, "*B H"]:
        """See `Head.read`."""
        features = self._head.normalised(features.float())
        return features if self._fc is None else self._fc(features)

    def _read(self, tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        states = states.float().contiguous()
        read = self.parts.reader(self.parts.table, tokens, states)
        return self.parts.reader.norms[1](states) if self.parts.base == ResidualInput.NORMED else states.clone(), read


def packed(head: Head, rounded: bool) -> PackedHead | None:
    """Return the packed form of a head of decoder layers on a CPU, in bf16 or float32, whose dimensions the kernels
    can run; None for all others."""
    layers = decoder_layers(head)
    if not Decoder.serves(LLAMA, layers, head.rotary) or not is_stock_module(head.embed_tokens, EMBEDDING):
        return None
    table = head.embed_tokens.weight
    on_cpu = table.device.type == "cpu" and table.dtype in (torch.float32, torch.bfloat16)
    fits = table.is_contiguous() and table.shape[1] == head.config.hidden_size
    kind = PackedEagle3 if isinstance(head, Eagle3Head) else PackedEagle
    return kind(head, rounded) if on_cpu and fits else None
