"""Sequoia (baseline of DySpec): the static tree with the longest expected acceptance, siblings without replacement."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Int
from torch import Tensor

from c2t.errors import InputError, at_least_one, whole
from c2t.policies.limits import Size, check_size
from c2t.policies.sampled import check_temperature, sample_children
from c2t.policies.static import Path, grow_paths
from c2t.protocols import Draft, Root
from c2t.storage.checked import check_fields
from c2t.tree import Nodes, Tree


@dataclass(frozen=True)
class Sequoia:
    """A sampled tree of the best fixed shape for the pair's acceptance rates. acceptance[j]: how often the child
    sampled as number j is the accepted one, measured on the pair (see `c2t.study.acceptance`). N tokens with the root;
    at most `levels` deep."""

    acceptance: tuple[float, ...]
    N: int = 64
    levels: int = 10
    temperature: float = 0.6

    proposal = "sampled"
    exact = True
    bench = ("",)
    sweep = ()
    tune = ()

    def __post_init__(self):
        check_fields(self)
        at_least_one(self, "levels")
        whole(self, "N", least=2)
        check_temperature(self)
        check_size(self)
        if not self.acceptance or not min(self.acceptance) >= 0 or not sum(self.acceptance) <= 1 + 1e-6:
            raise InputError("Sequoia: acceptance rates by rank must be at least 0 and sum to at most 1")

    @property
    def size(self) -> Size:
        """See `Size`; the table of the search for its shape counts as candidates."""
        return Size(self.N, self.N * self.levels * len(self.acceptance))

    def __call__(self, draft: Draft, root: Root) -> Tree:
        def sampled(tree: Tree, frontier: Int[Tensor, "B F"], width: int) -> tuple[Tree, Nodes]:
            return sample_children(tree, draft, root, frontier, width, self.temperature)

        return grow_paths(root, best_shape(self.acceptance, self.N, self.levels), sampled)


@lru_cache(maxsize=32)
def best_shape(acceptance: tuple[float, ...], size: int, levels: int) -> tuple[Path, ...]:
    """Find the paths of the tree of `size` tokens (root included) that maximises the sum over nodes of the product of
    acceptance rates along their paths.

    value[d][n]: of the best tree of n nodes with d further levels below its root; split[d][b][n]: nodes of the subtree
    of child b when children b, b + 1, ... share n nodes.
    """
    value = np.zeros((levels + 1, size + 1))
    value[:, 1:] = 1.0  # a tree of one node is its root, which always counts
    value[0, 2:] = -np.inf  # no room for more
    split = np.zeros((levels + 1, len(acceptance) + 1, size + 1), int)
    for depth in range(1, levels + 1):
        shared = np.full(size + 1, -np.inf)  # children from rank b on share n nodes
        shared[0] = 0.0
        for rank in reversed(range(len(acceptance))):
            better = shared.copy()
            better[1:] = -np.inf
            for nodes in range(1, size + 1):
                below = np.arange(1, nodes + 1)
                totals = _times(acceptance[rank], value[depth - 1, below]) + shared[nodes - below]
                split[depth, rank, nodes] = below[totals.argmax()]
                better[nodes] = totals.max()
            shared = better
        value[depth, 1:] = 1 + shared[:size]
    return tuple(_paths(split, levels, min(size, _capacity(len(acceptance), levels))))


def _times(rate: float, values: np.ndarray) -> np.ndarray:
    """Return the product, in which -inf stays -inf at a rate of 0."""
    return np.where(np.isinf(values), values, rate * np.where(np.isinf(values), 0.0, values))


def _capacity(children: int, levels: int) -> int:
    return sum(children**level for level in range(levels + 1))


def _paths(split: np.ndarray, depth: int, nodes: int, path: Path = ()) -> list[Path]:
    """Return the paths below `path`, whose subtree has `nodes` nodes, its own root included."""
    paths: list[Path] = []
    left, rank = nodes - 1, 0
    while left:
        size = int(split[depth, rank, left])
        paths += [(*path, rank), *_paths(split, depth - 1, size, (*path, rank))]
        left, rank = left - size, rank + 1
    return paths
