"""Early stop of drafting: a level is drafted only if it raises the expected tokens per second."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.kernels.budget import Candidates, Decision, select_nodes
from c2t.kernels.draft_phase import BudgetInput
from c2t.kernels.level_plan import LevelPlan
from c2t.policies.round_costs import RowCosts
from c2t.protocols import Draft, Grown, NextTokenDistributions, Root, grow_tree_of
from c2t.tree import Tree


class StopDrafting(Exception):
    """Ends a policy's drafting, because no further level is profitable; `tree` is to be verified."""

    def __init__(self, tree: Tree):
        super().__init__()
        self.tree = tree


class EarlyStopDraft:
    """Draft of one round that raises `StopDrafting` before a level that is not profitable, and expands only those nodes
    of a level whose children are (see `c2t.kernels.budget.select_nodes`).

    A level is expected to add a child of each such node, with a share of its probability (`CHILD`). It costs its draft
    forward and the verification of those children. Only draft probabilities, costs and row weights decide. most: nodes
    of all rows to verify, None for any number. row_weights: of the tokens of each row, see `c2t.policies.budget`.
    """

    def __init__(self, draft: Draft, costs: RowCosts, most: int | None, row_weights: Sequence[float]):
        self.draft, self.costs, self.most, self.row_weights = draft, costs, most, row_weights
        self.spent = 0.0  # seconds of the round so far
        self.decided = False

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `Draft.expand`; raises `StopDrafting`. The root is always expanded."""
        if not self.spent:
            self.spent = self.costs.start + self.costs.level(len(slots))
            return self.draft.expand(tree, slots)
        # Candidates without probability stand for nodes that were not expanded.
        possible = tree.log_joint.gather(1, slots.clamp(min=0)) > -math.inf
        decision = self._decide(tree, torch.where(possible, slots, -1))
        if not decision.width:
            raise StopDrafting(trees_to_verify(tree, decision))
        self.spent += self.costs.level(decision.width)
        if decision.width == slots.numel():
            return self.draft.expand(tree, slots)
        return MaskedDistributions(self.draft.expand(tree, torch.where(decision.expand, slots, -1)), decision.expand)

    def grow_tree(self, plan: LevelPlan, root: Root, **inputs: Any) -> Grown | None:
        """See `c2t.models.drafts.session.DraftSession.grow_tree`: the draft makes the decisions of `expand` and
        `finish`."""
        budget_input = BudgetInput(self.costs.start, self.costs.model, self.most, self.row_weights)
        grown = grow_tree_of(self.draft, plan, root, **inputs, budget_input=budget_input)
        self.decided = grown is not None
        return grown

    def finish(self, tree: Tree) -> Tree:
        """Return the part of a finished tree that is to be verified."""
        if self.decided:
            return tree
        return trees_to_verify(tree, self._decide(tree, tree.parent[:, :0]))

    def _decide(self, tree: Tree, slots: Int[Tensor, "B F"]) -> Decision:
        candidates = Candidates(tree.log_joint, tree.alive, tree.parent, self.row_weights)
        model = self.costs.model(tree.token.numel(), slots.numel())
        return select_nodes(candidates, slots, model, self.spent, self.most)


def trees_to_verify(tree: Tree, decision: Decision) -> Tree:
    """Return the trees of the slots to verify."""
    return replace(tree, alive=decision.keep).select(decision.order[:, : decision.size])


class MaskedDistributions(NextTokenDistributions):
    """Distributions of which only some slots were expanded: the candidates of other slots have probability 0."""

    def __init__(self, distributions: NextTokenDistributions, expanded: Bool[Tensor, "B F"]):
        self.distributions, self.expanded = distributions, expanded
        self.hidden, self.vocabulary = distributions.hidden, distributions.vocabulary
        if distributions.confidence is not None:
            self.confidence = distributions.confidence.where(expanded, 0)

    @property
    def size(self) -> int:
        """See `NextTokenDistributions.size`."""
        return self.distributions.size

    def topk_entropy(
        self, k: int, m: int | None
    ) -> tuple[Int[Tensor, "B F K"], Float[Tensor, "B F K"], Float[Tensor, "B F"]]:
        """See `NextTokenDistributions.topk_entropy`."""
        token, log_prob, entropy = self.distributions.topk_entropy(k, m)
        return token, log_prob.masked_fill(~self.expanded[..., None], float("-inf")), entropy
