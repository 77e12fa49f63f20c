"""Best-first trees of the most profitable size: DDTree's order with CaDDTree's cost-aware stop."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from c2t.errors import InputError, at_least_one
from c2t.policies.limits import Size, check_size
from c2t.policies.opt_tree import OptTree
from c2t.protocols import Draft, Root
from c2t.storage.checked import check_fields
from c2t.tree import Tree


@dataclass(frozen=True)
class CaDDTree:
    """Adds nodes by falling joint probability while the expected speed rises, at most N with the root.

    With n tokens a round yields the sum of their joint probabilities (the root's is 1: the target's own token) and
    takes 1 + slope (n - 1), in units of a round with the root alone. Both are known before the target runs, so the size
    fits this text and this machine. slope: cost of one more token; `c2t tune` tries a few.
    """

    slope: float = 0.05
    N: int = 60
    K: int = 10
    levels: int = 5

    proposal = "ranked"
    exact = True
    bench = ("",)
    sweep = ("slope=0.3|0.15|0.08|0.04|0.02|0.01",)
    tune = ("slope=0.1,K=6,levels=3", "slope=0.05,K=6,levels=3", "slope=0.03,K=6")

    def __post_init__(self):
        check_fields(self)
        at_least_one(self, "N", "K", "levels")
        check_size(self)
        if not 0 < self.slope < math.inf:
            raise InputError(
                f"CaDDTree: slope = {self.slope} must be a number above 0: without costs every node is profitable"
            )

    @property
    def size(self) -> Size:
        """See `Size`."""
        return self._best_first.size

    @property
    def _best_first(self) -> OptTree:
        return OptTree(N=self.N, delta=0.0, K=self.K, levels=self.levels)

    def __call__(self, draft: Draft, root: Root) -> Tree:
        tree = self._best_first(draft, root)
        joint = torch.where(tree.alive, tree.log_joint.exp(), 0)
        falling = torch.sort(joint, dim=1, descending=True, stable=True)
        chosen = torch.zeros_like(tree.alive).scatter(1, falling.indices, profitable(falling.values, self.slope))
        return replace(tree, alive=tree.alive & chosen).packed()


def profitable(accepted: Float[Tensor, "B n"], slope: float) -> Bool[Tensor, "B n"]:
    """Return True for the first tokens, as many as have the highest expected speed. accepted: the expected number of
    tokens that each adds, the root's first."""
    order = torch.arange(accepted.shape[1], device=accepted.device)
    return order <= (accepted.cumsum(1) / (1 + slope * order)).argmax(1, keepdim=True)
