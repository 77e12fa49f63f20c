"""The command on few and short texts, with networks that learn little."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from c2t.errors import InputError
from c2t.models.pairs import drafts_of
from c2t.records.reader import describe
from c2t.study import interval
from pipelines.gain import study, variants
from pipelines.gain.__main__ import app
from pipelines.gain.full_trees import Condition
from pipelines.gain.study import conditions
from pipelines.gain.subtrees import cuts, read_nodes
from tests.harvests import two_files


def test_the_first_of_each_meets_all_of_the_other() -> None:
    cross = conditions(["eagle", "lm"], [0.4, 0.0], grid=False)
    assert cross == [Condition("eagle", 0.4), Condition("lm", 0.4), Condition("eagle", 0.0)]
    assert len(conditions(["eagle", "lm"], [0.4, 0.0], grid=True)) == 4


def test_all_of_tinys_drafts_are_compared_and_others_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Judged(Exception):
        pass

    def judged(condition: Condition, *_rest: object) -> None:
        raise Judged(condition)

    monkeypatch.setattr(study, "judged", judged)
    monkeypatch.setattr(study, "conditions", lambda drafts, *_rest: [Condition(",".join(drafts), 0.4)])
    with pytest.raises(Judged) as found:
        CliRunner().invoke(app, [], catch_exceptions=False)
    assert found.value.args[0].draft == ",".join(drafts_of("tiny"))
    with pytest.raises(InputError, match="--drafts: tiny has no block, tree; it has eagle, "):
        CliRunner().invoke(app, ["--drafts", "eagle,block,tree"], catch_exceptions=False)


@pytest.mark.slow
def test_a_run_writes_ratios_and_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "STEPS", 100)  # after five, no tree of these few reaches a tau
    monkeypatch.setattr(study, "MAIN", ("paper's network",))
    monkeypatch.setattr(study, "WITH_NGRAMS", ("conditional: network, own 8, copies",))
    monkeypatch.setattr(interval, "RESAMPLES", 20)
    few = ["--drafts", "eagle", "--temperatures", "0.4", "--limit", "6", "--max-new-tokens", "12", "--oracle", "1"]
    arguments = [*few, "--build", str(tmp_path / "build"), "--out", str(tmp_path / "gain.jsonl")]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "gamma over that of the best untrained tree" in done.stdout
    (line,) = (tmp_path / "gain.jsonl").read_text().splitlines()
    rows = study.read(tmp_path / "gain.jsonl")["eagle, T = 0.4"]
    assert json.loads(line)["configuration"]["prompts"] == 6
    assert {"all prompts", "known"} <= {row.prompts for row in rows}
    assert {"paper's network", "threshold on P+ngrams", "conditional: network, own 8, copies+ngrams"} <= {
        row.score for row in rows
    }
    for bar, rivals in study.BARS.items():
        ratios = [row.ratio for row in rows if row.rivals == bar and row.score in rivals]
        assert ratios
        assert min(ratios) >= 0.999
    assert (tmp_path / "gain.png").stat().st_size > 1000


def test_a_ratio_is_that_of_the_sums_of_all_prompts(tmp_path: Path) -> None:
    """A score over itself is 1; over a bar of trees twice as large 0.5, on every part of the prompts."""
    harvest = two_files(tmp_path / "rows")
    nodes, entries = read_nodes(harvest), describe(harvest).prompts
    score = nodes.columns["log_joint"]
    bar = cuts(nodes, "bar", score)
    half = [point._replace(verified=tuple(2 * count for count in point.verified)) for point in bar]
    found = {**{name: half for name in study.RIVALS}, "mine": bar}
    rows = list(study.ratios(nodes, entries, found, [study.PLAIN]))
    assert {row.ratio for row in rows if row.score == "mine"} == {0.5}
    assert {row.ratio for row in rows if row.score != "mine"} == {1.0}
    assert {row.prompts for row in rows} >= {study.EVERYTHING, "a", "b", "known"}
