"""Trees of one shape, given as paths of child ranks; EAGLE-1's is the published one (EAGLE-2, section 3; upstream's
`mc_sim_7b_63`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from c2t.policies.limits import Size
from c2t.protocols import Draft, Root
from c2t.tree import Nodes, Tree

Path = tuple[int, ...]

# Rank 0 is the most probable child.
EAGLE1: list[Path] = [
    *[(0,), (1,), (2,), (3,)],
    *[(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)],
    *[(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0)],
    *[(0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2)],
    *[(0, 0, 0, 0, 0), (0, 0, 0, 0, 1)],
]


@dataclass(frozen=True)
class Eagle1:
    """EAGLE-1's fixed tree of 26 tokens, root included. Ranked children at every temperature [choice; upstream samples
    them at T > 0]."""

    proposal = "ranked"
    exact = True
    bench = ("",)
    sweep = ("",)
    tune = ()
    size = Size(1 + len(EAGLE1), len(EAGLE1))

    @property
    def levels(self) -> int:
        """Layers of drafted nodes at most."""
        return max(map(len, EAGLE1))

    def __call__(self, draft: Draft, root: Root) -> Tree:
        def ranked(tree: Tree, frontier: Int[Tensor, "B F"], width: int) -> tuple[Tree, Nodes]:
            rows = draft.expand(tree, frontier)
            return tree, tree.children(frontier, *rows.topk_entropy(width, 0))

        return grow_paths(root, EAGLE1, ranked)


def grow_paths(
    root: Root,
    paths: Sequence[Path],
    children_of: Callable[[Tree, Int[Tensor, "B F"], int], tuple[Tree, Nodes]],
) -> Tree:
    """Grow the tree whose nodes are these paths, level by level; only nodes that have children are expanded.

    `children_of(tree, frontier, width)` drafts `width` children of each frontier slot, parent-major.
    """
    rows = len(root.token)
    tree = Tree.root(root.token)
    slots: dict[Path, int] = {(): 0}
    for length in range(1, 1 + max(map(len, paths))):
        level = sorted(path for path in paths if len(path) == length)
        parents = sorted({path[:-1] for path in level})
        width = 1 + max(path[-1] for path in level)
        frontier = torch.tensor([slots[path] for path in parents], device=root.token.device).expand(rows, -1)
        tree, children = children_of(tree, frontier, width)
        chosen = [parents.index(path[:-1]) * width + path[-1] for path in level]
        slots |= {path: tree.size + index for index, path in enumerate(level)}
        tree = tree.extend(children.take(torch.tensor(chosen, device=root.token.device).expand(rows, -1)))
    return tree
