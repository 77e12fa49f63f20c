"""EntropyTree against a recursive tree in plain Python, and B(H) at its edges."""

import math

import pytest
import torch

from c2t.errors import InputError
from c2t.policies import EntropyTree
from c2t.policies.entropy_tree import BRANCHING
from tests.policies.plain_trees import ROOT, entropy, paths_of, ranked, tables
from tests.toys import TableDraft

PLAIN = {
    "published": lambda H: 1 if H < 0.02 else 2 if H < 1 else min(math.ceil(4 * H), 7),
    "static": lambda H: 2,
    "early_stop": lambda H: 0 if H > 1 else 1,
    "naive_width": lambda H: 4 if H > 1 else 1,
    "dynamic_depth": lambda H: 0 if H > 2 else PLAIN["published"](H),
}


@pytest.mark.parametrize(
    ("H", "children"),
    [
        (0.0, 1),
        (0.0199, 1),
        (0.02, 2),
        (0.999, 2),
        (1.0, 4),
        (1.01, 5),
        (1.3, 6),
        (1.5, 6),
        (1.51, 7),
        (1.76, 7),
        (9.0, 7),
    ],
)
def test_published_branching(H: float, children: int) -> None:
    assert BRANCHING["published"](torch.tensor([H])).tolist() == [children]


def grown(logits, row: int, branching, levels: int, leaf_above: float) -> list[tuple[int, ...]]:
    tree, frontier = [], [()]
    for _ in range(levels):
        level, following = [], []
        for path in frontier:
            H = entropy(logits, row, path)
            new = [(*path, token) for _, token in ranked(logits, row, path)[: branching(H)]]
            level += new
            following += new if leaf_above >= H else []
        tree += level
        frontier = following
    return tree


@pytest.mark.parametrize("spread", [1.0, 3.0])
@pytest.mark.parametrize("name", PLAIN)
def test_tree_is_that_of_the_loop(name: str, spread: float) -> None:
    logits = tables(7, spread)
    leaf_above = 1.0 if name == "naive_width" else float("inf")
    policy = EntropyTree(name, 3, leaf_above, max_width=10**4, max_nodes=10**4)
    tree = policy(TableDraft(logits), ROOT)
    for row in range(3):
        assert set(paths_of(tree, row)) == set(grown(logits, row, PLAIN[name], 3, leaf_above))
    assert not tree.capped.any()


def test_any_function_of_entropy_can_be_dropped_in() -> None:
    logits = tables(1)
    tree = EntropyTree(lambda H: (H > 1.2).long() * 3, levels=3)(TableDraft(logits), ROOT)
    for row in range(3):
        assert set(paths_of(tree, row)) == set(grown(logits, row, lambda H: 3 * (H > 1.2), 3, float("inf")))


def test_an_unknown_branching_is_refused() -> None:
    with pytest.raises(InputError, match=r"no branching is called 'wide'; known: published, static"):
        EntropyTree("wide")
