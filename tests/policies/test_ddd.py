"""Dynamic depth decoding: EAGLE-2's tree of the depth at which a plain loop stops."""

import pytest
import torch

from c2t.errors import InputError
from c2t.policies import DDD, Eagle2
from tests.policies.plain_trees import ROOT, paths_of, ranked, tables
from tests.toys import TableDraft


def depth_of(logits, row: int, threshold: float, first: int, every: int, K: int, levels: int) -> int:
    beam = [((), 1.0)]
    for level in range(1, levels + 1):
        pool = [(joint * p, (*path, token)) for path, joint in beam for p, token in ranked(logits, row, path)[:K]]
        beam = [(path, joint) for joint, path in sorted(pool, reverse=True)[:K]]
        if level >= first and (level - first) % every == 0 and sum(joint for _, joint in beam) < threshold:
            return level
    return levels


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("threshold", "first", "every"), [(0.3, 1, 1), (0.3, 2, 2), (0.15, 3, 1), (1e-9, 1, 1)])
def test_tree_is_eagle2s_of_that_depth(threshold: float, first: int, every: int, seed: int) -> None:
    logits, K, levels, N = tables(seed), 4, 6, 20
    tree = DDD(threshold, first, every, K, levels, N)(TableDraft(logits), ROOT)
    depths = [depth_of(logits, row, threshold, first, every, K, levels) for row in range(3)]
    for row, depth in enumerate(depths):
        expected = Eagle2(K, depth, N)(TableDraft(logits), ROOT)
        assert set(paths_of(tree, row)) == set(paths_of(expected, row))


def test_rows_stop_at_depths_of_their_own() -> None:
    logits = tables(3)
    depths = {depth_of(logits, row, 0.3, 1, 1, 4, 6) for row in range(3)}
    assert len(depths) > 1
    draft = TableDraft(logits)
    DDD(0.3, 1, 1, 4, 6)(draft, ROOT)
    assert len(draft.expanded) == max(depths)
    assert torch.stack([(slots >= 0).any(1) for slots in draft.expanded]).sum(0).tolist() == [
        depth_of(logits, row, 0.3, 1, 1, 4, 6) for row in range(3)
    ]


@pytest.mark.parametrize("setting", [{"threshold": 0.0}, {"first_check": 0}, {"every": 0}, {"K": 0}, {"N": 0}])
def test_wrong_settings_are_refused(setting: dict) -> None:
    with pytest.raises(InputError, match=next(iter(setting))):
        DDD(**setting)
