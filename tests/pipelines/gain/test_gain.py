"""The command on few and short texts, with networks that hardly learn."""

import json
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from pipelines.gain import gain, variants
from pipelines.gain.full_trees import Condition
from pipelines.gain.gain import conditions


def test_the_first_of_each_meets_all_of_the_other() -> None:
    cross = conditions(["eagle", "lm"], [0.4, 0.0], grid=False)
    assert cross == [Condition("eagle", 0.4), Condition("lm", 0.4), Condition("eagle", 0.0)]
    assert len(conditions(["eagle", "lm"], [0.4, 0.0], grid=True)) == 4


def test_a_run_writes_ratios_and_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "STEPS", 5)
    monkeypatch.setattr(gain, "MAIN", ("paper's network",))
    monkeypatch.setattr(gain, "WITH_NGRAMS", ("steps: network, own 8, copies",))
    monkeypatch.setattr(gain, "RESAMPLES", 20)
    app = Typer()
    app.command()(gain.main)
    few = ["--drafts", "eagle", "--temperatures", "0.4", "--limit", "6", "--max-new-tokens", "12", "--oracle", "1"]
    arguments = [*few, "--build", str(tmp_path / "build"), "--out", str(tmp_path / "gain.jsonl")]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "gamma over that of the best untrained tree" in done.stdout
    (line,) = (tmp_path / "gain.jsonl").read_text().splitlines()
    rows = gain.read(tmp_path / "gain.jsonl")["eagle, T = 0.4"]
    assert json.loads(line)["configuration"]["prompts"] == 6
    assert {"all prompts", "known"} <= {row.prompts for row in rows}
    assert {"paper's network", "threshold on P+ngrams", "steps: network, own 8, copies+ngrams"} <= {
        row.score for row in rows
    }
    for bar, rivals in gain.BARS.items():
        ratios = [row.ratio for row in rows if row.rivals == bar and row.score in rivals]
        assert ratios
        assert min(ratios) >= 0.999
    assert (tmp_path / "gain.png").stat().st_size > 1000
