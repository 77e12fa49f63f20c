"""Expanding by value or by confidence, with and without reranking: table 3 of EAGLE-2."""

from c2t.policies import Eagle2
from pipelines.papers.report import Report, Reproduction, Row, of_policies
from pipelines.papers.study import Study
from pipelines.papers.verdicts import above, all_of, tau_ratio

VARIANTS = {  # what is left out -> policy, tau on MT-bench and GSM8K
    "w/o both": (Eagle2(expand="confidence", reranked=False), 3.92, 3.93),
    "w/o value": (Eagle2(expand="confidence"), 4.39, 3.96),
    "w/o reranking": (Eagle2(reranked=False), 4.86, 4.85),
    "EAGLE-2": (Eagle2(), 4.98, 4.97),
}


def eagle2_table3(study: Study) -> Report:
    """EAGLE-2, table 3: expanding by value or by confidence, with and without reranking.

    At temperature 0, as in the paper, whose tau counts the bonus token.
    """
    counts = {name: study.count(policy) for name, (policy, _, _) in VARIANTS.items()}
    rows = [
        Row(name, counts[name].label, counts[name], None, {"paper: MT-bench": mt_bench, "paper: GSM8K": gsm8k})
        for name, (_, mt_bench, gsm8k) in VARIANTS.items()
    ]
    value = [("EAGLE-2", "w/o value"), ("w/o reranking", "w/o both")]
    reranking = [("EAGLE-2", "w/o reranking"), ("w/o value", "w/o both")]
    return of_policies(
        "EAGLE-2, table 3: ablation",
        rows,
        [
            all_of(
                statement,
                [
                    above("", f"ratio of tau, {better} to {worse}", tau_ratio(counts[better], counts[worse]))
                    for better, worse in pairs
                ],
            )
            for statement, pairs in (
                ("expanding by value is better than by confidence", value),
                ("reranking raises the acceptance length", reranking),
            )
        ],
        ["K=10, 6 levels, N=60; without reranking the 60 selected nodes and the root"],
        bonus=True,
    )


REPORTS = {"eagle2-table3": Reproduction(eagle2_table3, {"temperature": 0.0})}
