"""Chains: what they cost and yield, and the paper's own counts."""

from c2t.policies import C2T, Chain, DyJoint
from pipelines.papers import chains
from pipelines.papers.study import Study
from tests.pipelines.papers.small_study import check, counts_in, decoded


def test_table3_counts_what_live_decoding_costs(study: Study) -> None:
    report = check(chains.table3(study))
    assert counts_in(report, "EAGLE 1/2", "8") == decoded(study, Chain(9))
    assert counts_in(report, "DyJoint", "0.08") == decoded(study, DyJoint(0.08))
    assert counts_in(report, "C2T", "beta=0.85") == decoded(study, C2T(study.classifier(), 0.85, K=1, W=1))
    lengths = [dict(zip(report.columns, row, strict=True))["avg length"] for row in report.rows[:5]]
    assert lengths == [drafted - 1 for drafted, _ in chains.CHAINS.values()]


def test_the_papers_tokens_are_whole_numbers_of_rounds() -> None:
    for drafted, quote in chains.CHAINS.values():
        assert quote.verified_tokens % (drafted + 1) == 0
