"""Trees of equal sizes, and with and without the second top-K."""

import pytest

from c2t.policies import C2T, Eagle1
from pipelines.papers import trees
from pipelines.papers.study import Study
from tests.pipelines.papers.small_study import check, counts_in, decoded


def test_table4_counts_what_live_decoding_costs(study: Study) -> None:
    report = check(trees.table4(study))
    assert counts_in(report, "EAGLE-1", "N=26") == decoded(study, Eagle1())
    row = dict(zip(report.columns, report.rows[2], strict=True))
    assert (row["setting"], row["gamma"]) == ("N=60", 60)


@pytest.mark.slow
def test_table5_counts_what_live_decoding_costs(study: Study) -> None:
    report = check(trees.table5(study))
    classifier = study.classifier()
    assert counts_in(report, "C2T", "beta=0.5, W=none") == decoded(study, C2T(classifier, 0.5, W=None))
    assert counts_in(report, "C2T", "beta=0.3, W=20") == decoded(study, C2T(classifier, 0.3, W=20))
