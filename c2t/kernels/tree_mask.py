"""Paths of a tree's tokens from the root, which are what they see. On a GPU a kernel writes them, elsewhere torch."""

from typing import NamedTuple, no_type_check

import torch
from jaxtyping import Bool, Int
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # the torch twin needs none
    triton = None


class TreeMask(NamedTuple):
    """Visibility for n of the N slots of each row's tree, after a prefix of lengths[r] keys.

    path[r, i]: slots of the tree from the root to slot i, which has position lengths[r] + its number of ancestors; what
    stands after slot i itself is of no account. sizes: slots from there on are padding, whose output is 0. positions:
    absolute ones of the slots; a prefix key's position is its index.
    """

    path: Int[Tensor, "B n N"]
    lengths: Int[Tensor, " B"]
    sizes: Int[Tensor, " B"]
    positions: Int[Tensor, "B n"]

    @classmethod
    def of(
        cls,
        parent: Int[Tensor, "B N"],
        alive: Bool[Tensor, "B n"],
        positions: Int[Tensor, "B n"],
        lengths: Int[Tensor, " B"],
        first: Int[Tensor, ""] | None = None,
    ) -> "TreeMask":
        """Return the mask of trees whose parents stand before their children. The kernel waits for nothing.

        first: number of the first of the n slots, where they are not all N slots of the trees (default: 0).
        """
        first = torch.zeros((), dtype=torch.long, device=parent.device) if first is None else first
        make = triton_mask if triton is not None and parent.is_cuda else torch_mask
        return make(parent, alive, positions, lengths, first)

    def row(self, row: int, size: int) -> "TreeMask":
        """Return the mask of one row's tree of so many slots."""
        mask = TreeMask(*(column[row : row + 1] for column in self))
        return mask._replace(path=mask.path[:, :size, :size], positions=mask.positions[:, :size])

    def dense(self, keys: int, window: int | None = None) -> Bool[Tensor, "B n t"]:
        """Return the same as a Boolean mask over `keys` slots, of which the tree has the last; a key further back than
        `window` is not seen."""
        n, slots = self.path.shape[1:]
        start = keys - slots
        absolute = self.lengths[:, None] + torch.arange(slots, device=self.path.device)  # of each slot of a path
        seen = absolute[:, None] <= self.positions[:, :, None]
        index = torch.arange(start, device=self.path.device)
        prefix = (index < self.lengths[:, None])[:, None].expand(-1, n, -1)
        if window is not None:
            seen = seen & (self.positions[:, :, None] - absolute[:, None] < window)
            prefix = prefix & (self.positions[:, :, None] - index < window)
        path = torch.where(seen, self.path, 0).long()
        tree = torch.zeros(len(prefix), n, slots, dtype=torch.int32, device=self.path.device)
        return torch.cat([prefix, tree.scatter_add(2, path, seen.int()) > 0], 2)


def torch_mask(
    parent: Int[Tensor, "B N"],
    alive: Bool[Tensor, "B n"],
    positions: Int[Tensor, "B n"],
    lengths: Int[Tensor, " B"],
    first: Int[Tensor, ""],
) -> TreeMask:
    """Do `TreeMask.of` in torch."""
    slot = torch.arange(alive.shape[1], device=alive.device)
    path = parent.new_zeros(*alive.shape, parent.shape[1])
    at, step = (first + slot).expand(alive.shape), positions - lengths[:, None]
    while bool((at >= 0).any()):  # from each slot up to the root
        written = path.scatter(2, step.clamp(min=0)[..., None], at[..., None])
        path = torch.where((at >= 0)[..., None], written, path)
        at, step = torch.where(at >= 0, parent.gather(1, at.clamp(min=0)), -1), step - 1
    last = torch.where(alive, slot + 1, 0).amax(1)
    return TreeMask(*(column.int().contiguous() for column in (path, lengths, last, positions)))


def triton_mask(
    parent: Int[Tensor, "B N"],
    alive: Bool[Tensor, "B n"],
    positions: Int[Tensor, "B n"],
    lengths: Int[Tensor, " B"],
    first: Int[Tensor, ""],
) -> TreeMask:
    """Do `TreeMask.of` in one launch; a program writes the paths of 32 slots, and nothing after their ends."""
    (rows, size), steps = alive.shape, parent.shape[1]
    shapes = (rows, size, steps), (rows,), (rows,), (rows, size)
    mask = TreeMask(*(torch.empty(shape, dtype=torch.int32, device=parent.device) for shape in shapes))
    given = (column.contiguous() for column in (parent, alive, positions, lengths))
    if rows:
        _make[(rows, triton.cdiv(size, 32))](*given, first, *mask, size, steps, TILE=triton.next_power_of_2(size))
    return mask


if triton is not None:  # no_type_check keeps run-time checkers of annotations out of the kernel's source
    # fmt: off
    @triton.jit(do_not_specialize=["size", "steps"])
    @no_type_check
    def _make(
        parent, alive, positions, lengths, first, path, new_lengths, sizes, new_positions, size, steps,
        TILE: tl.constexpr,
    ):
        """Write the paths of 32 slots; the first program of a row writes what the row has once."""
        row, slot = tl.program_id(0).to(tl.int64), tl.program_id(1) * 32 + tl.arange(0, 32)
        real, length = slot < size, tl.load(lengths + row)
        position = tl.load(positions + row * size + slot, mask=real, other=0)
        at, step = tl.where(real, tl.load(first) + slot, -1), position - length
        while tl.max(at, 0) >= 0:  # from each slot up to the root
            inside = at >= 0
            tl.store(path + (row * size + slot) * steps + step, at.to(tl.int32), mask=inside)
            at = tl.load(parent + row * steps + at, mask=inside, other=-1)
            step -= 1
        tl.store(new_positions + row * size + slot, position.to(tl.int32), mask=real)
        if tl.program_id(1) == 0:
            every = tl.arange(0, TILE)
            lives = tl.load(alive + row * size + every, mask=every < size, other=0) != 0
            tl.store(sizes + row, tl.max(tl.where(lives, every + 1, 0), 0))
            tl.store(new_lengths + row, length.to(tl.int32))
    # fmt: on
