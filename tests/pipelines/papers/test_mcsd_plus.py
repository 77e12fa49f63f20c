"""The recipe on a small pair: it trains both decision models and prints a row per width and model."""

from pathlib import Path

import pytest

from c2t.classifier import TreeClassifier
from pipelines.papers import mcsd_plus


def test_a_row_per_width_and_decision_model(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(mcsd_plus, "WIDTHS", (1, 2))
    quick = {name: mcsd_plus.replace(settings, epochs=1, min_steps=5) for name, settings in mcsd_plus.MODELS.items()}
    monkeypatch.setattr(mcsd_plus, "MODELS", quick)
    mcsd_plus.main(draft="eagle", harvest_limit=4, limit=2, timed=0, max_new_tokens=6, out=tmp_path / "out")
    said = capsys.readouterr().out
    for name in mcsd_plus.DECISIONS:
        assert said.count(name) == 1 + 2  # its training, and a row for each width
        assert TreeClassifier.from_pretrained(tmp_path / "out" / name / "classifier").config.pair == "tiny"
    assert said.count("MCSD+ W=2") == 3
    assert "0.63" in said  # the paper's MCSD
