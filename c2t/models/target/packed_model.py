"""Language models on a CPU as `c2t.kernels.decoder_layers` runs them: decoder layers, and a target made of them.

transformers' modules keep the weights; these are snapshots of them for decoding. `c2t.models.target.families` says
where the modules keep what, and `c2t.models.target.stock` what they have to be."""

from collections.abc import Iterable, Sequence
from itertools import chain

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from c2t.caches.padded import KVCache
from c2t.caches.pool import KVPool
from c2t.caches.ragged import Ragged, cached_if_small, whole
from c2t.kernels.decoder_layers import Kind, PackedLayers, Sight, Stored, packable, rounds, works
from c2t.kernels.layer_buffers import LayerBuffers
from c2t.models.target.families import FAMILIES, Family
from c2t.models.target.layers import layers_of
from c2t.models.target.rotations import Rotations
from c2t.models.target.stock import is_stock


class Decoder:
    """Decoder layers one after the other, and the rotations of their positions; `serves` says which can be packed.
    rounded: in 8 bits, where they can be; int4: in 4 then; stored: see `PackedLayers`."""

    @staticmethod
    def serves(family: Family, layers: Sequence[nn.Module], rotary: nn.Module) -> bool:
        """Return True if the kernels can run the layers, whose modules were found to be those that they compute: of one
        shape."""
        parts, halves = [family.parts(layer) for layer in layers], [len(table) for table, _ in family.tables(rotary)]
        if not parts or not all(packable(layer, halves) for layer in parts):
            return False
        if not family.partial and any(2 * half != parts[0].dim for half in halves):
            return False
        return len({(layer.down.weight.shape, layer.heads, layer.kv_heads, layer.dim) for layer in parts}) == 1

    def __init__(
        self,
        family: Family,
        layers: Iterable[nn.Module],
        rotary: nn.Module,
        rounded: bool = False,
        int4: bool = False,
        stored: Stored | None = None,
    ):
        self.layers = PackedLayers(map(family.parts, layers), rounded, int4, stored)
        self.rotations = [Rotations(*table) for table in family.tables(rotary)]

    def __call__(
        self,
        x: Float[Tensor, "R H"],
        positions: Int[Tensor, " R"],
        slots: Int[Tensor, " R"],
        sight: Sight,
        buffers: LayerBuffers,
        tapped: dict[int, Tensor | None],
        end: int,
        begin: int = 0,
        read: Float[Tensor, "R O"] | None = None,
        wanted: Int[Tensor, " k"] | None = None,
    ) -> Float[Tensor, "_ H"]:
        """Append R tokens to the cache, replace their states by the last layer's outputs, and return these; see
        `PackedLayers` for what the arguments mean. end: more than any of the positions."""
        turns = [table.below(end) for table in self.rotations]
        self.layers(x, turns, positions, buffers, slots, sight, tapped, begin, read, wanted)
        return x if wanted is None else x[: len(wanted)]

    def run_padded(
        self,
        x: Float[Tensor, "R H"],
        positions: Int[Tensor, "B n"],
        mask: Bool[Tensor, "B n t"],
        cache: KVCache,
        rows: Ragged,
        read: Float[Tensor, "R O"] | None = None,
        wanted: Int[Tensor, " k"] | None = None,
    ) -> Float[Tensor, "_ H"]:
        """Do `__call__` for the R slots in `rows` of a batch over a padded cache, whose slots `mask` shows them."""
        windowed = None
        if self.layers.window:
            there = cache.positions(positions)
            windowed = rows.take(mask & (positions[:, :, None] - there[:, None] < self.layers.window))
        batch, new = positions.shape
        for number in range(len(self.layers)):
            _, begin = cache.append(number, x, batch, self.layers.kv_heads, new, self.layers.dim)
        first, none, slots = slots_of_all(batch, new, cache.step) if rows.full else slots_of(rows, cache.step)
        sight = Sight(first, none, rows.take(mask), 0, windowed)
        end = cache.get_seq_length()  # of the longest row
        return self(x, rows.take(positions), slots, sight, cache.buffers, {}, end, begin, read, wanted)


