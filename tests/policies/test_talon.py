"""TALON against a loop in plain Python."""

import pytest

from c2t.errors import InputError
from c2t.policies import Talon
from tests.policies.plain_trees import ROOT, paths_of, ranked, tables
from tests.toys import TableDraft


def grown(logits, row: int, N: int, mu: float, K: int, levels: int) -> list[tuple[int, ...]]:
    tree, frontier = [], [((), 1.0)]
    for depth in range(levels):
        level = [(joint * p, (*path, token)) for path, joint in frontier for p, token in ranked(logits, row, path)[:K]]
        level.sort(key=lambda node: -node[0])
        if depth:
            level = [node for node in level if node[0] >= mu * level[0][0]]
        level = level[: N - 1 - len(tree)]
        tree += [path for _, path in level]
        frontier = [(path, joint) for joint, path in level]
        if not frontier:
            break
    return tree


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("N", "mu", "K", "levels"), [(30, 0.03, 5, 8), (20, 0.3, 4, 10), (12, 0.9, 3, 4), (3, 0.1, 6, 2)]
)
def test_tree_is_that_of_the_loop(N: int, mu: float, K: int, levels: int, seed: int) -> None:
    logits = tables(seed)
    tree = Talon(N, mu, K, levels)(TableDraft(logits), ROOT)
    for row in range(3):
        assert paths_of(tree, row) == grown(logits, row, N, mu, K, levels)
    assert (tree.sizes <= N).all()


@pytest.mark.parametrize("setting", [{"N": 0}, {"mu": 0.0}, {"mu": 1.5}, {"K": 0}, {"levels": 0}])
def test_wrong_settings_are_refused(setting: dict) -> None:
    with pytest.raises(InputError, match=next(iter(setting))):
        Talon(**setting)
