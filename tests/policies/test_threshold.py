"""The joint-probability threshold against C2T's loop in plain Python with the joint probability as confidence."""

import pytest

from c2t.errors import InputError
from c2t.policies import JointThreshold
from tests.policies.plain_trees import ROOT, paths_of, ranked, tables
from tests.toys import TableDraft


def grown(logits, row: int, threshold: float, K: int, W: int | None, levels: int) -> list[tuple[int, ...]]:
    tree, frontier = [], [((), 1.0)]
    for _ in range(levels):
        level = [(joint * p, (*path, token)) for path, joint in frontier for p, token in ranked(logits, row, path)[:K]]
        level = sorted((node for node in level if node[0] >= threshold), key=lambda node: -node[0])[:W]
        tree += [path for _, path in level]
        frontier = [(path, joint) for joint, path in level]
    return tree


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("threshold", "K", "W", "levels"), [(0.03, 5, 4, 5), (0.05, 8, None, 3), (0.2, 3, 2, 6)])
def test_tree_is_that_of_the_loop(threshold: float, K: int, W: int | None, levels: int, seed: int) -> None:
    logits = tables(seed)
    tree = JointThreshold(threshold, K, W, levels, max_width=1000)(TableDraft(logits), ROOT)
    for row in range(3):
        assert paths_of(tree, row) == grown(logits, row, threshold, K, W, levels)
    assert not tree.capped.any()


def test_caps_are_counted() -> None:
    tree = JointThreshold(0.001, K=8, W=None, levels=3, max_width=6, max_nodes=11)(TableDraft(tables(0)), ROOT)
    assert tree.sizes.tolist() == [11] * 3
    assert (tree.capped > 0).all()


@pytest.mark.parametrize("setting", [{"threshold": 0.0}, {"threshold": 1.1}, {"K": 0}, {"W": 0}, {"levels": 0}])
def test_wrong_settings_are_refused(setting: dict) -> None:
    with pytest.raises(InputError, match=next(iter(setting))):
        JointThreshold(**setting)
