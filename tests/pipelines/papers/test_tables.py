"""Tables of methods: their rows count what live decoding costs, and what each table has beside that."""

import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest

from c2t.policies import C2T, Chain, DyJoint, Eagle1, Eagle2
from c2t.protocols import Policy
from pipelines.papers import chains, eagle2, features, transfer, trees
from pipelines.papers.report import Report
from pipelines.papers.study import Study
from tests.pipelines.papers.small_study import check, counts_in, decoded
from tests.rounding import figure


def without_p(study: Study) -> C2T:
    return C2T(study.classifier(("entropy", "depth")), 0.5)


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        (
            chains.table3,
            {
                ("EAGLE 1/2", "8"): lambda _: Chain(9),
                ("DyJoint", "0.08"): lambda _: DyJoint(0.08),
                ("C2T", "beta=0.85"): lambda study: C2T(study.classifier(), 0.85, K=1, W=1),
            },
        ),
        (trees.table4, {("EAGLE-1", "N=26"): lambda _: Eagle1()}),
        pytest.param(
            trees.table5,
            {
                ("C2T", "beta=0.5, W=none"): lambda study: C2T(study.classifier(), 0.5, W=None),
                ("C2T", "beta=0.3, W=20"): lambda study: C2T(study.classifier(), 0.3, W=20),
            },
            marks=pytest.mark.slow,
        ),
        pytest.param(
            features.table1,
            {
                ("EAGLE-2", "N=100"): lambda _: Eagle2(K=15, levels=10, N=100),
                ("C2T H+d", "beta=0.5"): without_p,
            },
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_row_counts_what_live_decoding_costs(
    study: Study, table: Callable[[Study], Report], rows: dict[tuple[str, str], Callable[[Study], Policy]]
) -> None:
    report = check(table(study))
    for (method, setting), policy in rows.items():
        assert counts_in(report, method, setting) == decoded(study, policy(study)), (method, setting)


def test_eagle2s_ablations_count_what_live_decoding_costs(study: Study) -> None:
    greedy = Study(study.pair, replace(study.settings, temperature=0.0))
    report = check(eagle2.eagle2_table3(greedy))
    settings = {row[0]: row[1] for row in report.rows}
    for name in ("w/o both", "w/o value"):
        assert counts_in(report, name, settings[name]) == decoded(greedy, eagle2.VARIANTS[name][0])


def test_settings_of_rows_are_the_papers(study: Study) -> None:
    report = chains.table3(study)
    lengths = [dict(zip(report.columns, row, strict=True))["avg length"] for row in report.rows[:5]]
    assert lengths == [drafted - 1 for drafted, _ in chains.CHAINS.values()]
    report = trees.table4(study)
    row = dict(zip(report.columns, report.rows[2], strict=True))
    assert (row["setting"], row["gamma"]) == ("N=60", 60)


def test_the_papers_tokens_are_whole_numbers_of_rounds() -> None:
    for drafted, quote in chains.CHAINS.values():
        assert quote.verified_tokens % (drafted + 1) == 0
    for chain, _, _, tree, _ in transfer.DRAFTS.values():
        assert (chain.verified_tokens % (transfer.LENGTH + 1), tree.verified_tokens % 90) == (0, 0)


def test_table6_is_alike_for_all_m_that_hold_the_vocabulary(study: Study) -> None:
    report = check(features.table6(study))
    whole = counts_in(report, "C2T", "M=all")
    assert whole == counts_in(report, "C2T", "M=10000") == counts_in(report, "C2T", "M=500")  # 320 tokens
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert counts_in(report, "C2T", "M=100") == decoded(study, C2T(study.classifier(), 0.5, M=100))


@pytest.mark.slow
def test_figure6_compares_hidden_sizes(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "HIDDEN", (2, 12, 48))
    monkeypatch.setattr(features, "BETAS", (0.6, 0.5))
    report = check(features.figure6(study))
    sizes = {row[0]: dict(zip(report.columns, row, strict=True)) for row in report.rows}
    assert sizes["HS48"]["gamma at the same tau"] == 1
    tau, verified, _ = decoded(study, C2T(study.classifier(hidden=2), 0.5))
    assert (sizes["HS2"]["tau at 0.5"], sizes["HS2"]["verified tokens"]) == (figure(tau), verified)
