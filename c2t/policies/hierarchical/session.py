"""The draft of hierarchical speculation: the target in 4 bits, which has a draft of its own."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.decoding import guess, speculate
from c2t.protocols import Draft, Policy, Root, Session
from c2t.sessions.deferred import Observed, joined
from c2t.sessions.wrapped import WrappedSession
from c2t.tree import Tree


class StageTokens(NamedTuple):
    """Texts that int4 rounds have written: each row's root and the tokens after it, count[r] in all. tail: trees
    whose roots are the last of these tokens, without nodes in rows whose texts end before; None where all do."""

    tokens: Int[Tensor, "B m"]
    count: Int[Tensor, " B"]
    tail: Tree | None


class QuantizedStage(WrappedSession):
    """Session of the inner draft, whose guesses the target in 4 bits accepts or not before the target sees them.

    verifier: a `c2t.verification.target_verifier.TargetVerifier`, whose fork runs these rounds, on the target's own
    cache. The draft observes what they commit; once the target has spoken it forgets that again. ahead: how much that
    is, in tokens of each row. before: passes of the rounds so far. going: the rows whose sequences go on after them.
    """

    def __init__(self, draft: Session, verifier: Any):
        super().__init__(draft)
        self.verifier = verifier
        self.ahead: Int[Tensor, " B"] | None = None
        self.before: Int[Tensor, " B"] | int = 0
        self.going: Bool[Tensor, " B"] | bool = True

    @property
    def passes(self) -> Int[Tensor, " B"]:
        """Draft forwards of the round, those of the int4 verifier included."""
        return self.draft.passes * self.going + self.before

    def run_rounds(self, policy: Policy, rounds: int) -> StageTokens:
        """Play at most so many int4 rounds with a policy's trees, fewer where all texts end before; else draft the
        tree of one more. A row whose text has ended is beside the others with roots alone, which count for nothing."""
        verifier = self.verifier.fork(self.verifier.session.quantized)
        cache, begin = verifier.session.cache, verifier.session.lengths
        self.going = torch.ones_like(begin, dtype=torch.bool)
        count = torch.ones_like(begin)
        written: list[Observed] = []
        tail = None
        guesses = _OfGoing(policy, self)
        while tail is None:
            step, new = speculate(self.draft, guesses, verifier)
            written.append(Observed(*new))
            count += new.count * self.going
            self.before = self.passes + self.going
            unfinished = verifier.unfinished(step)
            self.going = self.going & torch.tensor([row in unfinished for row in range(len(count))]).to(count.device)
            if not self.going.any():
                break
            self._follow(written[-1])
            if len(written) == rounds:
                tail, _ = guess(self.draft, guesses, verifier)
        cache.return_to(begin)
        tokens = joined(written).tokens[:, : int(count.max())]
        return StageTokens(tokens, count, tail)

    def _follow(self, new: Observed) -> None:
        """Let the draft observe what a round has written."""
        self.draft.observe(*new)
        self.ahead = new.count if self.ahead is None else self.ahead + new.count

    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """See `c2t.protocols.Session.observe`."""
        if self.ahead is not None:
            self.draft.rewind(self.ahead)
        self.ahead, self.before, self.going = None, 0, True
        super().observe(tokens, features, count)

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        super().select(rows)
        if self.ahead is not None:
            self.ahead = self.ahead[rows]


class _OfGoing:
    """A rehearsal's policy, which guesses nothing in rows whose texts have ended."""

    def __init__(self, policy: Policy, session: QuantizedStage):
        self.policy, self.session = policy, session
        self.proposal, self.exact, self.levels = policy.proposal, policy.exact, policy.levels

    def __call__(self, draft: Draft, root: Root) -> Tree:
        tree, going = self.policy(draft, root), self.session.going
        if not isinstance(going, Tensor) or bool(going.all()):
            return tree
        return replace(tree, alive=tree.alive & (going[:, None] | (tree.depth < 0))).packed()
