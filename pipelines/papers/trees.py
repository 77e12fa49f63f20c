"""Shapes of trees: equal sizes and the second top-K, tables 4 and 5 of C2T."""

from c2t.policies import C2T, Eagle1, Eagle2
from pipelines.papers.report import Quoted, Report, Reproduction, Row, of_policies
from pipelines.papers.study import Study, nearest
from pipelines.papers.verdicts import above, all_of, at_equal_tau, below, gamma_ratio, interval, tau_ratio


def table4(study: Study) -> Report:
    """C2T, table 4: EAGLE-1, EAGLE-2 and C2T with trees of the same size."""
    classifier = study.classifier()
    eagle1 = study.count(Eagle1())
    small, large = (study.count(Eagle2(K=10, levels=6, N=n)) for n in (26, 60))

    shape = {"K": 10, "W": 10, "levels": 6}
    points = [(goal, study.c2t_around(classifier, goal, **shape)) for goal in (small, large)]
    rows = [
        Row("EAGLE-1", "N=26", eagle1, Quoted(2.66, 340054)),
        Row("EAGLE-2", "N=26", small, Quoted(2.95, 317668)),
        Row("EAGLE-2", "N=60", large, Quoted(3.65, 628980)),
        Row("C2T", "beta=0.85", study.count(C2T(classifier, 0.85, **shape)), Quoted(3.06, 226569)),
        Row("C2T", "beta=0.65", study.count(C2T(classifier, 0.65, **shape)), Quoted(3.66, 531947)),
    ]
    for goal, counts in points:
        same = nearest(counts, goal)
        rows.append(Row("C2T", f"{same.label} (nearest {goal.label})", same))
    by_size = interval([eagle1, small, large], lambda tau, _: (tau[:, 2] - tau[:, 1]) / (tau[:, 2] - tau[:, 0]))
    what = "gamma over EAGLE-2's at its tau, "
    return of_policies(
        "C2T, table 4: trees of equal size",
        rows,
        [
            above("EAGLE-2 accepts more than EAGLE-1 at the same size", "ratio of tau", tau_ratio(small, eagle1)),
            below("but only 11 % more", "ratio of tau", tau_ratio(small, eagle1), 1.11 + 0.005),
            above("most of EAGLE-2's gain over EAGLE-1 is the size of its tree", "share of the gain", by_size, 0.5),
            all_of(
                "C2T's trees are more compact at the same tau",
                [below("", what + goal.label, at_equal_tau(counts, [goal], goal)) for goal, counts in points],
            ),
        ],
        [f"classifier: {study.settings.training} settings; EAGLE-2 and C2T: K=10, 6 levels"],
    )


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


def table5(study: Study) -> Report:
    """C2T, table 5: the second top-K, which keeps the W most confident nodes of a level, and trees without it."""
    classifier = study.classifier()
    counts = {(b, w): study.count(C2T(classifier, b, W=w)) for b, widths in PAPER.items() for w in widths}
    rows = [Row("C2T", f"beta={b:g}, W={w or 'none'}", counted, PAPER[b][w]) for (b, w), counted in counts.items()]
    pairs = [counts[0.5, 15], counts[0.5, None], counts[0.3, 15], counts[0.3, None]]
    small = counts[0.5, 15]
    sizes = study.eagle2_around(small)
    naive = [counts[b, None] for b in PAPER] + [study.count(C2T(classifier, b, W=None)) for b in (0.7, 0.9)]
    return of_policies(
        "C2T, table 5: second top-K",
        rows,
        [
            below("it saves tokens at the high beta", "ratio of gamma, W=15 to none", gamma_ratio(*pairs[:2])),
            above(
                "at the low beta it costs more tau than at the high one",
                "share of tau that W=15 keeps at beta=0.5 over that at 0.3",
                interval(pairs, lambda tau, _: (tau[:, 0] / tau[:, 1]) / (tau[:, 2] / tau[:, 3])),
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
            f"{counts[0.3, None].total.capped + counts[0.5, None].total.capped} nodes were cut off by that"
        ],
    )


REPORTS = {"table4": Reproduction(table4), "table5": Reproduction(table5, {"limit": 16})}
