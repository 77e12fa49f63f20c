"""Growing a tree level by level: draft the frontier's children, select among them, add the survivors and make them
the next frontier (C2T, Algorithm 1). Policies of this kind differ only in how they select."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from c2t.kernels.level_plan import LevelPlan
from c2t.kernels.nodes import Limits
from c2t.protocols import Draft, Root, grow_tree_of
from c2t.tree import Nodes, Tree


class LevelSelection(NamedTuple):
    """A policy's choice among a level's candidates. score: ranks them where not all fit. alive: those that join the
    tree. expand: those of them that are expanded (None: all)."""

    score: Float[Tensor, "B n"]
    alive: Bool[Tensor, "B n"]
    expand: Bool[Tensor, "B n"] | None = None


Select = Callable[[Nodes, Float[Tensor, "B n"]], LevelSelection]


def try_fused(draft: Draft, root: Root, plan: LevelPlan | None) -> Tree | None:
    """Return the trees of a policy, where the draft can grow them fused (`c2t.kernels.draft_phase`); None
    elsewhere. plan: the static plan of the policy, None if it has none."""
    grown = plan and grow_tree_of(draft, plan, root)
    return grown and grown.tree


def grow(
    draft: Draft,
    root: Root,
    select: Select,
    *,
    K: int,
    levels: int,
    M: int | None = 0,
    width: int,
    max_nodes: int = 1024,
    strict: bool = True,
) -> Tree:
    """Grow trees of at most max_nodes: K candidates per frontier node, of which the `width` best of a level survive.

    select(children, parent_score): which of a level's candidates join; parent_score (B, n) are their parents' scores.
    M: entropy over the M most probable tokens (None: all; 0: not computed). strict: `width` is a cap, so what it cuts
    off is counted; False where being among the `width` best is the policy's own rule.
    """
    tree, limits = Tree.root(root.token), Limits(width, max_nodes, strict)
    frontier = torch.zeros_like(root.token)[:, None]
    for _ in range(levels):
        rows = draft.expand(tree, frontier)
        children = tree.children(frontier, *rows.topk_entropy(K, M))
        chosen = select(children, tree.score.gather(1, children.parent))
        tree, frontier, growing = tree.admit(children, *chosen, limits)
        if not growing:
            break
    return tree.packed()
