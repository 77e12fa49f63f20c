"""A preallocated key-value cache in which every row of a batch commits a different path of its tree.

Row r has the committed slots [0, lengths[r]). Forwards append at [length, length + pending) in every row, where length
is that of the longest row. Then `keep` moves the accepted slots to the end of each row, or `drop` discards them.
"""

from functools import lru_cache
from itertools import product

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.caches.pool import KVPool
from c2t.errors import InputError
from c2t.kernels.compact import compact
from c2t.kernels.layer_buffers import LayerBuffers


class KVCache:
    """Keys and values: one buffer (2, B, kv_heads, capacity, head_dim) per layer, on that layer's device.

    Stock transformers models accept it as `past_key_values`, because their layers only call `update`. It grows by
    doubling, so `capacity` is only the first size.
    """

    def __init__(self, layers: int, capacity: int = 64):
        self.capacity = capacity
        self.buffers = LayerBuffers([None] * layers)
        self.lengths: Tensor | None = None
        self.length = 0
        self.pending = 0
        self._pending_positions: list[Tensor] = []

    def update(
        self, keys: Float[Tensor, "B H n D"], values: Float[Tensor, "B H n D"], layer: int, *_args, **_kwargs
    ) -> tuple[Float[Tensor, "B H t D"], Float[Tensor, "B H t D"]]:
        """Append one layer's keys and values; return views of all slots so far."""
        buffer, start = self.append(layer, keys, *keys.shape)
        end = start + keys.shape[2]
        buffer[0, :, :, start:end] = keys
        buffer[1, :, :, start:end] = values
        return buffer[0, :, :, :end], buffer[1, :, :, :end]

    def append(self, layer: int, like: Tensor, rows: int, heads: int, new: int, dim: int) -> tuple[Tensor, int]:
        """Append `new` slots to one layer, which the caller must write. Return the layer's buffer and the first new
        slot.

        like: a tensor of the keys' dtype and device.
        """
        start = self.length + self.pending
        buffer = self._room(layer, like, (2, rows, heads, dim), start + new)
        if layer == len(self.buffers) - 1:
            self.pending += new
            if self.lengths is None:
                self.lengths = torch.zeros(rows, dtype=torch.long, device=self.buffers[0].device)
        return buffer, start

    def positions(self, new: Int[Tensor, "B n"]) -> Int[Tensor, "B t"]:
        """Return the absolute positions of all slots, including tokens to be appended at positions `new`.

        Only sliding windows need it. It must be called before every append, or never.
        """
        self._pending_positions.append(new)
        committed = torch.arange(self.length, device=new.device).expand(len(new), -1)
        return torch.cat([committed, *self._pending_positions], 1)

    def keep(self, index: Int[Tensor, "B m"], count: Int[Tensor, " B"]) -> None:
        """Commit, in row r, the pending slots index[r, :count[r]], in that order; discard the other pending slots."""
        self._compact(index, count)
        self.lengths = self.lengths + count
        self.length = int(self.lengths.max())
        self.drop()

    def drop(self) -> None:
        """Discard the pending slots; nothing is written."""
        self.pending = 0
        self._pending_positions = []

    def rewind(self, back: Int[Tensor, " B"]) -> None:
        """Discard the last back[r] committed slots of row r, and all pending ones; nothing is written."""
        self.lengths = self.lengths - back
        self.length = int(self.lengths.max())
        self.drop()

    def _compact(self, index: Int[Tensor, "B m"], count: Int[Tensor, " B"]) -> None:
        """Move the pending slots index[r, :count[r]] to the end of row r."""
        rows = self.firsts(len(count))
        compact(self.buffers, index, count, rows + self.length, rows + self.lengths)

    def firsts(self, rows: int) -> Int[Tensor, " B"]:
        """Return the offset of each row's first slot in the buffer, in slots."""
        if self.lengths.device.type == "cpu":
            return _multiples(self.step, rows)
        return self.step * torch.arange(rows, device=self.lengths.device)  # not cached: a CUDA graph may hold it

    @property
    def step(self) -> int:
        """Number of slots of a row, over all heads."""
        heads, capacity = self.buffers[0].shape[2:4]
        return heads * capacity

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        if self.lengths is None:
            return
        self.buffers = LayerBuffers(buffer[:, rows.to(buffer.device)] for buffer in self.buffers)
        self.lengths = self.lengths[rows]
        self.length = int(self.lengths.max()) if len(rows) else 0

    def join(self, other: "KVCache") -> None:
        """Append the rows of another cache of the same model; neither may have pending slots."""
        assert self.pending == other.pending == 0
        self.capacity = max(self.capacity, other.capacity)
        for layer, pair in enumerate(zip(self.buffers, other.buffers, strict=True)):
            slots = max(buffer.shape[3] for buffer in pair)
            padded = [torch.nn.functional.pad(buffer, (0, 0, 0, slots - buffer.shape[3])) for buffer in pair]
            self.buffers[layer] = torch.cat(padded, 1)
        self.lengths = torch.cat([self.lengths, other.lengths])
        self.length = max(self.length, other.length)

    def fork(self, lengths: Int[Tensor, " B"]) -> "KVCache":
        """Return a cache of B rows; row r has the first lengths[r] slots of this cache's only row.

        The first append copies the prefix into every row, because stock attention needs prefix and new slots in one
        tensor. Concatenating them in every forward was not faster, and three times slower for long prefixes.
        """
        longest = int(lengths.max())
        fork = KVCache(len(self.buffers), longest)
        prefixes = (buffer[:, :, :, :longest] for buffer in self.buffers)
        fork.buffers = LayerBuffers(prefix.expand(-1, len(lengths), -1, -1, -1) for prefix in prefixes)
        fork.lengths, fork.length = lengths, longest
        return fork

    def prefix(self, layer: int, row: int) -> Float[Tensor, "2 H t D"]:
        """Return one layer's committed keys and values of a row."""
        return self.buffers[layer][:, row, :, : int(self.lengths[row])]

    def visible(self) -> Bool[Tensor, "B t"]:
        """Return a mask of the committed slots of each row among [0, length)."""
        return torch.arange(self.length, device=self.lengths.device) < self.lengths[:, None]

    def get_seq_length(self, _layer: int = 0) -> int:
        """Return the number of slots before the next append (transformers calls it)."""
        return self.length + self.pending

    def _room(self, layer: int, like: Tensor, shape: tuple[int, int, int, int], needed: int) -> Tensor:
        """Return the layer's buffer, allocated or enlarged to `needed` slots. shape: its other dimensions."""
        old = self.buffers[layer]
        if layer == 0 and needed > self.capacity:
            self.capacity = max(needed, 2 * self.capacity)
        if old is None or old.shape[3] < self.capacity:
            # Zeros, not empty: a masked slot still enters softmax(QK)V as 0 * value, and 0 * NaN would spread.
            new = like.new_zeros(*shape[:3], self.capacity, shape[3])
            if old is not None:
                new[:, :, :, : old.shape[3]] = old
            self.buffers[layer] = new
        return self.buffers[layer]


