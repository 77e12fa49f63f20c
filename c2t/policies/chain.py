"""Chains: one drafted token per depth, of fixed length or stopped by a rule (the chain mode of C2T, section 5.5).

C2T's own chain is C2T(K=1, W=1); the sampled chain is in `configured`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from c2t.errors import at_least_one, probability
from c2t.kernels.level_plan import LevelPlan
from c2t.policies.growth import LevelSelection, grow, try_fused
from c2t.policies.limits import Size, check_size
from c2t.protocols import Draft, Root
from c2t.storage.checked import check_fields
from c2t.tree import Nodes, Tree


@dataclass(frozen=True)
class Chain:
    """A chain: the most probable token, `length` times. (C2T's table 3 prints length - 1: upstream's `depth`.)"""

    length: int = 6

    proposal = "ranked"
    exact = True
    bench = ("",)
    sweep = ("length=1|2|4|8",)
    tune = ("length=1", "length=2", "length=4")

    def __post_init__(self):
        check_fields(self)
        at_least_one(self, "length")
        check_size(self)

    @property
    def levels(self) -> int:
        """Layers of drafted nodes at most."""
        return self.length

    @property
    def size(self) -> Size:
        """See `Size`."""
        return Size(1 + self.length, 1)

    draft_length = levels  # alpha is tau as a share of it

    def __call__(self, draft: Draft, root: Root) -> Tree:
        if (tree := try_fused(draft, root, self.level_plan)) is not None:
            return tree

        def everyone(children: Nodes, _parent_score: Tensor) -> LevelSelection:
            return LevelSelection(children.log_joint, torch.ones_like(children.alive))

        return grow(draft, root, everyone, K=1, levels=self.length, width=1)

    @property
    def level_plan(self) -> LevelPlan:
        """Return the static plan of the policy."""
        return LevelPlan(K=1, width=1, levels=self.length)


@dataclass(frozen=True)
class DyMax:
    """A chain that stops before the first token whose own probability is below `threshold`."""

    threshold: float = 0.3
    levels: int = 10

    proposal = "ranked"
    exact = True
    bench = ("",)
    sweep = ("threshold=0.1|0.3",)
    tune = ()
    column = "log_prob"  # which log-probability of a node the threshold is for

    def __post_init__(self):
        check_fields(self)
        at_least_one(self, "levels")
        probability(self, "threshold")
        check_size(self)

    @property
    def size(self) -> Size:
        """See `Size`."""
        return Size(1 + self.levels, 1)

    def __call__(self, draft: Draft, root: Root) -> Tree:
        def probable(children: Nodes, _parent_score: Tensor) -> LevelSelection:
            score = children.columns()[self.column]
            return LevelSelection(score, score.exp() >= self.threshold)

        return grow(draft, root, probable, K=1, levels=self.levels, width=1)


@dataclass(frozen=True)
class DyJoint(DyMax):
    """A chain that stops before its joint probability falls below `threshold`."""

    threshold: float = 0.08

    column = "log_joint"
    bench = ("",)
    sweep = ("threshold=0.02|0.08",)
    tune = ()
