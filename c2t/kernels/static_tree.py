"""Trees whose columns exist before a draft phase begins, so that their addresses and shapes never change."""

from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.kernels.level_attention import WORD


class StaticTree(NamedTuple):
    """Columns of B trees (`c2t.tree.Tree`) with room for n slots, and the bits of `level_attention.ancestor_bits`.

    A dead slot has no probability and sees itself only. sizes: alive slots. capped: nodes that only a limit excluded.
    """

    token: Int[Tensor, "B n"]
    parent: Int[Tensor, "B n"]
    depth: Int[Tensor, "B n"]
    rank: Int[Tensor, "B n"]
    log_prob: Float[Tensor, "B n"]
    log_joint: Float[Tensor, "B n"]
    entropy: Float[Tensor, "B n"]
    max_log_prob: Float[Tensor, "B n"]
    score: Float[Tensor, "B n"]
    alive: Bool[Tensor, "B n"]
    bits: Int[Tensor, "B n w"]
    sizes: Int[Tensor, " B"]
    capped: Int[Tensor, " B"]

    @classmethod
    def rooted(cls, token: Int[Tensor, " B"], slots: int, dtype: torch.dtype = torch.float32) -> "StaticTree":
        """Return trees that consist of their roots, with room for `slots` slots; the kernels need float32."""
        rows = len(token)
        zeros = partial(torch.zeros, device=token.device)
        integers = [zeros(rows, slots, dtype=torch.long) for _ in range(4)]
        floats = [zeros(rows, slots, dtype=dtype) for _ in range(5)]
        alive = zeros(rows, slots, dtype=torch.bool)
        bits = zeros(rows, slots, -(-slots // WORD), dtype=torch.int32)
        counts = [zeros(rows, dtype=torch.long) for _ in range(2)]
        tree = cls._make([*integers, *floats, alive, bits, *counts])
        tree.restart(token)
        return tree

    def restart(self, token: Int[Tensor, " B"]) -> None:
        """Reset the trees to new roots in the same memory. Slots after the root keep their values until `select`
        writes them."""
        self.token[:, 0] = token
        self.parent[:, 0] = self.depth[:, 0] = -1
        self.entropy[:, 0] = float("nan")
        self.score[:, 0] = 1
        self.alive[:, 1:] = False
        self.alive[:, 0] = True
        self.bits[:, 0, 0] = 1
        self.sizes.fill_(1)
        self.capped.zero_()