@lru_cache(maxsize=64)
def _multiples(step: int, count: int) -> Int[Tensor, " n"]:
    with torch.inference_mode(False):  # cached for callers with and without gradients
        return step * torch.arange(count, device="cpu")


class StaticKVCache(KVCache):
    """Cache whose addresses and shapes never change, as CUDA graphs need it.

    Each row has prefixes of up to `capacity` slots; its pending slots begin at slot `capacity`.
    """

    def __init__(self, layers: int, capacity: int, room: int):
        super().__init__(layers, capacity + room)
        self.length = capacity

    def adopt(self, cache: KVCache | KVPool) -> None:
        """Copy another cache's prefixes into the first rows of this one, which must have at least as many rows."""
        rows = len(cache.lengths)
        for layer, row in product(range(len(self.buffers)), range(rows)):
            prefix = cache.prefix(layer, row)
            self.buffers[layer][:, row, :, : prefix.shape[2]] = prefix
        self.lengths.zero_()
        self.lengths[:rows] = cache.lengths

    def allocate(self, like: KVCache | KVPool, rows: int) -> None:
        """Allocate buffers for `rows` rows, with the heads and dimensions of another cache."""
        for layer, buffer in enumerate(like.buffers):
            shape = (2, rows, buffer.shape[-3], self.capacity, buffer.shape[-1])
            try:
                self.buffers[layer] = buffer.new_zeros(shape)
            except torch.OutOfMemoryError as error:
                raise InputError(f"no memory for {rows} texts of {self.length} tokens: choose fewer of them") from error
        self.lengths = torch.zeros(rows, dtype=torch.long, device=self.buffers[0].device)

    def keep(self, index: Int[Tensor, "B m"], count: Int[Tensor, " B"]) -> None:
        """See `KVCache.keep`; lengths change in place."""
        self._compact(index, count)
        self.lengths.add_(count)
        self.drop()

    def rewind(self, back: Int[Tensor, " B"]) -> None:
        """See `KVCache.rewind`; lengths change in place."""
        self.lengths.sub_(back)
        self.drop()

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Move these rows to the front, in this order; the others become empty."""
        count = len(rows)
        for buffer in self.buffers:
            buffer[:, :count] = buffer[:, rows]
        lengths = self.lengths[rows]
        self.lengths.zero_()
        self.lengths[:count] = lengths


class TreeKVCache(StaticKVCache):
    """Cache of the target: a forward appends a tree's slots `tree_slots`, and sees all slots of the buffers."""

    tree_slots: Int[Tensor, " n"]

    def update(
        self, keys: Float[Tensor, "B H n D"], values: Float[Tensor, "B H n D"], layer: int, *_args, **_kwargs
    ) -> tuple[Float[Tensor, "B H t D"], Float[Tensor, "B H t D"]]:
        """Write one layer's keys and values; return those of the whole buffer."""
        buffer, slots = self.buffers[layer], self.length + self.tree_slots
        buffer[0].index_copy_(2, slots, keys)
        buffer[1].index_copy_(2, slots, values)
        return buffer[0], buffer[1]
