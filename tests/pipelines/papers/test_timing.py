"""Stages of decoding: on a clock that ticks each time it is read, calls are counted."""

from dataclasses import replace
from itertools import count

import pytest

from c2t.policies import C2T
from pipelines.papers import timing
from pipelines.papers.study import Study
from pipelines.stages import DRAFT
from tests.pipelines.papers.small_study import check, decoded
from tests.rounding import figure


@pytest.fixture
def one(study: Study) -> Study:
    return Study(study.pair, replace(study.settings, limit=1, max_new_tokens=4))


@pytest.mark.slow
def test_figure5_adds_up(one: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SIZES", (4, 15))
    monkeypatch.setattr(timing, "BETAS", (0.5,))
    monkeypatch.setattr(timing, "REPEATS", 1)
    report = check(timing.figure5(one))
    columns = dict(zip(report.columns, zip(*report.rows, strict=True), strict=True))
    assert list(columns["verified tokens"][:2]) == [
        n * rounds for n, rounds in zip(timing.SIZES, columns["rounds"], strict=False)
    ]
    tau, verified, _ = decoded(one, C2T(one.classifier(), 0.5, timing.K, timing.K, timing.LEVELS))
    assert (columns["tau"][2], columns["verified tokens"][2]) == (figure(tau), verified)
    assert min(*columns["draft, s"], *columns["verify, s"]) > 0


def test_figure11_sees_every_stage(one: Study) -> None:
    report = check(timing.figure11(one, map(float, count()).__next__))
    eagle2, ours = (dict(zip(report.columns, row, strict=True)) for row in report.rows)
    assert eagle2["gamma"] == timing.N
    assert eagle2["passes/round"] == timing.LEVELS
    assert eagle2["classifier, ms"] == 0
    for row in (eagle2, ours):
        calls = 1e3 * row["passes/round"]  # a stage without stages inside takes a tick a call
        assert row["select, ms"] == figure(calls)  # top K of every level is seen
        assert row["forward, ms"] == figure(calls + 1e3)  # every level, and the accepted tokens
        assert sum(row[f"{stage}, ms"] for stage in DRAFT) == figure(row["draft, ms"])
    assert ours["classifier, ms"] == figure(1e3 * ours["passes/round"])  # once a level
