"""Every table's script on the small pair, and the papers' figures against what they must add up to."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from c2t.errors import InputError
from c2t.models.pairs import load_pair
from pipelines.papers import (
    dyspec,
    eagle2_table3,
    entropytree,
    table1,
    table2,
    table3,
    table4,
    table5,
    table6,
    table7,
    tables,
)
from pipelines.papers import study as paper
from pipelines.papers.study import Study
from pipelines.papers.tables import Report
from pipelines.papers.verdicts import FAILS, HOLDS, OPEN
from tests.pipelines.papers.small_study import SMALL, small_training


@pytest.fixture(scope="module")
def here(small_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A $C2T_HOME of this file: one harvest for all tables, and the target as a draft of its own."""
    home = tmp_path_factory.mktemp("papers") / "home"
    shutil.copytree(small_home, home)
    shutil.copytree(home / "checkpoints" / "tiny" / "target", home / "checkpoints" / "tiny" / "draft_lm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("C2T_HOME", str(home))
        small_training(patch)
        patch.setattr(entropytree, "TIMED", 1)
        yield home


@pytest.fixture(scope="module")
def study(here: Path) -> Study:
    return paper.study(**SMALL)


def checked(report: Report, study: Study, capsys: pytest.CaptureFixture) -> str:
    """What is printed; every identity holds, every conclusion is judged by a figure."""
    tables.show(report, study)
    shown = capsys.readouterr().out
    assert "FAILS" not in shown
    assert all(f"{line}: holds in all" in shown for line in ("sum(accepted + 1) - cut", "accepted and bonus tokens"))
    assert report.conclusions
    for conclusion in report.conclusions:
        assert conclusion.verdict in (HOLDS, FAILS, OPEN)
        assert (
            any(character.isdigit() for character in conclusion.comparison) or "out of reach" in conclusion.comparison
        )
        assert conclusion.statement in shown
    json.dumps(tables.figures(report), default=str)
    return shown


@pytest.mark.parametrize("module", [table1, table3, table4, table5, table6, eagle2_table3])
def test_tables_of_one_draft(module, study: Study, capsys: pytest.CaptureFixture) -> None:
    shown = checked(module.table(study), study, capsys)
    assert "paper:" in shown


def test_another_draft_with_the_same_classifier(study: Study, here: Path, capsys: pytest.CaptureFixture) -> None:
    draft = str(here / "checkpoints" / "tiny" / "draft")
    other = Study(load_pair("tiny", draft=draft), replace(study.settings, draft=draft))
    report = table7.table(other)
    checked(report, other, capsys)
    assert len(report.rows) == 12
    trees = {row.method.split()[-1]: row.counted for row in report.rows if row.setting == "beta=0.5"}
    assert len({one.verified_tokens for one in trees.values()}) == 1, (
        "the same head under two names gives the same trees"
    )


@pytest.mark.parametrize("other", [None, "llama2-7b"])
def test_transfer(other: str | None, study: Study, here: Path, capsys: pytest.CaptureFixture) -> None:
    folder = here / "data" / "prompts"
    files = {"prompts": (folder / "code.jsonl",), "harvest_prompts": (folder / "harvest" / "code.jsonl",)}
    source = Study(study.pair, replace(study.settings, **files))
    report = table2.table(source, None, other)
    shown = checked(report, source, capsys)
    assert "left out, not built: a pair of the same family" in shown
    ours = [row.method for row in report.rows if row.counted]
    assert ours[:2] == ["tiny, EAGLE-2", "tiny, C2T"]
    assert ours[2:] == ([f"llama2-7b, {name}" for name in ("EAGLE-2", "C2T", "C2T*")] if other else [])
    assert "V 33B, C2T*" in shown


def test_missing_relatives_are_left_out_or_built(here: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    built = []
    monkeypatch.setattr(table2, "build", lambda recipe, stages: built.append((recipe.name, stages[-1])))
    assert table2.available(["llama2-7b", "tiny-small"], make=False) == ["llama2-7b", None]
    assert table2.available(["llama2-7b", "tiny-small"], make=True) == ["llama2-7b", "tiny-small"]
    assert built == [("tiny-small", "draft")]
    assert "20 minutes" in capsys.readouterr().err


def test_entropytree_counts_wasted_passes(here: Path, capsys: pytest.CaptureFixture) -> None:
    study = paper.study(**SMALL, draft="lm")
    report = entropytree.table(study)
    assert "wasted/round" in checked(report, study, capsys)
    for row in report.rows:
        waste = entropytree.wasted(row.counted)
        total = row.counted.total
        assert len(waste) == total.prompts
        assert sum(waste) >= sum(total.passes) - sum(total.accepted)
    baseline = report.rows[0].counted.total
    assert sum(entropytree.wasted(report.rows[0].counted)) == 4 * baseline.rounds - sum(baseline.accepted)


def test_dyspec_and_its_rivals_have_trees_of_one_size(here: Path, capsys: pytest.CaptureFixture) -> None:
    study = paper.study(**SMALL, temperature=0.6)
    report = dyspec.table(study, 64)
    checked(report, study, capsys)
    assert [row.setting for row in report.rows] == ["T=0"] * 3 + ["T=0.6"] * 3
    for row in report.rows:
        most = max(row.counted.total.verified)
        assert most <= (65 if row.method == "SpecInfer" else 64)
        assert row.counted.lossless == (row.setting == "T=0")
    with pytest.raises(InputError, match="no trees of 100"):
        dyspec.chosen_size(100)


def test_the_papers_figures_are_whole_numbers_of_rounds() -> None:
    for drafted, quote in table3.CHAINS.values():
        assert quote.verified_tokens % (drafted + 1) == 0
    for _, (chain, _, _, eagle2, _) in table7.PAPER.items():
        assert chain.verified_tokens % (table7.LENGTH + 1) == 0
        assert eagle2.verified_tokens % 90 == 0


def test_a_script_from_the_command_line(here: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    monkeypatch.setattr("sys.argv", ["table6", *arguments, "--json", str(tmp_path / "lines.jsonl")])
    with pytest.raises(SystemExit) as stopped:
        tables.script("table6", table6.table)
    assert stopped.value.code == 0
    assert "C2T, table 6" in capsys.readouterr().out
    line = json.loads((tmp_path / "lines.jsonl").read_text())
    assert line["command"] == "table6"
    assert [row["setting"] for row in line["figures"]["rows"]][-1] == "M=all"
    assert line["configuration"]["harvest_limit"] == SMALL["harvest_limit"]
