"""EAGLE-2's ablations."""

from dataclasses import replace

from pipelines.papers import eagle2
from pipelines.papers.study import Study
from tests.pipelines.papers.small_study import check, counts_in, decoded


def test_table3_counts_what_live_decoding_costs(study: Study) -> None:
    greedy = Study(study.pair, replace(study.settings, temperature=0.0))
    report = check(eagle2.eagle2_table3(greedy))
    settings = {row[0]: row[1] for row in report.rows}
    for name in ("w/o both", "w/o value"):
        assert counts_in(report, name, settings[name]) == decoded(greedy, eagle2.VARIANTS[name][0])
