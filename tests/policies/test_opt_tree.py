"""OPT-Tree against a loop over all nodes in plain Python, and against the optimum."""

import pytest

from c2t.errors import InputError
from c2t.policies import OptTree
from tests.policies.plain_trees import ROOT, joints, paths_of, ranked, tables
from tests.rounding import figure
from tests.toys import TableDraft


def grown(logits, row: int, N: int, delta: float, K: int, levels: int) -> set[tuple[int, ...]]:
    """Every level expands the whole level before; nothing is left out early."""
    nodes, level, expected = {}, [((), 1.0)], 0.0
    for _ in range(levels):
        level = [((*path, token), joint * p) for path, joint in level for p, token in ranked(logits, row, path)[:K]]
        nodes |= dict(level)
        best = sorted(nodes, key=lambda path: -nodes[path])[: N - 1]
        raised = sum(nodes[path] for path in best)
        if raised - expected < delta:
            break
        expected = raised
    return set(best)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("N", "delta", "K", "levels"), [(10, 0.1, 3, 4), (15, 0.3, 4, 4), (8, 0.0, 4, 4), (12, 0.85, 6, 4), (2, 0.2, 3, 4)]
)
def test_tree_is_that_of_the_loop(N: int, delta: float, K: int, levels: int, seed: int) -> None:
    logits = tables(seed)
    tree = OptTree(N, delta, K, levels)(TableDraft(logits), ROOT)
    for row in range(3):
        assert set(paths_of(tree, row)) == grown(logits, row, N, delta, K, levels)


def test_no_tree_of_that_size_has_a_longer_expected_acceptance() -> None:
    logits = tables(5)
    tree = OptTree(N=9, delta=0.0, K=16, levels=8)(TableDraft(logits), ROOT)
    for row in range(3):
        heap, taken = [(1.0, ())], 0.0
        for _ in range(9):  # greedily the most probable path next: joint probabilities fall along paths
            heap.sort()
            joint, path = heap.pop()
            taken += joint
            heap += [(joint * p, (*path, token)) for p, token in ranked(logits, row, path)]
        assert 1 + sum(joints(logits, row, path) for path in paths_of(tree, row)) == figure(taken)


def test_the_root_is_not_what_the_first_level_adds() -> None:
    """The first level adds the probability of its own nodes; with a flat draft that is little."""
    draft = TableDraft(tables(0, spread=0.01))
    assert OptTree(N=3, delta=0.5, K=2, levels=5)(draft, ROOT).sizes.tolist() == [3] * 3
    assert len(draft.expanded) == 1


@pytest.mark.parametrize("setting", [{"N": 0}, {"delta": -0.1}, {"K": 0}, {"levels": 0}])
def test_wrong_settings_are_refused(setting: dict) -> None:
    with pytest.raises(InputError, match=next(iter(setting))):
        OptTree(**setting)
