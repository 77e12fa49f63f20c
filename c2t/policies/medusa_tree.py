"""Medusa's static tree (arXiv 2401.10774, section 2.3.3): one shape for all rounds, from the measured accuracy
of each rank at each depth."""

import heapq
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple

from jaxtyping import Int
from pydantic import Field
from torch import Tensor

from c2t.errors import InputError, check_kind, whole
from c2t.policies import static
from c2t.policies.limits import MOST_LEVELS, MOST_TOKENS, Size, check_size
from c2t.protocols import Draft, Root
from c2t.storage.checked import OPEN, from_json, read_file
from c2t.tree import Nodes, Tree

MOST_RANKS = 1024
Rate = Annotated[float, Field(ge=0, le=1)]
Rates = Annotated[tuple[Rate, ...], Field(min_length=1, max_length=MOST_RANKS)]


class Accuracies(NamedTuple):
    """Measured accuracies of a draft. rates[depth][rank]: share of the positions at which the draft's candidate of that
    rank is the target's token; depth 0 is that of the root's children. name: file that they come from."""

    rates: tuple[tuple[float, ...], ...]
    name: str

    @classmethod
    def read(cls, path: str | Path) -> "Accuracies":
        """Return the accuracies in a file of `python -m pipelines.pair.accuracies`; InputError for any other file."""
        remedy = "measure them with: python -m pipelines.pair.accuracies"
        return cls(from_json(_File, read_file(path), path, remedy).accuracies, str(path))


@dataclass(frozen=True)
class _File:
    """Part of a file of accuracies that is read here."""

    __pydantic_config__ = OPEN
    accuracies: Annotated[tuple[Rates, ...], Field(min_length=1, max_length=MOST_LEVELS)]


@dataclass(frozen=True)
class MedusaTree:
    """Medusa's fixed tree: the N tokens with the largest products of measured accuracies. The root is one of them. A
    token that was never right is left out, so the tree may be smaller.

    Of equal products the shallower node comes first, then the one of lower ranks. Ranks without their lower siblings
    are allowed [choice; upstream adds siblings in the order of rank, which is the same unless a higher rank was right
    more often].
    """

    accuracies: Accuracies
    N: int = 26

    proposal = "ranked"
    exact = True
    bench = ()
    sweep = ()
    tune = ()

    def __post_init__(self):
        check_kind("MedusaTree: accuracies", self.accuracies, Accuracies, "what Accuracies.read returns")
        whole(self, "N", least=2)
        for ranks in self.accuracies.rates:
            if not all(0 <= rate <= 1 for rate in ranks) or sum(ranks) > 1 + 1e-6 * len(ranks):  # files have six digits
                raise InputError("MedusaTree: accuracies of a depth must be at least 0 and sum to at most 1")
        if not self.paths:
            raise InputError("MedusaTree: the accuracies of the first depth are all 0: measure them for this draft")
        check_size(self)

    @property
    def paths(self) -> tuple[static.Path, ...]:
        """Nodes of the tree as paths of child ranks, best first."""
        return best_paths(self.accuracies.rates, min(self.N, MOST_TOKENS) - 1)

    @property
    def levels(self) -> int:
        """Layers of drafted nodes at most."""
        return max(map(len, self.paths))

    @property
    def K(self) -> int:
        """Children of a node at most, which the vocabulary must have."""
        return 1 + max(path[-1] for path in self.paths)

    @property
    def size(self) -> Size:
        """See `Size`."""
        return Size(self.N, self.N * max(map(len, self.accuracies.rates)))

    def __call__(self, draft: Draft, root: Root) -> Tree:
        def ranked(tree: Tree, frontier: Int[Tensor, "B F"], width: int) -> tuple[Tree, Nodes]:
            rows = draft.expand(tree, frontier)
            return tree, tree.children(frontier, *rows.topk_entropy(width, 0))

        return static.grow_paths(root, self.paths, ranked)


@lru_cache(maxsize=32)
def best_paths(rates: tuple[tuple[float, ...], ...], count: int) -> tuple[static.Path, ...]:
    """Return the `count` paths with the largest products of rates, fewer if others are 0. Rates are at most 1, so
    every path comes after its beginnings."""
    paths: list[static.Path] = []
    reachable: list[tuple[float, int, static.Path]] = [(-1.0, 0, ())]  # falling product, depth, path: the root
    while reachable and len(paths) <= count:
        product, depth, path = heapq.heappop(reachable)
        paths.append(path)
        for rank, rate in enumerate(rates[depth] if depth < len(rates) else ()):
            if rate > 0:
                heapq.heappush(reachable, (product * rate, depth + 1, (*path, rank)))
    return tuple(paths[1:])
