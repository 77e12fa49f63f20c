"""The draft of hierarchical speculation: the target in 4 bits, which has a draft of its own."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from c2t.models.deferred import Observed, joined
from c2t.models.draft import DraftSession, NoDraft, WrappedSession
from c2t.tree import Tree


class Rehearsal(NamedTuple):
    """Texts that coarse rounds have written: each row's root and the tokens after it, count[r] in all. tail: trees
    whose roots are the last of these tokens; None where all texts end before."""

    tokens: Int[Tensor, "B m"]
    count: Int[Tensor, " B"]
    tail: Tree | None


class RehearsingSession(WrappedSession):
    """Session of the inner draft, whose guesses a coarse verifier accepts or not before the target sees them.

    coarse: returns a verifier in 4 bits that stands where the target stands, on the target's own cache. speculate,
    guess: play a round of it, and draft the tree of one, as in `c2t.decoding`. The draft observes what the rounds
    write; once the target has spoken it forgets that again. ahead: how much that is, in tokens of each row. before:
    passes of the rounds played so far.
    """

    def __init__(
        self,
        draft: DraftSession | WrappedSession | NoDraft,
        coarse: Callable[[], Any],
        speculate: Callable,
        guess: Callable,
    ):
        super().__init__(draft)
        self.coarse, self.speculate, self.guess = coarse, speculate, guess
        self.ahead: Int[Tensor, " B"] | None = None
        self.before: Int[Tensor, " B"] | int = 0

    @property
    def passes(self) -> Int[Tensor, " B"]:
        """Draft forwards of the round, those of the coarse verifier included."""
        return self.draft.passes + self.before

    def rehearse(self, policy: Callable, rounds: int) -> Rehearsal:
        """Play at most so many coarse rounds with a policy's trees, fewer where all texts end before; else draft the
        tree of one more."""
        verifier = self.coarse()
        cache, begin = verifier.session.cache, verifier.session.lengths
        written: list[Observed] = []
        tail = None
        while tail is None:
            step, new = self.speculate(self.draft, policy, verifier)
            written.append(Observed(*new))
            if not verifier.unfinished(step):
                self.before = self.before + 1
                break
            self._follow(written[-1])
            if len(written) == rounds:
                tail, _ = self.guess(self.draft, policy, verifier)
        cache.return_to(begin)
        text = joined(written)
        return Rehearsal(text.tokens, text.count + 1, tail)

    def _follow(self, new: Observed) -> None:
        """Let the draft observe what a round has written."""
        self.before = self.passes + 1
        self.draft.observe(*new)
        self.ahead = new.count if self.ahead is None else self.ahead + new.count

    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """See `DraftSession.observe`."""
        if self.ahead is not None:
            self.draft.rewind(self.ahead)
        self.ahead, self.before = None, 0
        super().observe(tokens, features, count)

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        super().select(rows)
        if self.ahead is not None:
            self.ahead = self.ahead[rows]
