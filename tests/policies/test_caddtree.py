"""CaDDTree against a search over all sizes of best-first trees."""

import itertools

import pytest
import torch

from c2t.errors import InputError
from c2t.policies import CaDDTree
from tests.policies.plain_trees import ROOT, joints, paths_of, ranked, tables
from tests.toys import TableDraft


def best_first(logits, row: int, N: int, K: int, levels: int) -> list[tuple[int, ...]]:
    """Paths in the order in which they join, the root first."""
    waiting, taken = [(1.0, ())], []
    while waiting and len(taken) < N:
        waiting.sort()
        joint, path = waiting.pop()
        taken.append(path)
        if len(path) < levels:
            waiting += [(joint * p, (*path, token)) for p, token in ranked(logits, row, path)[:K]]
    return taken


@pytest.mark.parametrize("slope", [0.6, 0.2, 0.05, 0.01])
@pytest.mark.parametrize("seed", range(3))
def test_no_other_size_yields_more_a_unit_of_time(slope: float, seed: int) -> None:
    logits = tables(seed)
    tree = CaDDTree(slope=slope, N=24, K=4, levels=4)(TableDraft(logits), ROOT)
    for row in range(3):
        order = best_first(logits, row, 24, 4, 4)
        speeds = [
            sum(joints(logits, row, path) if path else 1 for path in order[:n]) / (1 + slope * (n - 1))
            for n in range(1, 25)
        ]
        size = 1 + max(range(24), key=speeds.__getitem__)
        assert set(paths_of(tree, row)) == set(order[1:size])


def test_rows_differ_in_size_and_dear_tokens_make_small_trees() -> None:
    sizes = [CaDDTree(slope=slope, N=40, K=8)(TableDraft(tables(1)), ROOT).sizes for slope in (0.5, 0.1, 0.01)]
    assert all((dear <= cheap).all() for dear, cheap in itertools.pairwise(sizes))
    assert len(set(torch.stack(sizes).flatten().tolist())) > 3


@pytest.mark.parametrize(
    "setting", [{"slope": 0.0}, {"slope": -1.0}, {"slope": float("nan")}, {"slope": float("inf")}, {"N": 0}, {"K": 0}]
)
def test_wrong_settings_are_refused(setting: dict) -> None:
    with pytest.raises(InputError, match=next(iter(setting))):
        CaDDTree(**setting)
