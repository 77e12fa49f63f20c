"""EntropyTree's variants and wasted passes."""

from pathlib import Path

import pytest

from c2t.policies import Chain
from pipelines.papers import entropytree
from pipelines.papers import study as paper
from tests.pipelines.papers.small_study import SMALL, check, counts_in, decoded
from tests.rounding import as_printed


@pytest.mark.slow
def test_figure2_counts_wasted_passes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entropytree, "TIMED", 1)
    study = paper.study(**SMALL, draft="lm")
    report = check(entropytree.variants(study))
    tau, verified, passes = decoded(study, Chain(4))
    assert counts_in(report, "baseline", "length=4") == (tau, verified, passes)
    baseline = dict(zip(report.columns, report.rows[0], strict=True))
    assert passes == 4
    assert baseline["wasted/round"] == as_printed(4 - tau, 2)
    counted = study.count(Chain(4))
    assert len(entropytree.wasted(counted)) == len(counted.prompts) == SMALL["limit"]
