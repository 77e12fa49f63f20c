"""Features, M and hidden sizes of the classifier."""

import warnings

import pytest

from c2t.policies import C2T, Eagle2
from pipelines.papers import features
from pipelines.papers.study import Study
from tests.pipelines.papers.small_study import check, counts_in, decoded
from tests.rounding import figure


@pytest.mark.slow
def test_table1_counts_what_live_decoding_costs(study: Study) -> None:
    report = check(features.table1(study))
    assert counts_in(report, "EAGLE-2", "N=100") == decoded(study, Eagle2(K=15, levels=10, N=100))
    without_p = study.classifier(("entropy", "depth"))
    assert counts_in(report, "C2T H+d", "beta=0.5") == decoded(study, C2T(without_p, 0.5))


def test_table6_is_alike_for_all_m_that_hold_the_vocabulary(study: Study) -> None:
    report = check(features.table6(study))
    whole = counts_in(report, "C2T", "M=all")
    assert whole == counts_in(report, "C2T", "M=10000") == counts_in(report, "C2T", "M=500")  # 320 tokens
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert counts_in(report, "C2T", "M=100") == decoded(study, C2T(study.classifier(), 0.5, M=100))


@pytest.mark.slow
def test_figure6_compares_sizes_with_the_largest(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "HIDDEN", (2, 12, 48))
    monkeypatch.setattr(features, "BETAS", (0.6, 0.5))
    report = check(features.figure6(study))
    sizes = {row[0]: dict(zip(report.columns, row, strict=True)) for row in report.rows}
    assert sizes["HS48"]["gamma at the same tau"] == 1
    tau, verified, _ = decoded(study, C2T(study.classifier(hidden=2), 0.5))
    assert (sizes["HS2"]["tau at 0.5"], sizes["HS2"]["verified tokens"]) == (figure(tau), verified)
