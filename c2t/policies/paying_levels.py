"""Drafting only what pays: a level is drafted if with it a tree promises more tokens per second than without."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.policies.round_costs import RowCosts
from c2t.protocols import Draft, NextTokenDistributions
from c2t.tree import Tree

Confidence = Callable[[Tree], Float[np.ndarray, "B n"]]  # of drafted nodes; below 0 for roots and dead slots


class Chosen(NamedTuple):
    """Nodes of a round's trees to verify: the `count` most confident ones, which promise `rate` tokens per second.
    likely: the probabilities that drafted nodes are accepted, the largest first."""

    confidence: Float[np.ndarray, "B n"]
    likely: Float[np.ndarray, " m"]
    count: int
    rate: float


class Enough(Exception):
    """Ends a policy's drafting: no further level of `tree` pays, and what to verify of it is `chosen`."""

    def __init__(self, tree: Tree, chosen: Chosen):
        super().__init__()
        self.tree, self.chosen = tree, chosen


class PayingLevels:
    """Draft of one round that raises `Enough` before a level that does not pay, and expands only those nodes of a level
    whose children pay.

    What a level promises are the children that such nodes had on other texts (see `Children`); what it takes are its
    draft forward and the verification of those children. The draft's guesses and the costs decide, nothing else.
    most: nodes of all rows to verify, None for any number.
    """

    def __init__(self, draft: Draft, costs: RowCosts, confidence: Confidence, most: int | None = None):
        self.draft, self.costs, self.confidence, self.most = draft, costs, confidence, most
        self.spent = 0.0  # seconds of the round up to here

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `Draft.expand`; raises `Enough`. The root is always expanded."""
        if not self.spent:
            self.spent = self.costs.start + self.costs.level(len(slots))
            return self.draft.expand(tree, slots)
        chosen = self.choose(tree)
        paying = self._paying(chosen, slots.cpu().numpy())
        width = int(paying.sum())
        if not width:
            raise Enough(tree, chosen)
        self.spent += self.costs.level(width)
        if width == paying.size:
            return self.draft.expand(tree, slots)
        expanded = torch.from_numpy(paying).to(slots.device)
        return Narrowed(self.draft.expand(tree, torch.where(expanded, slots, -1)), expanded)

    def choose(self, tree: Tree) -> Chosen:
        """Return which nodes to verify if nothing more is drafted."""
        confidence = self.confidence(tree)
        likely = falling(self.costs.likely(confidence[confidence >= 0]))
        return Chosen(confidence, likely, *self.costs.best(self.spent, likely[: self.most]))

    def _paying(self, without: Chosen, slots: Int[np.ndarray, "B F"]) -> Bool[np.ndarray, "B F"]:
        """Return which of the slots to expand: those with a child among the nodes that would be verified, if the tree
        with their children promises a higher rate than without; else none."""
        asked = slots >= 0
        children = self.costs.children(without.confidence[np.arange(len(slots))[:, None], slots][asked])
        promised, count, rate = self._with(without, children)
        pays = children[:, 0] >= (promised[count - 1] if count else 1.0)
        if not pays.all():
            _, _, rate = self._with(without, children[pays])
        asked[asked] = pays & (rate > without.rate)
        return asked

    def _with(self, without: Chosen, children: Float[np.ndarray, "n k"]) -> tuple[Float[np.ndarray, " m"], int, float]:
        """Return the probabilities of all nodes if these children are drafted, how many to verify, and the rate."""
        promised = falling(np.concatenate([without.likely, children.ravel()]))
        spent = self.spent + self.costs.level(len(children))
        return promised, *self.costs.best(spent, promised[: self.most])


def falling(likely: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return these probabilities, the largest first."""
    return np.sort(likely)[::-1]


class Narrowed(NextTokenDistributions):
    """Distributions of which only some slots were expanded: the others have no candidates, each of probability 0."""

    def __init__(self, found: NextTokenDistributions, expanded: Bool[Tensor, "B F"]):
        self.found, self.expanded = found, expanded

    def topk_entropy(
        self, k: int, m: int | None
    ) -> tuple[Int[Tensor, "B F K"], Float[Tensor, "B F K"], Float[Tensor, "B F"]]:
        """See `NextTokenDistributions.topk_entropy`."""
        token, log_prob, entropy = self.found.topk_entropy(k, m)
        return token, log_prob.masked_fill(~self.expanded[..., None], float("-inf")), entropy
