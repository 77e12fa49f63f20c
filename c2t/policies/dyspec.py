"""DySpec (DySpec, section 4): sample wherever the estimated acceptance is highest, greedily or above a threshold.

The j-th sample at a node has the value v = (joint probability of the node) x (draft mass that earlier samples left).
The sampled child has the node's joint probability times D[y]. These are the paper's v (1 - R[y]) and v R[y], multiplied
out. Values never depend on the token that will be sampled, and fall along siblings and along paths.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from c2t.errors import at_least_one, probability
from c2t.policies.limits import Size, check_size, grown
from c2t.policies.sampled import check_temperature, mark_unsampled, sample_children
from c2t.protocols import Draft, Root
from c2t.storage.checked import check_fields
from c2t.tree import Nodes, Tree, best


@dataclass(frozen=True)
class DySpec:
    """Samples the N - 1 nodes of highest expected value. It is Algorithm 1: N tokens with the root. At most K samples
    per node.

    The paper pops a heap, one draft forward per node; here every forward expands all nodes that are among the best so
    far. Values fall along siblings and paths, so both end with the same samples; this takes at most `passes` forwards.
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
            tree, children = sample_children(tree, draft, root, frontier, self.K, self.temperature)
            children = children.scored(sample_value(children, tree, self.K), children.alive)
            selected = best(children.score, children.score, children.alive, self.N - 1)
            slots = torch.where(frontier >= 0, frontier, tree.size)
            expanded = torch.nn.functional.pad(expanded, (0, 1)).scatter(1, slots, True)[:, :-1]
            tree = tree.extend(children.take(selected))
            expanded = torch.nn.functional.pad(expanded, (0, selected.shape[1]))
            # Ties by creation order: joint probability would depend on the sampled tokens.
            leaders = best(tree.score, tree.score, tree.alive, self.N)
            promising = leaders[:, : self.N - 1]  # children of the last one would come after all N
            growing = tree.alive.gather(1, promising) & ~expanded.gather(1, promising)
            if not growing.any():
                break
            frontier = torch.where(growing, promising, -1)
            frontier = frontier.gather(1, growing.int().argsort(dim=1, descending=True, stable=True))
            frontier = frontier[:, : int(growing.sum(1).max())]
        return tree.select(leaders.sort(1).values).packed().heavy_first()


@dataclass(frozen=True)
class DySpecThreshold:
    """Samples at a node, level by level, while its value is at least `threshold`. It is Algorithm 2. At most K samples
    per node and `max_width` per level, those of highest value."""

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
            tree, children = sample_children(tree, draft, root, frontier, self.K, self.temperature)
            value = sample_value(children, tree, self.K)
            children = mark_unsampled(children, value.exp() < self.threshold)
            sampled = children.alive.sum(1)
            selected = best(value, value, children.alive, min(self.max_width, int(sampled.max())))
            if not selected.shape[1]:
                break
            children = children.scored(value, children.alive).take(selected)
            expandable = children.alive & (children.log_joint.exp() >= self.threshold)
            slots = tree.size + torch.arange(children.size, device=frontier.device)
            frontier = torch.where(expandable, slots, -1)
            tree = tree.extend(children, sampled - children.alive.sum(1))
        return tree.packed().heavy_first()


def sample_value(children: Nodes, tree: Tree, k: int) -> Float[Tensor, "B n"]:
    """Return the log of each sample's value, which does not depend on its token; `children` are k samples per node, in
    order.

    Rounding must not reverse the order: no value is below that of the sample's own child or of a later sibling.
    """
    log_prob = children.log_prob.unflatten(1, (-1, k))
    before = log_prob.exp().cumsum(-1).roll(1, -1)
    before[..., 0] = 0.0
    left = torch.log1p(-before.clamp(max=1)).maximum(log_prob)
    left = left.flip(-1).cummax(-1).values.flip(-1)
    return tree.log_joint.gather(1, children.parent) + left.flatten(1)
