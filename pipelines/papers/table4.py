"""C2T's table 4: EAGLE-1, EAGLE-2 and C2T with trees of the same size.

python -m pipelines.papers.table4 [--pair NAME]
"""

from c2t.policies import C2T, Eagle1, Eagle2
from pipelines.papers.study import Study, nearest
from pipelines.papers.tables import Quoted, Report, Row, script
from pipelines.papers.verdicts import above, all_of, at_equal_tau, below, estimate, tau_ratio


def table(study: Study) -> Report:
    """C2T, table 4: trees of equal size."""
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
    for goal, found in points:
        same = nearest(found, goal)
        rows.append(Row("C2T", f"{same.label} (nearest {goal.label})", same))
    by_size = estimate([eagle1, small, large], lambda tau, _: (tau[:, 2] - tau[:, 1]) / (tau[:, 2] - tau[:, 0]))
    what = "gamma over EAGLE-2's at its tau, "
    return Report(
        "C2T, table 4: trees of equal size",
        rows,
        [
            above("EAGLE-2 accepts more than EAGLE-1 at the same size", "ratio of tau", tau_ratio(small, eagle1)),
            below("but only 11 % more", "ratio of tau", tau_ratio(small, eagle1), 1.11 + 0.005),
            above("most of EAGLE-2's gain over EAGLE-1 is the size of its tree", "share of the gain", by_size, 0.5),
            all_of(
                "C2T's trees are more compact at the same tau",
                [below("", what + goal.label, at_equal_tau(found, [goal], goal)) for goal, found in points],
            ),
        ],
        [f"classifier: {study.settings.training} settings; EAGLE-2 and C2T: K=10, 6 levels"],
    )


if __name__ == "__main__":
    script("table4", table)
