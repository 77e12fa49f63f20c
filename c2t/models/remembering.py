"""A draft session that keeps what a policy remembers of each row from round to round, where a policy does."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.models.draft import DraftSession, WrappedSession
from c2t.protocols import NextTokenDistributions
from c2t.tree import Tree

Remember = Callable[[Float[Tensor, "B m"] | None, NextTokenDistributions], Float[Tensor, "B m"]]


class RememberingSession(WrappedSession):
    """Session of the inner draft, whose distributions behind the roots carry the policy's memory.

    remember: returns a round's memory from that of the round before and these distributions. memory: NaN in rows that
    had no round yet; None where no row had one. It goes with its row when rows end, and when others join.
    """

    def __init__(self, draft: DraftSession, remember: Remember):
        super().__init__(draft)
        self.remember = remember
        self.memory: Float[Tensor, "B m"] | None = None

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`."""
        rows = self.draft.expand(tree, slots)
        if tree.size == 1:
            rows.memory = self.memory = self.remember(self.memory, rows)
        return rows

    def fork(self, back: Int[Tensor, " B"]) -> WrappedSession:
        """See `DraftSession.fork`; what was remembered at an earlier place is not known."""
        fork: RememberingSession = super().fork(back)
        fork.memory = None
        return fork

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        super().select(rows)
        if self.memory is not None:
            self.memory = self.memory[rows]

    def join(self, other: "RememberingSession") -> None:
        """See `DraftSession.join`."""
        counts = [len(session.passes) for session in (self, other)]
        super().join(other)
        known = next((each for each in (self.memory, other.memory) if each is not None), None)
        if known is not None:
            parts = zip((self.memory, other.memory), counts, strict=True)
            self.memory = torch.cat(
                [known.new_full((count, known.shape[1]), math.nan) if one is None else one for one, count in parts]
            )
