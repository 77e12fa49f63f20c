"""What of a harvest does not depend on how it was computed: on `batch`, and on `live` or replayed."""

from pathlib import Path

import numpy as np
import pytest

from c2t.harvest.harvest import harvest
from c2t.harvest.settings import HarvestSettings
from c2t.kernels.native import kernels
from c2t.models.loading.load import load_pair
from c2t.records.reader import read_columns
from c2t.records.schema import COLUMNS
from c2t.replay.prompts import default_prompts, read_prompts, spread
from tests.marks import needs_smollm2
from tests.rounding import assert_same_sums

WAYS = {"alone": {"batch": 1}, "live": {"batch": 3, "live": True}, "live and alone": {"batch": 1, "live": True}}
FIRST = HarvestSettings(K=6, levels=5, batch=8, max_new_tokens=16, temperature=0.5)


def columns(draft: str, settings: HarvestSettings, folder: Path) -> dict[str, np.ndarray]:
    pair = "smollm2" if draft == "eagle3" else "tiny"
    prompts = spread([p for path in default_prompts(pair, "harvest") for p in read_prompts(path)], 8)
    return read_columns(harvest(load_pair(pair, draft=draft), prompts, folder, settings).folder, list(COLUMNS))


@pytest.fixture(scope="module", params=["eagle", pytest.param("eagle3", marks=needs_smollm2), "lm"])
def first(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict]:
    return request.param, columns(request.param, FIRST, tmp_path_factory.mktemp(request.param) / "first")


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_same_trees_are_accepted_alike(first: tuple[str, dict], way: str, tmp_path: Path) -> None:
    """With the kernels, which compute each token alone, an EAGLE head's rows are the same to the last bit. Elsewhere
    sums round by the shape of the computation, and candidates whose probabilities nearly tie may change places."""
    draft, expected = first
    found = columns(draft, HarvestSettings(**{**vars(FIRST), **WAYS[way]}), tmp_path / "rows")
    if draft in ("eagle", "eagle3") and kernels() is not None:
        for name in COLUMNS:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    for name in ("tree", "node", "depth", "prompt", "position"):
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    accepted = [np.bincount(rows["tree"], rows["accepted"]) for rows in (found, expected)]
    np.testing.assert_array_equal(*accepted)
    assert accepted[0].sum() > 50
    same = (found["token"] == expected["token"]) & (found["parent"] == expected["parent"])
    assert same.mean() > 0.98
    for name in ("joint_prob", "entropy"):
        assert_same_sums(found[name][same], expected[name][same], what=name)
