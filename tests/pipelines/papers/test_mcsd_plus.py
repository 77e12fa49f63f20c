"""MCSD+: both decision models are trained, and there is a row per width and model."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.papers import mcsd_plus
from pipelines.papers import study as paper
from pipelines.papers.study import Study
from tests.pipelines.papers.small_study import check
from tests.rounding import figure


@pytest.mark.slow
def test_a_row_per_width_and_decision_model(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcsd_plus, "WIDTHS", (1, 2))
    monkeypatch.setattr(mcsd_plus, "TIMED", 0)
    quick = {name: replace(settings, epochs=1, min_steps=5) for name, settings in mcsd_plus.MODELS.items()}
    monkeypatch.setattr(mcsd_plus, "MODELS", quick)
    study: Study = paper.study(limit=2, max_new_tokens=6, harvest_limit=4, harvest_tokens=6, temperature=0.0)
    report = check(mcsd_plus.widths(study))
    rows = [dict(zip(report.columns, row, strict=True)) for row in report.rows]
    assert [(row["policy"], row["decision"]) for row in rows[:3]] == [("plain", None), ("SD", None), ("MCSD", None)]
    assert [row["decision"] for row in rows if row["policy"] == "MCSD+ W=2"] == [None, *mcsd_plus.DECISIONS]
    assert [row["exact"] for row in rows[:4]] == ["yes", "yes", "yes", "no"]
    chain = rows[1]
    assert chain["gamma"] == 1 + mcsd_plus.D
    assert chain["alpha"] == figure((chain["tokens/round"] - 1) / mcsd_plus.D)
    assert rows[2]["paper"] == 0.63
