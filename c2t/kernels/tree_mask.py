"""The ancestor relation of trees as a bit mask, 32 slots to a word, and the list of its blocks that are not empty.

In depth-first order (`Tree.heavy_first`) most blocks of 32 x 32 slots are empty (DySpec, appendix C). On a GPU one
Triton kernel makes a mask, elsewhere torch does.
"""

from typing import NamedTuple, no_type_check

import torch
from jaxtyping import Bool, Int
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # the torch twin needs none
    triton = None

WORD = 32  # tree slots in a word of the bit mask, and the side of its blocks


class TreeMask(NamedTuple):
    """Visibility among the n slots of each row's tree, after a prefix of lengths[r] keys.

    bits[r, i]: slots that slot i sees, slot j being bit j % 32 of word j // 32. block[r, I, :count[r, I]]: the words in
    which any of the 32 slots from 32 I on has a bit. sizes: slots from there on are padding, whose output is 0.
    positions: absolute ones of the slots, for sliding windows; a prefix key's position is its index.

    While a tree is drafted, a mask may hold one level's n slots as queries only, which then see more than n slots.
    """

    bits: Int[Tensor, "B n W"]
    block: Int[Tensor, "B W W"]
    count: Int[Tensor, "B W"]
    lengths: Int[Tensor, " B"]
    sizes: Int[Tensor, " B"]
    positions: Int[Tensor, "B n"]

    @classmethod
    def of(
        cls,
        parent: Int[Tensor, "B n"],
        alive: Bool[Tensor, "B n"],
        positions: Int[Tensor, "B n"],
        lengths: Int[Tensor, " B"],
    ) -> "TreeMask":
        """Return the mask of trees whose parents stand before their children; nothing waits for the device."""
        make = triton_mask if triton is not None and parent.is_cuda else torch_mask
        return make(parent, alive, positions, lengths)

    def dense(self, keys: int, window: int | None = None, slots: int | None = None) -> Bool[Tensor, "B n t"]:
        """Return the same as a Boolean mask over `keys` slots, of which the tree has the last `slots` (default: n); a
        key further back than `window` is not seen."""
        n = self.bits.shape[1]
        slots = slots or n
        key = torch.arange(keys - slots, device=self.bits.device)
        slot = torch.arange(slots, device=self.bits.device)
        prefix = (key < self.lengths[:, None])[:, None].expand(-1, n, -1)
        tree = (self.bits[:, :, slot // WORD] >> (slot % WORD) & 1).bool()
        mask = torch.cat([prefix, tree], 2)
        if window is None:
            return mask
        stored = torch.cat([key.expand(len(mask), -1), self.positions], 1)
        return mask & (self.positions[:, :, None] - stored[:, None] < window)


def torch_mask(
    parent: Int[Tensor, "B n"], alive: Bool[Tensor, "B n"], positions: Int[Tensor, "B n"], lengths: Int[Tensor, " B"]
) -> TreeMask:
    """Do `TreeMask.of` in torch."""
    bits = ancestor_bits(parent)
    words = bits.shape[2]
    filled = torch.nn.functional.pad(bits, (0, 0, 0, words * WORD - bits.shape[1]))
    filled = (filled.unflatten(1, (words, WORD)) != 0).any(2)
    block = filled.sort(dim=2, descending=True, stable=True).indices
    last = torch.where(alive, torch.arange(1, alive.shape[1] + 1, device=alive.device), 0).amax(1)
    return TreeMask(bits, *(column.int().contiguous() for column in (block, filled.sum(2), lengths, last, positions)))


def triton_mask(
    parent: Int[Tensor, "B n"], alive: Bool[Tensor, "B n"], positions: Int[Tensor, "B n"], lengths: Int[Tensor, " B"]
) -> TreeMask:
    """Do `TreeMask.of` in one launch; a program makes the bits of 32 slots. From entry count[r, I] on, `block` is not
    written."""
    rows, size = parent.shape
    words = -(-size // WORD)
    shapes = (rows, size, words), (rows, words, words), (rows, words), (rows,), (rows,), (rows, size)
    mask = TreeMask(*(torch.empty(shape, dtype=torch.int32, device=parent.device) for shape in shapes))
    given = (column.contiguous() for column in (parent, alive, positions, lengths))
    if rows:
        _make[(rows, words)](
            *given, *mask, size, words, PADDED=triton.next_power_of_2(words), TILE=triton.next_power_of_2(size)
        )
    return mask


def ancestor_bits(parent: Int[Tensor, "B n"]) -> Int[Tensor, "B n W"]:
    """Return `Tree.ancestors` as words of 32 bits, by pointer doubling: each slot sees itself, its ancestors and the
    root."""
    rows, size = parent.shape
    words = -(-size // WORD)
    slot = torch.arange(size, device=parent.device)
    itself = (slot[:, None] // WORD == torch.arange(words, device=parent.device)).int() << (slot[:, None] % WORD).int()
    bits, jump = itself.expand(rows, size, words), parent
    for _ in range(max(1, size - 1).bit_length()):
        further = bits.gather(1, jump.clamp(min=0)[..., None].expand(rows, size, words))
        bits = bits | torch.where(jump[..., None] >= 0, further, 0)
        jump = torch.where(jump >= 0, jump.gather(1, jump.clamp(min=0)), -1)
    return bits


if triton is not None:  # no_type_check keeps run-time checkers of annotations out of the kernel's source
    # fmt: off
    @triton.jit(do_not_specialize=["size", "words"])
    @no_type_check
    def _make(
        parent, alive, positions, lengths, bits, block, count, new_lengths, sizes, new_positions, size, words,
        PADDED: tl.constexpr, TILE: tl.constexpr,
    ):
        """Make the bits of the 32 slots from 32 I on, and the list of their blocks; the first program of a row writes
        what the row has once."""
        row, at_word = tl.program_id(0).to(tl.int64), tl.program_id(1)
        slot, word = at_word * 32 + tl.arange(0, 32), tl.arange(0, PADDED)
        real = slot < size
        at, line = tl.where(real, slot, -1).to(tl.int64), tl.zeros([32, PADDED], tl.int32)
        while tl.max(at, 0) >= 0:  # from each slot up to the root
            inside = at >= 0
            here = tl.where(inside, at, 0).to(tl.int32)
            line |= tl.where(inside[:, None] & ((here // 32)[:, None] == word), (1 << (here % 32))[:, None], 0)
            at = tl.load(parent + row * size + at, mask=inside, other=-1)
        tl.store(bits + (row * size + slot)[:, None] * words + word, line, mask=real[:, None] & (word < words))
        filled = tl.max((line != 0).to(tl.int32), 0)
        index = tl.cumsum(filled, 0) - 1
        tl.store(block + (row * words + at_word) * words + index, word, mask=filled != 0)
        tl.store(count + row * words + at_word, tl.sum(filled, 0))
        position = tl.load(positions + row * size + slot, mask=real, other=0)
        tl.store(new_positions + row * size + slot, position.to(tl.int32), mask=real)
        if at_word == 0:
            every = tl.arange(0, TILE)
            lives = tl.load(alive + row * size + every, mask=every < size, other=0) != 0
            tl.store(sizes + row, tl.max(tl.where(lives, every + 1, 0), 0))
            tl.store(new_lengths + row, tl.load(lengths + row).to(tl.int32))
    # fmt: on
