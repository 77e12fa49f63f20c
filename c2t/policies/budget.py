"""One budget of verified tokens for all requests of a batch, spent on the nodes that are most likely accepted."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from c2t.decoding import Step, Verifier
from c2t.errors import InputError, at_least_one
from c2t.kernels.paying import Guesses, confidences, worth_most
from c2t.policies.around import Around
from c2t.policies.limits import Size
from c2t.policies.pace import HOPELESS, Pace
from c2t.policies.paying_levels import Enough, PayingLevels
from c2t.policies.round_costs import DOUBT, Promise, RoundCosts, RowCosts, best_promise
from c2t.protocols import Draft, Root, Session
from c2t.sessions.deferred import DeferredSession
from c2t.sessions.stateless import NoDraft
from c2t.sessions.wrapped import find
from c2t.storage.checked import check_fields
from c2t.tree import Tree


class Known(NamedTuple):
    """Costs and promise of rounds of some number of rows. timed: the costs of rounds that are timed."""

    costs: RowCosts
    promised: Promise
    timed: RowCosts


@dataclass(frozen=True)
class Budget(Around):
    """Drafts trees by `policy`, and verifies those of their nodes, over all rows, that are most likely accepted. Where
    no text takes the place of one that ends, a token counts for as much as its text may still get (see `row_weights`).

    nodes: tokens verified in a round at most, of all rows together, roots included; every row keeps its root. costs:
    of rounds on this machine. With them a level is drafted only if it pays (see `PayingLevels`), none at all where that
    does not pay for so many rows, and as many nodes are verified as promise most tokens per second. pace: of the rounds
    that were played, which then decides for so many rows instead of the costs; see `Pace`.

    Which tokens are verified depends on drafts, committed text, its limit, random numbers and, with a pace, the clock;
    the text does not. A row's tree depends on the other rows of its batch (`shared`); its text does not.
    """

    policy: Any
    nodes: int | None = None
    costs: RoundCosts | None = None
    pace: Pace | None = field(default=None, compare=False, repr=False)

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
        if self.never_drafts(rows):
            return NoDraft()
        return BudgetSession(super().session(draft, rows, verifier), verifier, self.pace)

    def __call__(self, draft: Draft, root: Root) -> Tree:
        rows, session = len(root.token), find(draft, BudgetSession)
        if self.costs is None:
            tree = self.policy(draft, root)
            return worth_most_of(tree, self.confidence(tree), row_weights(session, rows), self.nodes - rows)
        costs = self._for_rows(rows, session)
        if costs is None:
            return Tree.root(root.token)
        most = self.nodes and max(self.nodes - rows, 0)
        levels = PayingLevels(draft, costs, self.guesses, most, row_weights(session, rows))
        try:
            return levels.finish(self.policy(levels, root))
        except Enough as stopped:
            return stopped.tree

    def guesses(self, tree: Tree, worth: Sequence[float]) -> Guesses:
        """Return how probable each drafted node is, as the policy knows it: by its classifier, else by the joint
        probability under the draft."""
        by_classifier = getattr(self.policy, "scores_are_confidences", False)
        known = tree.score if by_classifier else tree.log_joint
        return Guesses(known, not by_classifier, tree.alive, tree.parent, worth)

    def confidence(self, tree: Tree) -> Float[np.ndarray, "B n"]:
        """Return the probability that each drafted node is accepted, see `c2t.kernels.paying.confidences`."""
        return confidences(self.guesses(tree, [1.0] * len(tree.token)))

    def never_drafts(self, rows: int) -> bool:
        """Return True if no round of at most so many rows can draft: they are plain decoding's, then."""
        least = 1 + DOUBT if self.pace is None else HOPELESS
        return self.costs is not None and all(self._of(each).promised.gain < least for each in range(1, rows + 1))

    def _for_rows(self, rows: int, session: "BudgetSession | None") -> RowCosts | None:
        """Return the costs of a round of so many rows, None if it does not draft. A pace decides in rounds that are
        timed; others go by the costs."""
        costs, promised, timed = self._of(rows)
        if session is None or session.pace is None:
            return costs if promised.gain > 1 + DOUBT else None
        if promised.gain < HOPELESS:
            return None
        return timed if session.pace.drafts(timed, promised, session.fixed) else None

    def _of(self, rows: int) -> Known:
        if rows not in self._known:
            costs, drift = self.costs, None if self.pace is None else self.pace.drift
            self._known[rows] = Known(RowCosts(costs, rows), best_promise(costs, rows), RowCosts(costs, rows, drift))
        return self._known[rows]

    @cached_property
    def _known(self) -> dict[int, Known]:
        return {}


class BudgetSession(DeferredSession):
    """Session of the inner draft, which reads committed text only when it is asked for a guess, and times the rounds of
    a live batch for the pace. fixed: no row takes the place of one that ends."""

    def __init__(self, draft: Session, verifier: Verifier, pace: Pace | None):
        super().__init__(draft)
        self.verifier, self.fixed = verifier, verifier.left() is not None
        self.pace = pace if verifier.live else None
        self.joined = True  # a row has joined since the last round
        if self.pace is not None and self.fixed:
            self.pace.restart()

    def end(self, step: Step) -> None:
        """See `c2t.protocols.Session.end`. A round in which a row has joined is not timed: it also reads the prompt."""
        super().end(step)
        if self.pace is not None:
            self.pace.end(step, usual=not self.joined)
        self.joined = False

    def join(self, other: "BudgetSession") -> None:
        """See `c2t.protocols.Session.join`."""
        super().join(other)
        self.joined = True


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


def worth_most_of(tree: Tree, confidence: Float[np.ndarray, "B n"], worth: Sequence[float], count: int) -> Tree:
    """Return the trees with their roots and the `count` nodes of all rows whose confidence is worth most."""
    if count >= (confidence >= 0).sum():
        return tree
    chosen = worth_most(np.array(worth)[:, None] * confidence, confidence, count)
    return replace(tree, alive=torch.from_numpy(chosen).to(tree.alive.device)).packed()
