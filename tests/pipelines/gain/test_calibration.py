"""A draft that is too sure of itself: the same tokens in the same order, and the command on few and short texts."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pipelines.gain import calibration, variants
from pipelines.gain.__main__ import app
from pipelines.gain.subtrees import read_nodes
from tests.rounding import growth


def test_probabilities_are_sharpened_and_ratios_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "STEPS", 5)
    monkeypatch.setattr(calibration, "MAIN", ("paper's network",))
    arguments = ["calibration", "--scales", "2", "--limit", "3", "--max-new-tokens", "12", "--build", str(tmp_path)]
    arguments += ["--out", str(tmp_path / "lines.jsonl")]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "eagle, T = 0.4, logits x 2: gamma over that of the best untrained tree" in done.stdout
    assert "threshold on P, logits as they were" in done.stdout
    line = json.loads((tmp_path / "lines.jsonl").read_text())
    assert line["configuration"]["scale"] == 2
    assert "threshold on P, logits as they were" in {row[1] for row in line["figures"]["rows"]}
    before, after = (read_nodes(next((tmp_path / "harvest").glob(f"{name}-T0.4-*"))) for name in ("eagle", "eagle-x2"))
    first = [nodes.columns["rank"][:10] for nodes in (before, after)]
    assert (before.token[:10] == after.token[:10]).all()
    assert (first[0] == first[1]).all()
    gaps = [-np.diff(nodes.columns["log_prob"][:10]) for nodes in (before, after)]
    # Each log-probability is the logarithm of a stored float32, and a difference of two logits before.
    sizes = [2 + np.abs(nodes.columns["log_prob"][:10]).max() for nodes in (before, after)]
    assert (np.abs(gaps[1] - 2 * gaps[0]) <= growth(8) * (sizes[1] + 2 * sizes[0])).all()
