"""The study of how far n-grams are trusted: what is compared, and on which prompts a weight is searched."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from c2t.errors import InputError
from c2t.models.pairs import Pair, load_pair
from pipelines.gain import parallel, trust
from pipelines.gain.__main__ import app


def test_trust_is_compared_with_none_and_with_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On tiny, with prompts that repeat themselves."""
    tiny, searched = load_pair("tiny", dtype=torch.float32), []

    def loaded(draft: str, dtype: torch.dtype) -> Pair:
        if draft != "eagle":
            raise InputError("no such draft")
        return tiny

    def first(fronts: list) -> int:
        searched.append([len(front[0].rounds) for front in fronts])
        return 1

    monkeypatch.setattr(trust, "load_pair", loaded)
    monkeypatch.setattr(trust, "cheapest", first)
    monkeypatch.setattr(trust, "SETS", ("gsm8k",))
    monkeypatch.setattr(trust, "TAUS", (0.3, 0.5, 0.7))
    for name in ("GRID", "SEARCH_GRID"):
        monkeypatch.setattr(parallel, name, "opttree:N=2|4|8,delta=0,K=8,levels=3")
    (tmp_path / "gsm8k").mkdir()
    asked = [{"question_id": i, "category": "x", "turns": [f"def f{i}(a, b):\n" * 3]} for i in range(5)]
    (tmp_path / "gsm8k" / "question.jsonl").write_text("\n".join(map(json.dumps, asked)))
    arguments = ["trust", "--data", str(tmp_path), "--max-new-tokens", "16", "--prompts", "3"]
    arguments += ["--points", str(tmp_path / "points.jsonl"), "--out", str(tmp_path / "lines.jsonl")]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "medusa is left out" in done.stderr
    (line,) = map(json.loads, (tmp_path / "lines.jsonl").read_text().splitlines())
    run, figures = line["configuration"], line["figures"]
    assert (run["draft"], run["weight"], figures["prompts"]) == ("eagle", trust.WEIGHTS[1], 3)
    assert searched == [[2, 2, 2]]  # the prompts that are not judged on, with each weight
    assert {row["draft"] for row in figures["rows"]} == {"eagle+ngrams"}
    assert {row["rival"] for row in figures["rows"]} == {"eagle", "eagle+ngrams, best weight"}
