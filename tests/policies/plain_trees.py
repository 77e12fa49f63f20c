"""What the tests of ranked policies share: a tree as plain Python sees it, one row at a time."""

from collections.abc import Callable

import torch

from c2t.tree import Tree
from tests.toys import path_of, random_table, root_of

VOCABULARY = 16
ROOT = root_of(1, 2, 3)
Path = tuple[int, ...]


def tables(seed: int, spread: float = 2.0):
    """Logits of (row, path)."""
    return random_table(VOCABULARY, seed, spread)


def ranked(logits: Callable, row: int, path: Path) -> list[tuple[float, int]]:
    """(probability, token) after a path, most probable first."""
    return sorted(((p, token) for token, p in enumerate(logits(row, path).softmax(-1).tolist())), reverse=True)


def joints(logits: Callable, row: int, path: Path) -> float:
    """Probability of a whole path."""
    product = 1.0
    for end in range(len(path)):
        product *= logits(row, path[:end]).softmax(-1)[path[end]].item()
    return product


def paths_of(tree: Tree, row: int) -> list[Path]:
    """The row's drafted nodes as paths, in their order."""
    return [tuple(path_of(tree, row, slot)) for slot in tree.alive[row].nonzero()[1:, 0].tolist()]


def entropy(logits: Callable, row: int, path: Path) -> float:
    return torch.special.entr(logits(row, path).softmax(-1)).sum().item()
