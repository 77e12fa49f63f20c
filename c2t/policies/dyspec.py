"""DySpec (DySpec, section 4): draw wherever the estimated acceptance is highest, greedily or above a threshold.

The j-th draw at a node is worth v = (joint probability of the node) x (draft mass that the draws before left), and the
child that it gives is worth the node's joint probability times D[y]: the paper's v (1 - R[y]) and v R[y], multiplied
out. Values never depend on the token that the draw will give, and fall along siblings and along paths.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from c2t.errors import at_least_one, probability
from c2t.policies.limits import Size, check_size, grown
from c2t.policies.sampled import check_temperature, draw, undrawn
from c2t.protocols import Draft, Root
from c2t.storage.checked import check_fields
from c2t.tree import Nodes, Tree, best


@dataclass(frozen=True)
class DySpec:
    """Algorithm 1: the N - 1 draws of highest value, root included N tokens. At most K draws per node.

    The paper pops a heap, one draft forward per node; here every forward expands all nodes that are among the best so
    far. Values fall along siblings and paths, so both end with the same draws, in fewer forwards (at most `passes`).
    """

    N: int = 64
    K: int = 16
    temperature: float = 0.6
    passes: int = 32

    proposal = "sampled"
    exact = True
    bench = ("",)
    sweep = ()
    tune = ()

    def __post_init__(self):
        check_fields(self)
        at_least_one(self, "N", "K", "passes")
        check_temperature(self)
        check_size(self)

    @property
    def size(self) -> Size:
        """See `Size`."""
        return Size(self.N, self.N * self.K)

    @property
    def levels(self) -> int:
        """Layers of drafted nodes at most."""
        return self.passes

    def __call__(self, draft: Draft, root: Root) -> Tree:
        tree = Tree.root(root.token)
        expanded = torch.zeros_like(tree.alive)
        frontier = torch.zeros_like(root.token)[:, None]
        for _ in range(self.passes):
            tree, children = draw(tree, draft, root, frontier, self.K, self.temperature)
            children = children.scored(draw_value(children, tree, self.K), children.alive)
            kept = best(children.score, children.score, children.alive, self.N - 1)
            places = torch.where(frontier >= 0, frontier, tree.size)
            expanded = torch.nn.functional.pad(expanded, (0, 1)).scatter(1, places, True)[:, :-1]
            tree = tree.extend(children.take(kept))
            expanded = torch.nn.functional.pad(expanded, (0, kept.shape[1]))
            # Ties by creation order: to break them by joint probability would be to look at the tokens drawn.
            leaders = best(tree.score, tree.score, tree.alive, self.N)
            promising = leaders[:, : self.N - 1]  # children of the last one would come after all N
            going = tree.alive.gather(1, promising) & ~expanded.gather(1, promising)
            if not going.any():
                break
            frontier = torch.where(going, promising, -1)
            frontier = frontier.gather(1, going.int().argsort(dim=1, descending=True, stable=True))
            frontier = frontier[:, : int(going.sum(1).max())]
        return tree.select(leaders.sort(1).values).packed().heavy_first()


@dataclass(frozen=True)
class DySpecThreshold:
    """Algorithm 2: level by level, draw at a node while the value is at least `threshold` (about 1 / tree size); at
    most K draws per node and `max_width` per level, those of highest value."""

    threshold: float = 1 / 64
    K: int = 16
    levels: int = 16
    temperature: float = 0.6
    max_width: int = 64

    proposal = "sampled"
    exact = True
    bench = ("",)
    sweep = ()
    tune = ()

    def __post_init__(self):
        check_fields(self)
        at_least_one(self, "K", "levels", "max_width")
        probability(self, "threshold")
        check_temperature(self)
        check_size(self)

    @property
    def size(self) -> Size:
        """See `Size`."""
        return grown(self.K, self.max_width, self.levels, 1 + self.levels * self.max_width)

    def __call__(self, draft: Draft, root: Root) -> Tree:
        tree = Tree.root(root.token)
        frontier = torch.zeros_like(root.token)[:, None]
        for _ in range(self.levels):
            tree, children = draw(tree, draft, root, frontier, self.K, self.temperature)
            value = draw_value(children, tree, self.K)
            children = undrawn(children, value.exp() < self.threshold)
            drawn = children.alive.sum(1)
            kept = best(value, value, children.alive, min(self.max_width, int(drawn.max())))
            if not kept.shape[1]:
                break
            children = children.scored(value, children.alive).take(kept)
            worthy = children.alive & (children.log_joint.exp() >= self.threshold)
            slots = tree.size + torch.arange(children.size, device=frontier.device)
            frontier = torch.where(worthy, slots, -1)
            tree = tree.extend(children, drawn - children.alive.sum(1))
        return tree.packed().heavy_first()


def draw_value(children: Nodes, tree: Tree, k: int) -> Float[Tensor, "B n"]:
    """Return the log of each draw's value, decided before its token is known; `children` are k draws per node, in
    order.

    Rounding must not turn the order around: no draw is worth less than its own child or than a later sibling.
    """
    own = children.log_prob.unflatten(1, (-1, k))
    before = own.exp().cumsum(-1).roll(1, -1)
    before[..., 0] = 0.0
    left = torch.log1p(-before.clamp(max=1)).maximum(own)
    left = left.flip(-1).cummax(-1).values.flip(-1)
    return tree.log_joint.gather(1, children.parent) + left.flatten(1)
