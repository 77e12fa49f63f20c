"""A key-value cache for rows of different lengths: each row has a range of one shared buffer per layer.

Memory is proportional to the tokens in use. Rows join and leave without a copy of the others.
"""

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.caches.ragged import Ragged
from c2t.kernels.compact import compact
from c2t.kernels.layer_buffers import LayerBuffers

QUANTUM = 32  # the size of a row's range is a multiple of this many slots


class KVPool:
    """Keys and values: one buffer (2, kv_heads, slots, head_dim) per layer, on that layer's device.

    Row r has the slots from starts[r] on, of which the first lengths[r] are committed. `append` first assigns slots to
    the tokens of a forward. Each layer then writes its keys and values (`update`, or the caller at `token_slots`).
    `keep` commits some of them in a given order, or `drop` discards them. Stock transformers models accept this cache
    as `past_key_values`.
    """

    def __init__(self, layers: int):
        self.buffers = LayerBuffers([None] * layers)
        self.slots = self.end = 0  # of each buffer: the number of slots, and the first unused one
        self.starts: list[int] = []
        self._rooms: list[int] = []  # slots of each row's range
        self._used: list[int] = []  # `lengths` on the host
        self.lengths: Int[Tensor, " B"] | None = None
        # Of the latest forward: the rows' first slots, the slots after their committed ones, the slots of its tokens.
        self.first: Int[Tensor, " B"] | None = None
        self.tails: Int[Tensor, " B"] | None = None
        self.token_slots: Int[Tensor, " S"] | None = None

    def begin(self, caches: Sequence[Sequence[Float[Tensor, "2 H _ D"]]], device: torch.device) -> None:
        """Begin with rows that have these committed keys and values, one tensor per layer; an empty row has none."""
        lengths = [row[0].shape[2] if row else 0 for row in caches]
        self.starts, self._rooms, self._used = ([0] * len(lengths) for _ in range(3))
        self._reserve(lengths)
        self.lengths, self._used = torch.tensor(lengths, device=device), lengths
        for number, row in enumerate(caches):
            for layer, cache in enumerate(row):
                self.layer(layer, cache, cache.shape[1], cache.shape[3])[:, :, self.row(number, 0)] = cache

    def append(self, rows: Ragged) -> None:
        """Assign slots to the tokens of a forward: new slot s of row r is the s-th after the row's committed ones."""
        device = rows.row.device
        if self.lengths is None:
            self.lengths = torch.zeros(len(rows.sizes), dtype=torch.long, device=device)
            self.starts, self._rooms, self._used = ([0] * len(rows.sizes) for _ in range(3))
        self._reserve([used + span for used, span in zip(self._used, rows.spans, strict=True)])
        self.first = torch.tensor(self.starts, device=device)
        self.tails = self.first + self.lengths
        self.token_slots = self.tails.index_select(0, rows.row) + rows.slot

    @property
    def longest(self) -> int:
        """The length of the longest row."""
        return max(self._used)

    def update(
        self, keys: Float[Tensor, "1 H S D"], values: Float[Tensor, "1 H S D"], layer: int, *_args, **_kwargs
    ) -> tuple[Float[Tensor, "1 H t D"], Float[Tensor, "1 H t D"]]:
        """Write one layer's keys and values of the appended tokens; return those of the whole buffer (see `row`)."""
        buffer = self.layer(layer, keys, keys.shape[1], keys.shape[3])
        slots = self.token_slots.to(keys.device)
        buffer[0].index_copy_(1, slots, keys[0])
        buffer[1].index_copy_(1, slots, values[0])
        return buffer[:1], buffer[1:]

    def layer(self, layer: int, like: Tensor, heads: int, dim: int) -> Float[Tensor, "2 H t D"]:
        """Return a layer's buffer, allocated at the first call. like: a tensor of its dtype and device."""
        if self.buffers[layer] is None:
            # Zeros, not empty: a masked slot still enters softmax(QK)V as 0 * value, and 0 * NaN would spread.
            self.buffers[layer] = like.new_zeros(2, heads, self.slots, dim)
        assert self.buffers[layer].shape[2] == self.slots, "a layer's buffer has other slots than the rows were given"
        return self.buffers[layer]

    def layers(self, like: Tensor, heads: int, dim: int) -> LayerBuffers:
        """Return all layers' buffers, see `layer`, for a caller that writes the tokens of all layers itself."""
        if not self.buffers.complete:
            for number in range(len(self.buffers)):
                self.layer(number, like, heads, dim)
        assert self.buffers.alike, "layers have buffers of different shapes"
        assert self.buffers[0].shape[2] == self.slots, "the layers' buffers have other slots than the rows were given"
        return self.buffers

    def row(self, number: int, span: int) -> slice:
        """Return the slots of a row: its committed ones, and `span` appended ones."""
        return slice(self.starts[number], self.starts[number] + self._used[number] + span)

    def prefix(self, layer: int, row: int) -> Float[Tensor, "2 H t D"]:
        """Return one layer's committed keys and values of a row."""
        return self.buffers[layer][:, :, self.row(row, 0)]

    def keep(self, index: Int[Tensor, "B m"], count: Int[Tensor, " B"]) -> None:
        """Commit, in row r, the appended slots index[r, :count[r]], in that order; forget all others."""
        compact(self.buffers, index, count, self.tails, self.tails)
        self.lengths = self.lengths + count
        self._used = self.lengths.tolist()

    def drop(self) -> None:
        """Discard the appended slots; nothing is written."""

    def return_to(self, lengths: Int[Tensor, " B"]) -> None:
        """Roll each row back to this many committed slots; nothing is written."""
        self.lengths, self._used = lengths, lengths.tolist()

    def rewind(self, back: Int[Tensor, " B"]) -> None:
        """Discard the last back[r] committed slots of row r; nothing is written."""
        self.return_to(self.lengths - back)

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order. Nothing is moved."""
        if self.lengths is None:
            return
        self.lengths = self.lengths[rows]
        selected = rows.tolist()
        self.starts, self._rooms, self._used = (
            [values[row] for row in selected] for values in (self.starts, self._rooms, self._used)
        )

    def copy(self) -> "KVPool":
        """Return a cache of the same rows that shares the committed slots. From then on only one of the two may append
        or join."""
        other = copy.copy(self)
        other.buffers, other.starts = LayerBuffers(self.buffers), list(self.starts)
        other._rooms, other._used = list(self._rooms), list(self._used)
        return other

    def join(self, other: "KVPool") -> None:
        """Append the rows of another cache of the same model."""
        first, lengths = len(self.starts), other._used
        self.starts, self._rooms = self.starts + [0] * len(lengths), self._rooms + [0] * len(lengths)
        self._used = self._used + [0] * len(lengths)  # empty for now, so that nothing is moved
        self._reserve([*self._used[:first], *lengths])
        self._used[first:] = lengths
        for layer, source in enumerate(other.buffers):
            buffer = self.layer(layer, source, source.shape[1], source.shape[3])
            for row in range(len(lengths)):
                buffer[:, :, self.row(first + row, 0)] = other.prefix(layer, row)
        self.lengths = other.lengths if self.lengths is None else torch.cat([self.lengths, other.lengths])

    def _reserve(self, needed: list[int]) -> None:
        """Enlarge the rows' ranges to at least these numbers of slots; committed slots move with them."""
        growing = [row for row, slots in enumerate(needed) if slots > self._rooms[row]]
        if not growing:
            return
        rooms = [rounded(needed[row] * 5 // 4) if row in growing else room for row, room in enumerate(self._rooms)]
        for row in growing:
            start = self.starts[row]
            if start + self._rooms[row] == self.end and start + needed[row] <= self.slots:
                # The last row grows in place: with one row the buffers are moved half as often.
                self.end = min(start + rooms[row], self.slots)
                self._rooms[row] = rooms[row] = self.end - start
                growing.remove(row)
                break
        if self.end + sum(rooms[row] for row in growing) <= self.slots:
            self._move(growing, rooms)
        else:
            self._rebuild(needed)

    def _move(self, growing: list[int], rooms: list[int]) -> None:
        """Move these rows to the buffers' unused end."""
        for row in growing:
            old, self.starts[row], self._rooms[row] = self.row(row, 0), self.end, rooms[row]
            self.end += rooms[row]
            for buffer in self.buffers:
                if buffer is not None:
                    buffer[:, :, self.row(row, 0)] = buffer[:, :, old]

    def _rebuild(self, needed: list[int]) -> None:
        """Move all rows into new buffers, without the unused slots between them."""
        old = [self.row(row, 0) for row in range(len(needed))]
        self._rooms = [rounded(slots * 5 // 4) for slots in needed]
        self.end = sum(self._rooms)
        self.starts = [sum(self._rooms[:row]) for row in range(len(needed))]
        self.slots = rounded(self.end * 5 // 4)
        for layer, buffer in enumerate(self.buffers):
            if buffer is not None:
                new = buffer.new_zeros(2, buffer.shape[1], self.slots, buffer.shape[3])
                for row, slots in enumerate(old):
                    new[:, :, self.row(row, 0)] = buffer[:, :, slots]
                self.buffers[layer] = new


def rounded(slots: int) -> int:
    """Return the next multiple of QUANTUM."""
    return -(-slots // QUANTUM) * QUANTUM
