"""A draft that runs over committed tokens only before it drafts again, so that rounds without a tree have no draft
forward."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.protocols import Grown, NextTokenDistributions, Root, Session, grow_tree_of
from c2t.sessions.wrapped import WrappedSession
from c2t.tree import Tree


class Observed(NamedTuple):
    """Arguments of one call of `c2t.protocols.Session.observe`."""

    tokens: Int[Tensor, "B n"]
    features: Float[Tensor, "B n-1 H"]
    count: Int[Tensor, " B"]


class DeferredSession(WrappedSession):
    """Session of the inner draft, which observes the tokens committed since it last drafted in one forward.

    backlog: what it has not observed yet, one entry per round.
    """

    def __init__(self, draft: Session):
        super().__init__(draft)
        self.backlog: list[Observed] = []

    @property
    def passes(self) -> Int[Tensor, " B"]:
        """Draft forwards of the round: 0 while there is a backlog."""
        return torch.zeros_like(self.backlog[-1].count) if self.backlog else self.draft.passes

    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """Add committed tokens to the backlog; see `c2t.protocols.Session.observe`."""
        self.backlog.append(Observed(tokens, features, count))

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`."""
        self._catch_up()
        return self.draft.expand(tree, slots)

    def grow_tree(self, plan: Any, root: Root, **inputs: Any) -> Grown | None:
        """See `c2t.models.drafts.session.DraftSession.grow_tree`."""
        self._catch_up()
        return grow_tree_of(self.draft, plan, root, **inputs)

    def rewind(self, back: Int[Tensor, " B"]) -> None:
        """See `c2t.models.drafts.session.DraftSession.rewind`."""
        self._catch_up()
        self.draft.rewind(back)

    def refuse_nan(self) -> None:
        """See `c2t.protocols.Session.refuse_nan`; a round that drafted nothing has no NaN."""
        if not self.backlog:
            self.draft.refuse_nan()

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        self.backlog = [Observed(*(part[rows] for part in observed)) for observed in self.backlog]
        self.draft.select(rows)

    def join(self, other: "DeferredSession") -> None:
        """See `c2t.protocols.Session.join`."""
        self._catch_up()
        other._catch_up()
        super().join(other)

    def _catch_up(self) -> None:
        """Let the draft observe the whole backlog in one forward."""
        if self.backlog:
            self.draft.observe(*joined(self.backlog))
            self.backlog = []


def joined(backlog: list[Observed]) -> Observed:
    """Return several calls of `observe` as one: each row's tokens and features concatenated, padded on the right."""
    if len(backlog) == 1:
        return backlog[0]
    counts = torch.stack([observed.count for observed in backlog])
    count, starts = counts.sum(0), counts.cumsum(0) - counts
    longest = int(count.max())
    room = longest + max(observed.tokens.shape[1] for observed in backlog)  # for the padding after a row's last tokens
    first = backlog[0]
    tokens = first.tokens.new_zeros(len(count), room)
    features = first.features.new_zeros(len(count), room, first.features.shape[2])
    for start, observed in zip(starts, backlog, strict=True):
        # A round's first token is the last one of the previous round, and its padding is overwritten by the next round.
        index = start[:, None] + torch.arange(observed.tokens.shape[1], device=start.device)
        tokens.scatter_(1, index, observed.tokens)
        features.scatter_(1, index[:, :-1, None].expand_as(observed.features), observed.features)
    return Observed(tokens[:, : longest + 1], features[:, :longest], count)
