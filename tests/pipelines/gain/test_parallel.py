"""Drafts on the same texts: ratios of their tokens at equal tau, and the command on few and short texts."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from c2t.storage.paths import find
from c2t.study.points import Point
from pipelines.gain import parallel
from pipelines.gain.__main__ import app


def front(draft: str, dearer: float) -> list[Point]:
    """Trees of 1 to 4 accepted tokens a round, at 4 tokens each, on 30 prompts of 10 rounds."""
    every = [10] * 30
    verified = [tuple(round(4 * tau * dearer * rounds) for rounds in every) for tau in (1, 2, 3, 4)]
    return [
        Point(draft, f"{draft} {tau}", "", None, tuple(every), (tau * 10,) * 30, tokens, (10,) * 30)
        for tau, tokens in enumerate(verified, 1)
    ]


def test_ratios_are_the_subjects_tokens_over_each_others() -> None:
    dearer = dict(zip(parallel.DRAFTS, (2.0, 1.5, 1.0, 2.0, 1.5, 1.25, 1.0, 0.5), strict=True))
    dearer |= dict.fromkeys(parallel.RIVALS, 3.0)
    points = [point for draft, factor in dearer.items() for point in front(draft, factor)]
    for subject in parallel.SUBJECTS:
        rows = parallel.ratios(points, subject)
        assert {row["rival"] for row in rows} == {*parallel.DRAFTS, *parallel.RIVALS} - {subject}
        for row in rows:
            assert row["draft"] == subject
            if row["tau"] < 1:
                assert row["ratio"][0] is None
            else:
                wanted = dearer[subject] / dearer[row["rival"]]
                assert row["ratio"] == pytest.approx([wanted] * 3)
                assert row["gamma"] == pytest.approx(4 * row["tau"] * dearer[subject])


@pytest.mark.slow
@pytest.mark.skipif(find("smollm2", "target") is None, reason="the target of smollm2 is not installed here")
def test_command_on_few_and_short_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "GRID", "opttree:N=3|8,delta=0,K=8,levels=3")
    monkeypatch.setattr(parallel, "DRAFTS", ("medusa", *parallel.SUBJECTS))
    monkeypatch.setattr(parallel, "SETS", ("gsm8k", "mt_bench"))
    monkeypatch.setattr(parallel, "STATIC", (3, 8))
    monkeypatch.setattr(parallel, "MEASURED_ON", 2)
    few = {"caddtree": "caddtree:slope=0.1,K=8,levels=3", "gate": "gate:of=opttree:N=8,delta=0,K=8,levels=3"}
    monkeypatch.setattr(parallel, "OTHERS", few)
    for name in parallel.SETS:
        (tmp_path / name).mkdir()
        asked = [{"question_id": i, "category": "x", "turns": [f"What is {i} + 4?"]} for i in range(2)]
        (tmp_path / name / "question.jsonl").write_text("\n".join(map(json.dumps, asked)))
    arguments = ["parallel", "--data", str(tmp_path), "--max-new-tokens", "8", "--out", str(tmp_path / "lines.jsonl")]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert [line["configuration"]["set"] for line in lines] == list(parallel.SETS)
    assert {row["draft"] for line in lines for row in line["figures"]["rows"]} == set(parallel.SUBJECTS)
    assert {row["rival"] for line in lines for row in line["figures"]["rows"]} >= set(parallel.RIVALS)
    assert "gsm8k, T = 0, 2 prompts" in done.stdout
