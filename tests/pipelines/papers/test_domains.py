"""Data sets: points of each, and classifiers of others."""

from dataclasses import replace
from pathlib import Path

import pytest

from c2t.policies import C2T, JointThreshold
from pipelines.papers import domains
from pipelines.papers.study import Study
from tests.pipelines.papers.small_study import check, decoded
from tests.rounding import figure


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"SIZES": (4, 15), "BETAS": (0.7, 0.6), "THRESHOLDS": (0.1, 0.03), "CROSS_BETAS": (0.6, 0.5)}
    for name, values in few.items():
        monkeypatch.setattr(domains, name, values)


def test_figure4_has_every_method_on_every_data_set(study: Study, here: Path, tmp_path: Path) -> None:
    code, other = here / "data" / "prompts" / "tiny" / "code.jsonl", tmp_path / "other.jsonl"
    other.write_text(code.read_text())
    short = replace(study.settings, prompts=(code, other), limit=1, max_new_tokens=4)
    report = check(domains.figure4(Study(study.pair, short)))
    points = [row[1:] for row in report.rows if row[0] == "code"]
    assert points == [row[1:] for row in report.rows if row[0] == "other"]  # the same prompts under another name
    assert {row[0] for row in points} == {domains.EAGLE2, domains.W15, domains.NAIVE, domains.SIMPLE}
    assert [row[-1] for row in points if row[0] == domains.EAGLE2] == list(domains.SIZES)  # gamma a round is N
    tau, verified, _ = decoded(Study(study.pair, short), JointThreshold(0.1, domains.K, domains.K, domains.LEVELS))
    (first, _) = (row for row in points if row[0] == domains.SIMPLE)
    assert (first[2], first[3]) == (figure(tau), verified)


def test_figure8_compares_a_classifier_with_itself_at_one(study: Study, here: Path, tmp_path: Path) -> None:
    code, prose = here / "data" / "prompts" / "tiny" / "harvest" / "code.jsonl", tmp_path / "prose.jsonl"
    prose.write_text("".join(reversed(code.read_text().splitlines(keepends=True))))
    judge = Study(study.pair, replace(study.settings, harvest_prompts=(code, prose)))
    report = check(domains.figure8(judge))
    ratios = {tuple(row[:2]): row[-1] for row in report.rows}
    assert set(ratios) == {("code", "code"), ("code", "prose")}
    assert ratios["code", "code"] == 1
    learned = Study(study.pair, replace(judge.settings, harvest_prompts=(prose,))).classifier()
    tau, verified, _ = decoded(study, C2T(learned, 0.5))
    (row,) = (row for row in report.rows if row[1] == "prose" and "0.5" in row[2])
    assert (row[3], row[4]) == (figure(tau), verified)
