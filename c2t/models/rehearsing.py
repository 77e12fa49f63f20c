"""The draft of hierarchical speculation: the target in 4 bits, which has a draft of its own."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from c2t.models.deferred import Observed, joined
from c2t.models.draft import DraftSession, NoDraft, WrappedSession


class RehearsingSession(WrappedSession):
    """Session of the inner draft, whose guesses a coarse verifier accepts or not before the target sees them.

    stage: returns a coarse verifier that stands where the target stands, on the target's own cache. The draft observes
    what that writes; once the target has spoken it forgets it again. ahead: how much that is, in tokens of each row.
    passes: as in `DraftSession`, the coarse verifier's forwards included.
    """

    def __init__(self, draft: DraftSession | WrappedSession | NoDraft, stage: Callable[[], Any]):
        super().__init__(draft)
        self.stage = stage
        self.ahead: Int[Tensor, " B"] | None = None
        self.rehearsed: Int[Tensor, " B"] | int = 0

    @property
    def passes(self) -> Int[Tensor, " B"]:
        return self.draft.passes + self.rehearsed

    def rehearse(self, policy: Callable, rounds: int) -> tuple[Int[Tensor, "B m"], Int[Tensor, " B"]]:
        """Play so many coarse rounds with a policy's trees; return each row's root and what was written after it,
        and the number of these tokens."""
        verifier = self.stage()
        cache, begin = verifier.session.cache, verifier.session.lengths
        written: list[Observed] = []
        for number in range(rounds):
            if number:
                self._follow(written[-1])
            tree = policy(self.draft, verifier.root())
            self.draft.refuse_nan()
            written.append(Observed(*verifier.verify(tree).committed))
        self.rehearsed = self.rehearsed + 1
        cache.rewind(begin)
        text = joined(written)
        return text.tokens, text.count + 1

    def _follow(self, new: Observed) -> None:
        """Let the draft observe what a round has written."""
        self.rehearsed = self.passes + 1
        self.draft.observe(*new)
        self.ahead = new.count if self.ahead is None else self.ahead + new.count

    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """See `DraftSession.observe`."""
        if self.ahead is not None:
            self.draft.rewind(self.ahead)
        self.ahead, self.rehearsed = None, 0
        super().observe(tokens, features, count)

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        super().select(rows)
        if self.ahead is not None:
            self.ahead = self.ahead[rows]
