"""The study of the learned fit behind autoregressive heads: what is compared, and what is left out."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from c2t.errors import InputError
from c2t.models.pairs import Pair, load_pair
from pipelines.gain import deep, parallel
from pipelines.gain.__main__ import app
from pipelines.gain.scaled import scaled


def test_a_head_without_a_fit_is_left_out_and_the_other_one_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On tiny, whose head scaled by a half stands in for one with a fit."""
    tiny = load_pair("tiny", dtype=torch.float32)

    def loaded(draft: str, dtype: torch.dtype) -> Pair:
        if draft in ("eagle3+fit", "mtp+fit"):
            raise InputError("no fit can be read")
        return scaled(tiny, 0.5) if draft == "eagle+fit" else tiny

    monkeypatch.setattr(deep, "load_pair", loaded)
    monkeypatch.setattr(deep, "SETS", ("gsm8k",))
    for name in ("GRID", "SEARCH_GRID"):
        monkeypatch.setattr(parallel, name, "opttree:N=2|4|8,delta=0,K=8,levels=3")
    monkeypatch.setattr(deep, "TAUS", (0.3, 0.5, 0.7))
    monkeypatch.setattr(parallel, "FACTORS", (1.0, 1.4))
    (tmp_path / "gsm8k").mkdir()
    asked = [{"question_id": i, "category": "x", "turns": [f"def f{i}(a, b):"]} for i in range(4)]
    (tmp_path / "gsm8k" / "question.jsonl").write_text("\n".join(map(json.dumps, asked)))
    arguments = ["deep", "--data", str(tmp_path), "--max-new-tokens", "16", "--prompts", "3"]
    arguments += ["--points", str(tmp_path / "points.jsonl"), "--out", str(tmp_path / "lines.jsonl")]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "eagle3 is left out" in done.stderr
    (line,) = map(json.loads, (tmp_path / "lines.jsonl").read_text().splitlines())
    assert line["configuration"]["draft"] == "eagle"
    assert line["figures"]["prompts"] == 3
    rows = line["figures"]["rows"]
    assert rows
    assert {(row["draft"], row["rival"]) for row in rows} == {("eagle+fit", "eagle")}