class PackedModel:
    """A target of one of the families; `serves` says which models have this form. rounded: in 8 bits;
    `why_not_rounded` says which models can be."""

    @staticmethod
    def serves(model: PreTrainedModel) -> bool:
        """Return True for a model of one of the families, of transformers' own modules on a CPU, in bf16 or float32,
        whose dimensions the kernels can run."""
        if not is_stock(model):
            return False
        return Decoder.serves(FAMILIES[model.config.model_type], layers_of(model), model.base_model.rotary_emb)

    @staticmethod
    def made_of(model: PreTrainedModel) -> tuple[Iterable[Tensor], tuple[float, ...]]:
        """Return all that a packed form holds copies of: tensors, and the numbers of the config that are no tensors."""
        base, config = model.base_model, model.base_model.config
        tables = FAMILIES[model.config.model_type].tables(base.rotary_emb)
        numbers = config.rms_norm_eps, getattr(config, "sliding_window", None) or 0
        return chain(model.parameters(), (frequencies for frequencies, _ in tables)), tuple(map(float, numbers))

    @classmethod
    def why_not_rounded(cls, model: PreTrainedModel) -> str | None:
        """Return what keeps a model from being computed in 8 bits here; None if nothing does."""
        if Kind.INT8 not in works():
            return "c2t's kernels in C and a processor with AVX-512 VNNI (avx512_vnni) do that, and one is missing here"
        if not cls.serves(model):
            return (
                f"c2t's kernels run {', '.join(FAMILIES)} models of certain shapes, of transformers' own modules, and "
                f"not this {model.config.model_type}"
            )
        linears = [part for part in model.base_model.layers.modules() if isinstance(part, nn.Linear)]
        head = model.get_output_embeddings()
        if type(head) is not nn.Linear:
            return f"its LM head is a {type(head).__name__}, and would have to be a plain linear layer"
        sizes = {linear.in_features for linear in (*linears, head)}
        odd = [str(size) for size in sorted(sizes) if not rounds(size)]
        return f"some of its matrices have {', '.join(odd)} inputs, no multiple of {Kind.INT8.inputs}" if odd else None

    def __init__(self, model: PreTrainedModel, rounded: bool = False, int4: bool = False, stored: Stored | None = None):
        base, family = model.base_model, FAMILIES[model.config.model_type]
        self._base = base
        self.decoder = Decoder(family, layers_of(model), base.rotary_emb, rounded, int4, stored)
        self.norm = family.norm(base.norm)

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
        first, prefix = (column.index_select(0, rows.row) for column in (cache.first, cache.lengths))
        embedded, layers = self._base.embed_tokens(tokens).float(), self.decoder.layers
        windowed = cut(mask, positions, rows, layers.window) if layers.window else None
        sight = Sight(first, prefix, mask, cache.longest, windowed)
        buffers = cache.layers(embedded.new_empty(0, dtype=layers.cached), layers.kv_heads, layers.dim)
        end = cache.longest + max(rows.spans)
        return self.norm(self.decoder(embedded, positions, cache.token_slots, sight, buffers, tapped, end))

    def run_padded(
        self,
        tokens: Int[Tensor, "B n"],
        positions: Int[Tensor, "B n"],
        mask: Bool[Tensor, "B n t"],
        cache: KVCache,
        rows: Ragged,
    ) -> Float[Tensor, "B n H"]:
        """Append the slots in `rows` to a padded cache, and return their post-norm states; `mask` shows what they see.
        Those of other slots are meaningless."""
        embedded = self._base.embed_tokens(rows.take(tokens)).float()
        return rows.back(self.norm(self.decoder.run_padded(embedded, positions, mask, cache, rows)))


def cut(mask: Bool[Tensor, "R n"], positions: Int[Tensor, " R"], rows: Ragged, window: int) -> Bool[Tensor, "R n"]:
    """Return a mask of each row's n new slots, which lie within n positions, cut at a window of positions."""
    if mask.shape[1] <= window:
        return mask
    there = positions.new_zeros(len(rows.sizes), mask.shape[1])
    there[rows.row, rows.slot] = positions
    return mask & (positions[:, None] - there[rows.row] < window)


def slots_of(rows: Ragged, step: int) -> tuple[Int[Tensor, " S"], Int[Tensor, " S"], Int[Tensor, " S"]]:
    """Return for each token its row's first slot, a zero, and its own slot, as if the row's tokens began at the first
    one. step: slots of a row in all heads."""
    first = rows.row * step
    return first, torch.zeros_like(first), first + rows.slot


@cached_if_small(64)
def slots_of_all(batch: int, new: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return `slots_of` a batch whose slots are all real."""
    with torch.inference_mode(False):  # cached for callers in any mode
        return slots_of(whole(batch, new, torch.device("cpu")), step)
