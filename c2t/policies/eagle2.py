"""EAGLE-2's dynamic tree (EAGLE-2, section 4): expand the K best nodes of each level, rerank all to the N best."""

from dataclasses import dataclass
from typing import Literal

import torch

from c2t.errors import at_least_one, from_zero
from c2t.kernels.level_plan import LevelPlan
from c2t.kernels.select import SelectLimits
from c2t.policies.growth import try_fused
from c2t.policies.limits import Size, check_size, expanded
from c2t.protocols import Draft, Root
from c2t.storage.checked import check_fields
from c2t.tree import Tree, best


@dataclass(frozen=True)
class Eagle2:
    """Expands the K best nodes of each level, then keeps the N - 1 best of all. K children per node; `levels` layers of
    drafted nodes; N tokens verified, root included (None: the full tree, as C2T's harvest takes it).

    M: the tree records the entropy over the M most probable tokens (None: all; 0: not computed, the default, since
    this policy does not use it).

    The paper's ablations (section 5.2): expand the nodes of highest own "confidence" instead of "value" (joint
    probability); reranked=False: the K nodes selected on each level are the tree, K levels of them, and N is not used.
    """

    K: int = 10
    levels: int = 6
    N: int | None = 60
    M: int | None = 0
    expand: Literal["value", "confidence"] = "value"
    reranked: bool = True

    proposal = "ranked"
    exact = True
    bench = ("", "expand=confidence", "reranked=false", "expand=confidence,reranked=false")
    sweep = (
        "levels=2,N=4|8",
        "levels=3,N=8|15|26",
        "levels=4,N=15|26|40",
        "levels=6,N=26|40|60|100",
        "levels=8,N=60|100|200",
    )
    tune = (
        *("N=8,levels=1", "N=8,levels=2", "N=16,levels=3", "N=26,levels=4", "N=26", "N=60"),
        *("K=4,N=6,levels=2", "K=4,N=8,levels=3", "K=4,N=14,levels=3", "K=6,N=14,levels=4", "K=8,N=16,levels=5"),
    )

    def __post_init__(self):
        check_fields(self)
        at_least_one(self, "K", "levels", "N")
        from_zero(self, "M")
        check_size(self)

    @property
    def size(self) -> Size:
        """See `Size`."""
        candidates = expanded(self.K, self.levels)
        if not self.reranked:
            return Size(1 + self.K * self.levels, candidates)
        return Size(min(self.N or 1 + candidates, 1 + candidates), candidates)

    def __call__(self, draft: Draft, root: Root) -> Tree:
        if (tree := try_fused(draft, root, self.level_plan)) is not None:
            return tree
        tree = Tree.root(root.token)
        frontier = torch.zeros_like(root.token)[:, None]
        for _ in range(self.levels):
            rows = draft.expand(tree, frontier)
            children = tree.children(frontier, *rows.topk_entropy(self.K, self.M))
            score = children.log_joint if self.expand == "value" else children.log_prob
            selected = best(score, children.log_joint, children.alive, self.K)
            if not self.reranked:
                ranks = torch.arange(self.K, device=selected.device)
                children, selected = children.take(selected), ranks.expand_as(selected)
            frontier = tree.size + selected
            tree = tree.extend(children)
        return rerank(tree, self.N) if self.reranked and self.N else tree

    @property
    def level_plan(self) -> LevelPlan | None:
        """Return the static plan of the policy; None for the ablations."""
        if not self.reranked or self.expand != "value":
            return None
        limits = SelectLimits(0.0, 1 + self.K * self.levels)  # all that are expanded
        return LevelPlan(self.K, self.K, self.levels, limits, self.M, reranked=self.size.tokens)


def rerank(tree: Tree, count: int) -> Tree:
    """Keep the `count` most probable nodes by joint probability, root included; ties prefer the shallower, so that the
    result is connected (EAGLE-2, section 4.2; upstream's unstable top-k can drop a parent and keep its child)."""
    return tree.select(best(tree.log_joint, tree.log_joint, tree.alive, count).sort(dim=1).values)
