"""Rows of different sizes without padding: the real slots of a batch, laid end to end.

A forward costs what it computes. With trees of 1, 5 and 60 tokens in a batch, it computes 66 and not 180.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, wraps
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from c2t.kernels.layout import lay_out


class Ragged(NamedTuple):
    """The S real ones of a batch's slots (B, n), row after row.

    number, row, slot: where each of them stands, among all slots of the batch and as row and slot. place: for each slot
    of the batch its number among them; that of some other one for a slot which is not real. sizes: how many each row
    has. spans: the slots of each row up to its last real one. full: every slot of the batch is real.
    """

    number: Int[Tensor, " S"]
    row: Int[Tensor, " S"]
    slot: Int[Tensor, " S"]
    place: Int[Tensor, "B n"]
    sizes: list[int]
    spans: list[int]
    full: bool

    @classmethod
    def of(cls, real: Bool[Tensor, "B n"]) -> "Ragged":
        """Return the real slots; waits for the device, whose answer decides shapes."""
        flags = real.cpu()
        if 0 not in flags.numpy().tobytes():  # most rounds: what is known of them is kept
            return whole(*real.shape, real.device)
        *places, sizes, spans = lay_out(flags)
        number, row, slot, place = (each.to(real.device) for each in places)
        return cls(number, row, slot, place, sizes, spans, full=False)

    def take(self, values: Shaped[Tensor, "B n ..."]) -> Shaped[Tensor, "S ..."]:
        """Return the real slots' values."""
        values = values.flatten(0, 1)
        return values if self.full else values.index_select(0, self.number)

    def back(self, values: Shaped[Tensor, "S ..."]) -> Shaped[Tensor, "B n ..."]:
        """Return values in their slots; slots that are not real get those of some other one, or 0 if there is none."""
        if not len(values):
            return values.new_zeros(*self.place.shape, *values.shape[1:])
        found = values if self.full else values.index_select(0, self.place.flatten())
        return found.view(*self.place.shape, *values.shape[1:])


KEPT = 256  # slots of a batch whose layout is kept at most: a level's or a tree's, not a prompt's


def kept_if_small(maxsize: int) -> Callable[[Callable], Callable]:
    """Return a decorator that keeps what a function of (rows, slots of each, ...) returned for the `maxsize` last
    batches of at most KEPT slots."""

    def keeping(make: Callable) -> Callable:
        kept = lru_cache(maxsize)(make)
        return wraps(make)(lambda rows, n, *others: (kept if rows * n <= KEPT else make)(rows, n, *others))

    return keeping


@kept_if_small(256)  # most levels of most drafts are such
def whole(rows: int, n: int, device: torch.device) -> Ragged:
    """Return all slots of a batch as real ones."""
    with torch.inference_mode(False):  # kept for whoever comes next, with gradients or without
        number = torch.arange(rows * n, device=device)
        return Ragged(number, number // n, number % n, number.view(rows, n), [n] * rows, [n] * rows, full=True)


AT_ONCE = 512  # tokens of a text that are read in one forward, whose masks so grow with the text, not with its square


def stretches(count: Int[Tensor, " B"], *columns: Shaped[Tensor, "B _ ..."]) -> Iterator[tuple[Tensor, ...]]:
    """Yield texts of count[r] real tokens in row r, AT_ONCE columns at a time: how many of these are real, then the
    columns themselves."""
    n = columns[0].shape[1]
    if n <= AT_ONCE:  # all rounds of decoding, and short prompts
        yield count, *columns
        return
    for start in range(0, n, AT_ONCE):
        part = (column[:, start : start + AT_ONCE] for column in columns)
        yield (count - start).clamp(0, AT_ONCE), *part


def end_to_end(parts: Sequence[Shaped[Tensor, "B _ ..."]]) -> Shaped[Tensor, "B n ..."]:
    """Return what was found for each of the stretches as one tensor."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), 1)


class SlotLogits(NamedTuple):
    """Logits after the slots of a batch: those of slot s in row r are values[place[r, s]]. A slot that is not real has
    some other one's."""

    values: Float[Tensor, "S V"]
    place: Int[Tensor, "B n"]

    @classmethod
    def of(cls, logits: Float[Tensor, "B n V"]) -> "SlotLogits":
        """Return the logits of a batch whose slots are all real."""
        return cls(logits.flatten(0, 1), whole(*logits.shape[:2], logits.device).place)

    def at(self, rows: Int[Tensor, " b"], slots: Int[Tensor, " b"]) -> Float[Tensor, "b V"]:
        """Return the logits after one slot of each of these rows."""
        return self.values[self.place[rows, slots]]

    def padded(self) -> Float[Tensor, "B n V"]:
        """Return the logits after every slot."""
        return self.values[self.place]

    def select(self, rows: Int[Tensor, " b"] | slice) -> "SlotLogits":
        """Return the logits of these rows."""
        return SlotLogits(self.values, self.place[rows])
