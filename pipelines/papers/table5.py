"""C2T's table 5: the second top-K, which keeps the W most confident nodes of a level, and the naive variant without it.

python -m pipelines.papers.table5 [--pair NAME]
"""

from c2t.policies import C2T
from pipelines.papers.study import Study
from pipelines.papers.tables import Quoted, Report, Row, script
from pipelines.papers.verdicts import above, at_equal_tau, below, estimate, gamma_ratio

PAPER = {  # beta -> W (None: naive) -> what it gives
    0.3: {
        15: Quoted(3.98, 1026454),
        20: Quoted(4.15, 1235635),
        25: Quoted(4.21, 1413190),
        30: Quoted(4.30, 1568173),
        None: Quoted(4.41, 2030064),
    },
    0.5: {
        15: Quoted(3.92, 781806),
        20: Quoted(4.01, 878722),
        25: Quoted(4.02, 931429),
        30: Quoted(4.02, 971486),
        None: Quoted(4.02, 983491),
    },
}


def table(study: Study) -> Report:
    """C2T, table 5: second top-K."""
    classifier = study.classifier()
    found = {(b, w): study.count(C2T(classifier, b, W=w)) for b, widths in PAPER.items() for w in widths}
    rows = [Row("C2T", f"beta={b:g}, W={w or 'none'}", one, PAPER[b][w]) for (b, w), one in found.items()]
    kept = [found[0.5, 15], found[0.5, None], found[0.3, 15], found[0.3, None]]
    small = found[0.5, 15]
    sizes = study.eagle2_around(small)
    naive = [found[b, None] for b in PAPER] + [study.count(C2T(classifier, b, W=None)) for b in (0.7, 0.9)]
    return Report(
        "C2T, table 5: second top-K",
        rows,
        [
            below("it saves tokens at the high beta", "ratio of gamma, W=15 to none", gamma_ratio(*kept[:2])),
            above(
                "at the low beta it costs more tau than at the high one",
                "share of tau that W=15 keeps at beta=0.5 over that at 0.3",
                estimate(kept, lambda tau, _: (tau[:, 0] / tau[:, 1]) / (tau[:, 2] / tau[:, 3])),
            ),
            below(
                "tau and gamma are distributed as without it",
                "gamma of W=15 over that of the naive variant at its tau",
                at_equal_tau([small], naive, small),
                1.05,
            ),
            below("it outperforms EAGLE-2", "gamma over EAGLE-2's at its tau", at_equal_tau([small], sizes, small)),
        ],
        [
            f"classifier: {study.settings.training} settings, K=15, 10 levels; W=none has at most 64 nodes a level: "
            f"{found[0.3, None].total.capped + found[0.5, None].total.capped} nodes were cut off by that"
        ],
    )


if __name__ == "__main__":
    script("table5", table, limit=16)
