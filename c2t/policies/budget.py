"""One budget of verified tokens for all requests of a batch, spent on the nodes that are most likely accepted."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from c2t.decoding import Verifier
from c2t.errors import InputError, at_least_one
from c2t.kernels.budget import Candidates, RoundModel, select_nodes
from c2t.policies.early_stop import EarlyStopDraft, StopDrafting, trees_to_verify
from c2t.policies.limits import Size
from c2t.policies.round_costs import LEAD, RoundCosts, RowCosts, best_gain
from c2t.policies.wrapper import WrapperPolicy
from c2t.protocols import Draft, Root, Session
from c2t.sessions.deferred import DeferredSession
from c2t.sessions.stateless import NoDraft
from c2t.sessions.wrapped import find
from c2t.storage.checked import check_fields
from c2t.tree import Tree

MOST_ROWS = 4096  # in a round; where none up to that drafts, no larger one does
STEP = 256  # tokens of a text after which its rounds are decided by other costs
LONGEST = 2**20  # tokens of a text: the gain of a tree only rises or only falls from none to so many


@dataclass(frozen=True)
class Budget(WrapperPolicy):
    """Verifies, of another policy's trees of all requests, the nodes that are most likely accepted. In a batch that no
    request joins, a token is weighted by the tokens that its sequence may still get (see `row_weights`).

    nodes: most tokens verified in a round, of all rows together, roots included; every row keeps its root. costs: of
    rounds on this machine. With costs, a level is drafted only if it is profitable (see `EarlyStopDraft`), and no level
    where no tree is profitable for so many rows. The number of verified nodes then maximises the expected tokens per
    second.

    The verified tokens depend on drafts, committed text, its limit and random numbers; the text does not. A row's tree
    depends on the other rows of its batch (`shared`); its text does not.
    """

    policy: Any
    nodes: int | None = None
    costs: RoundCosts | None = None

    proposal = "ranked"
    exact = True
    shared = True  # a row's trees depend on the other rows of its batch
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
        """See `Size`; one row may spend the whole budget. Drafting that stops early ends before the policy has chosen
        among its candidates."""
        tokens, candidates = self.policy.size
        tokens = tokens if self.costs is None else max(tokens, 1 + candidates)
        return Size(min(tokens, self.nodes or tokens), candidates)

    def session(self, draft: Session, rows: int, verifier: Verifier) -> Session:
        """Return a session that reads committed text when a tree is drafted; `NoDraft` where no round of up to `rows`
        rows drafts one. See `c2t.protocols.Policy`."""
        if self.costs and not self._ever_drafts(min(rows, MOST_ROWS)):
            return NoDraft()
        return BudgetSession(super().session(draft, rows, verifier), verifier)

    def __call__(self, draft: Draft, root: Root) -> Tree:
        rows, session = len(root.token), find(draft, BudgetSession)
        if self.costs is None:
            return most_probable(self.policy(draft, root), self.nodes - rows, weights_of(session, rows))
        costs = self._costs_of(rows, prefix_of(session))
        if not costs.drafts:
            return Tree.root(root.token)
        most = self.nodes and max(self.nodes - rows, 0)
        levels = EarlyStopDraft(draft, costs, most, weights_of(session, rows))
        try:
            return levels.finish(self.policy(levels, root))
        except StopDrafting as stopped:
            return stopped.tree

    def trimmed(self, tree: Tree, verifier: Verifier) -> Tree:
        """Return the part of trees to verify that have grown further since; see `c2t.protocols.Policy`."""
        rows, weights = len(tree.token), row_weights(verifier.left(), len(tree.token))
        if self.costs is None:
            return most_probable(tree, self.nodes - rows, weights)
        costs, most = self._costs_of(rows, mean(verifier.prefix)), self.nodes and max(self.nodes - rows, 0)
        candidates = Candidates(tree.log_joint, tree.alive, tree.parent, weights)
        model, spent = costs.model(tree.token.numel(), 0), costs.start + costs.level(rows)
        return trees_to_verify(tree, select_nodes(candidates, tree.parent[:, :0], model, spent, most))

    def _costs_of(self, rows: int, prefix: float) -> RowCosts:
        """Return the costs of a round after so many tokens, rounded down to a multiple of STEP."""
        key = rows, int(prefix) // STEP * STEP
        if key not in self._arrays:
            self._arrays[key] = RowCosts(self.costs, *key)
        return self._arrays[key]

    def _ever_drafts(self, rows: int) -> bool:
        """Return True if rounds of up to `rows` rows may draft."""
        if rows not in self._ever:
            sizes = [(count, prefix) for count in range(1, rows + 1) for prefix in (0, LONGEST)]
            self._ever[rows] = any(best_gain(self.costs, *size) > 1 + LEAD for size in sizes)
        return self._ever[rows]

    @cached_property
    def _ever(self) -> dict[int, bool]:
        return {}

    @cached_property
    def _arrays(self) -> dict[tuple[int, int], RowCosts]:
        return {}


class BudgetSession(DeferredSession):
    """Session of the inner draft, which reads committed text only when a tree is drafted."""

    def __init__(self, draft: Session, verifier: Verifier):
        super().__init__(draft)
        self.verifier = verifier


def weights_of(session: BudgetSession | None, rows: int) -> list[float]:
    """Return the `row_weights` of a session; without one they are all 1."""
    return row_weights(None if session is None else session.verifier.left(), rows)


def row_weights(left: Sequence[int] | None, rows: int) -> list[float]:
    """Return the weight of each row's tokens, 1 on average: proportional to the tokens that its sequence may still get.

    The last sequence decides when a batch is done, and rounds of few rows cost nearly as much as those of many. Where
    new requests join the batch (None), all weights are 1.
    """
    if left is None:
        return [1.0] * rows
    average = mean(left)
    return [tokens / average for tokens in left]


def prefix_of(session: BudgetSession | None) -> float:
    """Return the mean number of tokens before a session's trees."""
    return 0.0 if session is None else mean(session.verifier.prefix)


def mean(numbers: Sequence[int]) -> float:
    """Return the mean, by hand: between two forwards numpy takes 0.1 ms for a few numbers."""
    return sum(numbers) / len(numbers)


def most_probable(tree: Tree, count: int, weights: Sequence[float]) -> Tree:
    """Return the trees with their roots and the `count` nodes of all rows with the largest weighted joint
    probability."""
    tokens = tree.token.numel()
    free = RoundModel(verify=np.ones(tokens + 1), draft=np.ones(1))  # further tokens cost nothing
    candidates = Candidates(tree.log_joint, tree.alive, tree.parent, weights)
    return trees_to_verify(tree, select_nodes(candidates, tree.parent[:, :0], free, 0.0, max(count, 0)))
