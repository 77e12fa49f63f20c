"""Packed batches: the real slots of rows of different sizes, without padding.

A forward over trees of 1, 5 and 60 tokens computes 66 tokens instead of 180.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, wraps
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from c2t.kernels.layout import lay_out


class Ragged(NamedTuple):
    """The S real slots among a batch's slots (B, n), row after row.

    number, row, slot: of each real slot, the index among all B n slots, the row, and the slot in the row.
    packed_index: for each slot of the batch its index among the S real ones; any index for a slot that is not real.
    sizes: real slots of each row. spans: slots of each row up to its last real one. full: True if all slots are real.
    """

    number: Int[Tensor, " S"]
    row: Int[Tensor, " S"]
    slot: Int[Tensor, " S"]
    packed_index: Int[Tensor, "B n"]
    sizes: list[int]
    spans: list[int]
    full: bool

    @classmethod
    def of(cls, real: Bool[Tensor, "B n"]) -> "Ragged":
        """Return the real slots. This waits for the device, because shapes depend on the values."""
        flags = real.cpu()
        if 0 not in flags.numpy().tobytes():  # most rounds, whose layouts are cached
            return whole(*real.shape, real.device)
        *indices, sizes, spans = lay_out(flags)
        number, row, slot, packed_index = (index.to(real.device) for index in indices)
        return cls(number, row, slot, packed_index, sizes, spans, full=False)

    def take(self, values: Shaped[Tensor, "B n ..."]) -> Shaped[Tensor, "S ..."]:
        """Return the real slots' values."""
        values = values.flatten(0, 1)
        return values if self.full else values.index_select(0, self.number)

    def back(self, values: Shaped[Tensor, "S ..."]) -> Shaped[Tensor, "B n ..."]:
        """Return values in the slots of the batch; other slots get some real slot's values, or 0 if there is none."""
        if not len(values):
            return values.new_zeros(*self.packed_index.shape, *values.shape[1:])
        padded = values if self.full else values.index_select(0, self.packed_index.flatten())
        return padded.view(*self.packed_index.shape, *values.shape[1:])


CACHED = 256  # largest batch, in slots, whose layout is cached: that of a level or of a tree, not of a prompt


def cached_if_small(maxsize: int) -> Callable[[Callable], Callable]:
    """Return a decorator for functions of (rows, n, ...) that caches the last `maxsize` results with rows * n up to
    CACHED."""

    def decorate(make: Callable) -> Callable:
        cached = lru_cache(maxsize)(make)
        return wraps(make)(lambda rows, n, *rest: (cached if rows * n <= CACHED else make)(rows, n, *rest))

    return decorate


@cached_if_small(256)  # most levels of most drafts have no padding
def whole(rows: int, n: int, device: torch.device) -> Ragged:
    """Return the layout of a batch without padding."""
    with torch.inference_mode(False):  # cached for callers with and without gradients
        number = torch.arange(rows * n, device=device)
        return Ragged(number, number // n, number % n, number.view(rows, n), [n] * rows, [n] * rows, full=True)


CHUNK = 512  # tokens of a text per forward, so that masks grow linearly with the text


def chunks(count: Int[Tensor, " B"], *columns: Shaped[Tensor, "B _ ..."]) -> Iterator[tuple[Tensor, ...]]:
    """Yield (count, *columns) of each CHUNK of columns, for texts of count[r] real tokens in row r."""
    n = columns[0].shape[1]
    if n <= CHUNK:  # all rounds of decoding, and short prompts
        yield count, *columns
        return
    for start in range(0, n, CHUNK):
        part = (column[:, start : start + CHUNK] for column in columns)
        yield (count - start).clamp(0, CHUNK), *part


def concatenated(parts: Sequence[Shaped[Tensor, "B _ ..."]]) -> Shaped[Tensor, "B n ..."]:
    """Return the results of all chunks as one tensor."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), 1)


class SlotLogits(NamedTuple):
    """Packed logits after the slots of a batch: those of slot s in row r are values[packed_index[r, s]]. A slot that is
    not real has those of some real slot."""

    values: Float[Tensor, "S V"]
    packed_index: Int[Tensor, "B n"]

    @classmethod
    def of(cls, logits: Float[Tensor, "B n V"]) -> "SlotLogits":
        """Return the logits of a batch without padding."""
        return cls(logits.flatten(0, 1), whole(*logits.shape[:2], logits.device).packed_index)

    def at(self, rows: Int[Tensor, " b"], slots: Int[Tensor, " b"]) -> Float[Tensor, "b V"]:
        """Return the logits after one slot of each of these rows."""
        return self.values[self.packed_index[rows, slots]]

    def padded(self) -> Float[Tensor, "B n V"]:
        """Return the logits after every slot."""
        return self.values[self.packed_index]

    def select(self, rows: Int[Tensor, " b"] | slice) -> "SlotLogits":
        """Return the logits of these rows."""
        return SlotLogits(self.values, self.packed_index[rows])
