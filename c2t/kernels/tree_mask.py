"""The ancestor relation of trees as a bit mask, 32 slots to a word, and the list of its blocks that are not empty.

In depth-first order (`Tree.heavy_first`) most blocks of 32 x 32 slots are empty (DySpec, appendix C).
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

WORD = 32  # tree slots in a word of the bit mask, and the side of its blocks


class TreeMask(NamedTuple):
    """Visibility among the n slots of each row's tree, behind a prefix of lengths[r] keys.

    bits[r, i]: slots that slot i sees, slot j being bit j % 32 of word j // 32. block[r, I, :count[r, I]]: the words in
    which any of the 32 slots from 32 I on has a bit. sizes: slots from there on are padding, whose output is 0.
    positions: absolute ones of the slots, for sliding windows; a prefix key's position is its place.

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
        bits = ancestor_bits(parent)
        words = bits.shape[2]
        filled = torch.nn.functional.pad(bits, (0, 0, 0, words * WORD - bits.shape[1]))
        filled = (filled.unflatten(1, (words, WORD)) != 0).any(2)
        block = filled.sort(dim=2, descending=True, stable=True).indices
        last = torch.where(alive, torch.arange(1, alive.shape[1] + 1, device=alive.device), 0).amax(1)
        return cls(bits, *(column.int().contiguous() for column in (block, filled.sum(2), lengths, last, positions)))

    def dense(self, keys: int, window: int | None = None, slots: int | None = None) -> Bool[Tensor, "B n t"]:
        """Return the same as a Boolean mask over `keys` slots, of which the tree has the last `slots` (default: n); a
        key further back than `window` is not seen."""
        n = self.bits.shape[1]
        slots = slots or n
        place = torch.arange(keys - slots, device=self.bits.device)
        slot = torch.arange(slots, device=self.bits.device)
        prefix = (place < self.lengths[:, None])[:, None].expand(-1, n, -1)
        tree = (self.bits[:, :, slot // WORD] >> (slot % WORD) & 1).bool()
        mask = torch.cat([prefix, tree], 2)
        if window is None:
            return mask
        stored = torch.cat([place.expand(len(mask), -1), self.positions], 1)
        return mask & (self.positions[:, :, None] - stored[:, None] < window)


def ancestor_bits(parent: Int[Tensor, "B n"]) -> Int[Tensor, "B n W"]:
    """Return `Tree.ancestors` as words of 32 bits, by pointer doubling: each slot sees itself, its ancestors and the
    root."""
    rows, size = parent.shape
    words = -(-size // WORD)
    slot = torch.arange(size, device=parent.device)
    own = (slot[:, None] // WORD == torch.arange(words, device=parent.device)).int() << (slot[:, None] % WORD).int()
    bits, jump = own.expand(rows, size, words), parent
    for _ in range(max(1, size - 1).bit_length()):
        further = bits.gather(1, jump.clamp(min=0)[..., None].expand(rows, size, words))
        bits = bits | torch.where(jump[..., None] >= 0, further, 0)
        jump = torch.where(jump >= 0, jump.gather(1, jump.clamp(min=0)), -1)
    return bits
