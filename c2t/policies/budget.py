"""One budget of verified tokens for all requests of a batch, spent on the nodes that are most likely accepted."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from c2t.decoding import Verifier
from c2t.errors import InputError, at_least_one
from c2t.kernels.budget import Candidates, RoundModel, select_nodes
from c2t.policies.early_stop import EarlyStopDraft, StopDrafting, kept
from c2t.policies.limits import Size
from c2t.policies.round_costs import RoundCosts, RowCosts
from c2t.policies.wrapper import WrapperPolicy
from c2t.protocols import Draft, Root, Session
from c2t.sessions.deferred import DeferredSession
from c2t.sessions.stateless import NoDraft
from c2t.sessions.wrapped import find
from c2t.storage.checked import check_fields
from c2t.tree import Tree


@dataclass(frozen=True)
class Budget(WrapperPolicy):
    """Drafts trees by `policy`, and verifies those of their nodes, over all rows, that are most likely accepted. Where
    no text takes the place of one that ends, a token counts for as much as its text may still get (see `row_weights`).

    nodes: tokens verified in a round at most, of all rows together, roots included; every row keeps its root. costs:
    of rounds on this machine. With them a level is drafted only if it is profitable (see `EarlyStopDraft`), none at all
    where no tree is for so many rows, and as many nodes are verified as have most expected tokens per second.

    Which tokens are verified depends on drafts, committed text, its limit and random numbers; the text does not. A
    row's tree depends on the other rows of its batch (`shared`); its text does not.
    """

    policy: Any
    nodes: int | None = None
    costs: RoundCosts | None = None

    proposal = "ranked"
    exact = True
    shared = True  # by all rows of a batch: a row's trees are others alone
    bench = ()
    sweep = ()
    tune = ("",)

    def __post_init__(self):
        self.check_inner()
        check_fields(self)
        at_least_one(self, "nodes")
        if self.nodes is None and self.costs is None:
            raise InputError("Budget: give nodes, or costs that were measured on this machine")
        if self.costs is not None:
            self.costs.check()
            if len(self.costs.profile.accepted) != self.policy.levels:
                measured = len(self.costs.profile.accepted)
                raise InputError(
                    f"Budget: the costs were measured with trees of {measured} levels, and the policy drafts "
                    f"{self.policy.levels}: measure them again"
                )

    @property
    def size(self) -> Size:
        """See `Size`; a row alone may spend the whole budget. Drafting that stops early leaves the policy no time to
        choose among its candidates."""
        tokens, candidates = self.policy.size
        tokens = tokens if self.costs is None else max(tokens, 1 + candidates)
        return Size(min(tokens, self.nodes or tokens), candidates)

    def session(self, draft: Session, rows: int, verifier: Verifier) -> Session:
        """Return a session that reads committed text when a tree is drafted, none where no round of so many rows drafts
        one; see `c2t.protocols.Policy`."""
        if self.costs and not any(self._for_rows(each).drafts for each in range(1, rows + 1)):
            return NoDraft()
        return BudgetSession(super().session(draft, rows, verifier), verifier)

    def __call__(self, draft: Draft, root: Root) -> Tree:
        rows, session = len(root.token), find(draft, BudgetSession)
        if self.costs is None:
            return most_probable(self.policy(draft, root), self.nodes - rows, row_weights(session, rows))
        costs = self._for_rows(rows)
        if not costs.drafts:
            return Tree.root(root.token)
        most = self.nodes and max(self.nodes - rows, 0)
        levels = EarlyStopDraft(draft, costs, most, row_weights(session, rows))
        try:
            return levels.finish(self.policy(levels, root))
        except StopDrafting as stopped:
            return stopped.tree

    def _for_rows(self, rows: int) -> RowCosts:
        if rows not in self._known:
            self._known[rows] = RowCosts(self.costs, rows)
        return self._known[rows]

    @cached_property
    def _known(self) -> dict[int, RowCosts]:
        return {}


class BudgetSession(DeferredSession):
    """Session of the inner draft, which reads committed text only when it is asked for a guess."""

    def __init__(self, draft: Session, verifier: Verifier):
        super().__init__(draft)
        self.verifier = verifier


def row_weights(session: BudgetSession | None, rows: int) -> list[float]:
    """Return what a token of each row is worth, 1 on average: as much as the row's sequence may still get.

    The last sequence decides when a batch is done, and rounds of few rows cost nearly as much as those of many. Where
    others take the places of those that end, all tokens are worth the same.
    """
    left = None if session is None else session.verifier.left()
    if left is None:
        return [1.0] * rows
    mean = sum(left) / len(left)  # by hand: between two forwards numpy takes 0.1 ms for these few numbers
    return [tokens / mean for tokens in left]


def most_probable(tree: Tree, count: int, worth: Sequence[float]) -> Tree:
    """Return the trees with their roots and the `count` nodes of all rows whose joint probability is worth most."""
    tokens = tree.token.numel()
    free = RoundModel(verify=np.ones(tokens + 1), draft=np.ones(1))  # a token more is for nothing
    guesses = Candidates(tree.log_joint, tree.alive, tree.parent, worth)
    return kept(tree, select_nodes(guesses, tree.parent[:, :0], free, 0.0, max(count, 0)))
