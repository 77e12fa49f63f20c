"""DySpec and its rivals."""

from dataclasses import replace
from pathlib import Path

from c2t.policies import DySpec
from pipelines.papers import dyspec
from pipelines.papers import study as paper
from pipelines.papers.study import Study
from tests.pipelines.papers.small_study import SMALL, check, counts_in, decoded


def test_trees_of_one_size(here: Path) -> None:
    study = paper.study(**SMALL, temperature=0.6)
    report = check(dyspec.tables1to3(study))
    assert [row[1] for row in report.rows] == ["T=0"] * 3 + ["T=0.6"] * 3
    greedy = Study(study.pair, replace(study.settings, temperature=0.0))
    assert counts_in(report, "DySpec", "T=0") == decoded(greedy, DySpec(64, temperature=dyspec.DRAFT_TEMPERATURE))
    sizes = {row[0]: row[report.columns.index("gamma")] for row in report.rows}
    assert sizes["DySpec"] <= 64
    assert sizes["SpecInfer"] <= 65
    assert "holds in all 3 rows" in report.notes[-1]  # at T = 0.6 the residual rule draws another text
