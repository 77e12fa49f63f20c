"""Drafting only what pays: a level is drafted if with it a tree promises more tokens per second than without."""

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
    """Ends a policy's drafting, because no further level pays; `tree` is what to verify."""

    def __init__(self, tree: Tree):
        super().__init__()
        self.tree = tree


class EarlyStopDraft:
    """Draft of one round that raises `StopDrafting` before a level that is not profitable, and expands only those nodes
    of a level whose children are (see `c2t.kernels.budget.select_nodes`).

    What a level promises is a child of each such node, of a share of its probability (`CHILD`); what it takes are its
    draft forward and the verification of those children. The draft's guesses, the costs and what rows are worth
    decide, nothing else. most: nodes of all rows to verify, None for any number. worth: what a token of each row is
    worth.
    """

    def __init__(self, draft: Draft, costs: RowCosts, most: int | None, worth: Sequence[float]):
        self.draft, self.costs, self.most, self.worth = draft, costs, most, worth
        self.spent = 0.0  # seconds of the round up to here
        self.decided = False

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `Draft.expand`; raises `StopDrafting`. The root is always expanded."""
        if not self.spent:
            self.spent = self.costs.start + self.costs.level(len(slots))
            return self.draft.expand(tree, slots)
        # Candidates without probability stand for nodes that were not expanded.
        possible = tree.log_joint.gather(1, slots.clamp(min=0)) > -math.inf
        found = self._decide(tree, torch.where(possible, slots, -1))
        if not found.width:
            raise StopDrafting(kept(tree, found))
        self.spent += self.costs.level(found.width)
        if found.width == slots.numel():
            return self.draft.expand(tree, slots)
        return MaskedDistributions(self.draft.expand(tree, torch.where(found.expand, slots, -1)), found.expand)

    def grow_tree(self, plan: LevelPlan, root: Root, **inputs: Any) -> Grown | None:
        """See `c2t.models.drafts.session.DraftSession.grow_tree`: the draft decides as `expand` and `finish` do."""
        budget_input = BudgetInput(self.costs.start, self.costs.model, self.most, self.worth)
        grown = grow_tree_of(self.draft, plan, root, **inputs, budget_input=budget_input)
        self.decided = grown is not None
        return grown

    def finish(self, tree: Tree) -> Tree:
        """Return what to verify of a tree that the policy has finished."""
        if self.decided:
            return tree
        return kept(tree, self._decide(tree, tree.parent[:, :0]))

    def _decide(self, tree: Tree, slots: Int[Tensor, "B F"]) -> Decision:
        guesses = Candidates(tree.log_joint, tree.alive, tree.parent, self.worth)
        return select_nodes(guesses, slots, self.costs.model(tree.token.numel(), slots.numel()), self.spent, self.most)


def kept(tree: Tree, found: Decision) -> Tree:
    """Return the trees of the slots to verify."""
    return replace(tree, alive=found.keep).select(found.order[:, : found.size])


class MaskedDistributions(NextTokenDistributions):
    """Distributions of which only some slots were expanded: the others have no candidates, each of probability 0."""

    def __init__(self, found: NextTokenDistributions, expanded: Bool[Tensor, "B F"]):
        self.found, self.expanded = found, expanded

    def topk_entropy(
        self, k: int, m: int | None
    ) -> tuple[Int[Tensor, "B F K"], Float[Tensor, "B F K"], Float[Tensor, "B F"]]:
        """See `NextTokenDistributions.topk_entropy`."""
        token, log_prob, entropy = self.found.topk_entropy(k, m)
        return token, log_prob.masked_fill(~self.expanded[..., None], float("-inf")), entropy
