"""TALON (arXiv 2601.07353): a node budget spent level by level on what is within a factor of the level's best."""

from dataclasses import dataclass

import torch
from torch import Tensor

from c2t.errors import at_least_one, probability
from c2t.policies.growth import LevelSelection, grow
from c2t.policies.limits import Size, check_size, grown
from c2t.protocols import Draft, Root
from c2t.storage.checked import check_fields
from c2t.tree import Nodes, Tree


@dataclass(frozen=True)
class Talon:
    """Keeps, below a full first level, nodes within a factor `mu` of their level's best. They are expanded, K children
    each, until N tokens (root included) are spent. `levels` bounds the depth [choice].
    """

    N: int = 60
    mu: float = 0.03
    K: int = 10
    levels: int = 12

    proposal = "ranked"
    exact = True
    bench = ("",)
    sweep = ("N=5|12|26|60|120",)
    tune = ()

    def __post_init__(self):
        check_fields(self)
        at_least_one(self, "N", "K", "levels")
        probability(self, "mu")
        check_size(self)

    @property
    def size(self) -> Size:
        """See `Size`."""
        return grown(self.K, self.N, self.levels, self.N)

    def __call__(self, draft: Draft, root: Root) -> Tree:
        def near_best(children: Nodes, _parent_score: Tensor) -> LevelSelection:
            best = children.log_joint.masked_fill(~children.alive, float("-inf")).amax(1, keepdim=True)
            near = (children.log_joint - best).exp() >= self.mu
            return LevelSelection(children.log_joint, torch.where(children.depth == 0, True, near))

        return grow(draft, root, near_best, K=self.K, levels=self.levels, width=self.N, max_nodes=self.N, strict=False)
