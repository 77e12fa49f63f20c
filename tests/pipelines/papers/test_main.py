"""The command line: a list, reports by name with their own defaults, and result lines."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from c2t.errors import InputError
from pipelines.papers import reports, study
from pipelines.papers.__main__ import app
from pipelines.papers.report import Reproduction
from pipelines.papers.reports import REPORTS, TOPICS
from pipelines.papers.study import Settings
from tests.pipelines.papers.small_study import SMALL
from tests.rounding import figure

FEW = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]


def called(*words: str) -> Result:
    return CliRunner().invoke(app, words, catch_exceptions=False)


def test_without_a_name_every_report_is_listed() -> None:
    listed = called().stdout
    for name, report in REPORTS.items():
        assert f"  {name} " in listed
        assert report.about in listed
    assert sum(len(topic.REPORTS) for topic in TOPICS) == len(REPORTS)  # no name twice
    for report in REPORTS.values():
        Settings(**report.defaults)


@pytest.mark.slow
def test_reports_go_to_result_lines(here: Path, tmp_path: Path) -> None:
    out = tmp_path / "results" / "lines.jsonl"
    done = called("table6", "figure9", *FEW, "--out", str(out))
    assert done.exit_code == 0, done.output
    assert "C2T, table 6" in done.stdout
    table, figure = map(json.loads, out.read_text().splitlines())
    assert (table["command"], figure["command"]) == ("table6", "figure9")
    assert [row[1] for row in table["figures"]["rows"]][-1] == "M=all"
    assert len(table["figures"]["policies"]) == len(table["figures"]["rows"])
    assert table["configuration"]["harvest_limit"] == SMALL["harvest_limit"]


@pytest.mark.slow
def test_an_actor_makes_the_report_of_one_process(
    here: Path, small_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a harvest of its own."""
    plain, ray = tmp_path / "plain.jsonl", tmp_path / "ray" / "lines.jsonl"
    assert called("eagle2-figure6", *FEW, "--out", str(plain)).exit_code == 0
    shutil.copytree(small_home, tmp_path / "home")
    monkeypatch.setenv("C2T_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "cache"))
    done = called("eagle2-figure6", *FEW, "--ray", "local", "--workers", "1", "--out", str(ray))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "cache").exists(), "the actor has written its own texts"
    found, expected = (json.loads(path.read_text())["figures"]["rows"] for path in (ray, plain))
    assert len(found) == len(expected) == 20
    for row, same in zip(found, expected, strict=True):  # an actor may sum with another number of threads
        assert row == [figure(one) if isinstance(one, float) else one for one in same]


def test_what_is_not_said_is_the_reports_own(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def seen(**settings: Any) -> None:
        given.update(settings)
        raise InputError("seen")

    monkeypatch.setattr(study, "study", seen)
    monkeypatch.setitem(REPORTS, "mine", Reproduction(lambda study: None, {"limit": 5, "draft": "mtp"}))
    assert (
        called("mine", "--draft", "lm", "--harvest-prompts", "a.jsonl", "--harvest-prompts", "b.jsonl").exit_code == 2
    )
    assert (given["limit"], given["draft"]) == (5, "lm")
    assert [path.name for path in given["harvest_prompts"]] == ["a.jsonl", "b.jsonl"]
    assert "temperature" not in given


@pytest.mark.slow
def test_a_stopped_command_goes_on(here: Path, tmp_path: Path) -> None:
    out = tmp_path / "lines.jsonl"
    assert called("figure9", *FEW, "--out", str(out)).exit_code == 0
    out.write_text(out.read_text() + '{"command": "figure10", "conf')  # what a killed process leaves
    done = called("figure9", "figure10", *FEW, "--out", str(out))
    assert f"figure9: made before, in {out}" in done.stdout
    assert called("figure9", *FEW, "--seed", "1", "--out", str(out)).exit_code == 0
    old, _torn, new, other = out.read_text().splitlines()
    assert [json.loads(line)["command"] for line in (old, new, other)] == ["figure9", "figure10", "figure9"]


def test_all_is_what_the_pair_can_be_given(here: Path) -> None:
    assert list(reports.chosen(["all"], "tiny")) == list(reports.ORDER)
    assert set(reports.ORDER) == set(REPORTS)
    heads = reports.chosen(["all"], "llama2-7b")
    assert set(heads) == set(REPORTS)
    assert heads["figure7"]["same"] == "llama2-7b"
    assert {name for name in heads if REPORTS[name].defaults.get("draft")} == {"table7"}
    assert heads["table7"]["draft"] == "medusa+fit"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table1", "--data", "."], ". holds no data sets: give a folder with NAME/question.jsonl"),
        (["table99"], "no report is called 'table99'; known: table1, "),
        (["table1", "--pair", "nothing"], "no target is called 'nothing'"),
    ],
)
def test_wrong_input_ends_with_one_line(here: Path, words: list[str], said: str) -> None:
    done = called(*words)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"pipelines.papers: {said}")
    assert done.stderr.count("\n") == 1


def test_a_file_of_another_kind_ends_with_one_line(here: Path, tmp_path: Path) -> None:
    out = tmp_path / "prompts.jsonl"
    out.write_text('{"turns": ["x"]}\n')
    done = called("table1", "--out", str(out))
    assert done.exit_code == 2
    said = "no result line of c2t; choose another file with --out"
    assert done.stderr == f"pipelines.papers: {out}, line 1: {said}\n"


@pytest.mark.parametrize("words", [["--training", "mine"], ["--nothing"], ["--limit", "many"]])
def test_words_that_mean_nothing_end_with_2(words: list[str]) -> None:
    assert called("table1", *words).exit_code == 2
