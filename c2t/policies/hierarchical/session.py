"""The draft of hierarchical speculation: the int4 target, which has a draft of its own."""

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
    """Tokens of int4 rounds: each row's root and the tokens generated after it, count[r] in all. tail: trees whose
    roots are the last of these tokens, without nodes in rows that have ended; None if all have."""

    tokens: Int[Tensor, "B m"]
    count: Int[Tensor, " B"]
    tail: Tree | None


class QuantizedStage(WrappedSession):
    """Session of the inner draft, whose trees the int4 target verifies before the target does.

    verifier: a `c2t.verification.target_verifier.TargetVerifier`, whose fork runs these rounds on the target's cache.
    The draft observes the tokens that they commit, and rewinds once the target has verified them. ahead: number of
    these tokens in each row. earlier_passes: draft forwards of the rounds so far. unfinished: rows that have not ended.
    """

    def __init__(self, draft: Session, verifier: Any):
        super().__init__(draft)
        self.verifier = verifier
        self.ahead: Int[Tensor, " B"] | None = None
        self.earlier_passes: Int[Tensor, " B"] | int = 0
        self.unfinished: Bool[Tensor, " B"] | bool = True

    @property
    def passes(self) -> Int[Tensor, " B"]:
        """Draft forwards of the round, those of the int4 verifier included."""
        return self.draft.passes * self.unfinished + self.earlier_passes

    def run_rounds(self, policy: Policy, rounds: int) -> StageTokens:
        """Run at most so many int4 rounds with a policy's trees, fewer if all rows end; else draft the tree of one
        more. A row that has ended stays in the batch with its root alone, and nothing of it is counted."""
        verifier = self.verifier.fork(self.verifier.session.quantized)
        begin = verifier.session.lengths
        self.unfinished = torch.ones_like(begin, dtype=torch.bool)
        count = torch.ones_like(begin)
        committed: list[Observed] = []
        tail = None
        unfinished_only = _UnfinishedRows(policy, self)
        while tail is None:
            step, new = speculate(self.draft, unfinished_only, verifier)
            committed.append(Observed(*new))
            count += new.count * self.unfinished
            self.earlier_passes = self.passes + self.unfinished
            going_on = verifier.unfinished(step)
            self.unfinished = self.unfinished & count.new_tensor([row in going_on for row in range(len(count))]).bool()
            if not self.unfinished.any():
                break
            self._observe_ahead(committed[-1])
            if len(committed) == rounds:
                tail, _ = guess(self.draft, unfinished_only, verifier)
        self.verifier.roll_back(begin)
        tokens = joined(committed).tokens[:, : int(count.max())]
        return StageTokens(tokens, count, tail)

    def _observe_ahead(self, new: Observed) -> None:
        """Let the draft observe the tokens of an int4 round."""
        self.draft.observe(*new)
        self.ahead = new.count if self.ahead is None else self.ahead + new.count

    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """See `c2t.protocols.Session.observe`."""
        if self.ahead is not None:
            self.draft.rewind(self.ahead)
        self.ahead, self.earlier_passes, self.unfinished = None, 0, True
        super().observe(tokens, features, count)

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        super().select(rows)
        if self.ahead is not None:
            self.ahead = self.ahead[rows]


class _UnfinishedRows:
    """The policy of int4 rounds, which drafts nothing in rows that have ended."""

    def __init__(self, policy: Policy, session: QuantizedStage):
        self.policy, self.session = policy, session
        self.proposal, self.exact, self.levels = policy.proposal, policy.exact, policy.levels

    def __call__(self, draft: Draft, root: Root) -> Tree:
        tree, unfinished = self.policy(draft, root), self.session.unfinished
        if not isinstance(unfinished, Tensor) or bool(unfinished.all()):
            return tree
        return replace(tree, alive=tree.alive & (unfinished[:, None] | (tree.depth < 0))).packed()
