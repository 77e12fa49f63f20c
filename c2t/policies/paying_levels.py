"""Drafting only what pays: a level is drafted if with it a tree promises more tokens per second than without."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.policies.round_costs import RoundCosts
from c2t.protocols import Draft, NextTokenDistributions
from c2t.tree import Tree

Confidence = Callable[[Tree], Float[np.ndarray, "B n"]]  # of drafted nodes; below 0 for roots and dead slots


class Enough(Exception):
    """Ends a policy's drafting: no further level of `tree` pays."""

    def __init__(self, tree: Tree):
        super().__init__()
        self.tree = tree


class PayingLevels:
    """Draft of one round that raises `Enough` before a level that does not pay, and expands only those nodes of a level
    whose children pay.

    What a level promises are the children that such nodes had on other texts (see `Children`); what it takes are its
    draft forward and the verification of those children. The draft's guesses and the costs decide, nothing else.
    widths: tokens of all rows in each draft forward of the round.
    """

    def __init__(self, draft: Draft, costs: RoundCosts, confidence: Confidence):
        self.draft, self.costs, self.confidence = draft, costs, confidence
        self.widths: list[int] = []

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `Draft.expand`; raises `Enough`. The root is always expanded."""
        if not self.widths:
            self.widths.append(len(slots))
            return self.draft.expand(tree, slots)
        paying = self._paying(tree, slots.cpu().numpy())
        if not paying.any():
            raise Enough(tree)
        self.widths.append(int(paying.sum()))
        expanded = torch.from_numpy(paying).to(slots.device)
        return Narrowed(self.draft.expand(tree, torch.where(expanded, slots, -1)), expanded)

    def _paying(self, tree: Tree, slots: Int[np.ndarray, "B F"]) -> Bool[np.ndarray, "B F"]:
        """Return which of the slots to expand: those with a child among the nodes that would be verified, if the tree
        with their children promises a higher rate than without; else none."""
        rows, profile = len(slots), self.costs.profile
        confidence = self.confidence(tree)
        drafted = profile.calibration.at(confidence[confidence >= 0])
        asked = slots >= 0
        children = profile.children.of(np.take_along_axis(confidence, slots, 1)[asked])
        promised = falling(drafted, children)
        verified, _ = self.costs.best(rows, [*self.widths, len(children)], promised)
        if verified == 0:
            return np.zeros_like(asked)
        pays = children.max(1, initial=0.0) >= promised[verified - 1]
        _, with_level = self.costs.best(rows, [*self.widths, int(pays.sum())], falling(drafted, children[pays]))
        _, without = self.costs.best(rows, self.widths, falling(drafted))
        asked[asked] = pays & (with_level > without)
        return asked


def falling(*likely: Float[np.ndarray, "..."]) -> Float[np.ndarray, " n"]:
    """Return all of these probabilities, the largest first."""
    return -np.sort(-np.concatenate([each.ravel() for each in likely]))


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
