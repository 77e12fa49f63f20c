"""C2T's table 1: what the classifier's features are worth.

    python -m pipelines.papers.table1 [--pair NAME] [--training committed]

The paper sets a threshold for every set of features so that tau is that of EAGLE-2; here each set is also counted at
thresholds that close in on that tau, and gamma is compared there.
"""

from c2t.policies import C2T, Eagle2
from pipelines.papers.study import D, H, P, Study, nearest
from pipelines.papers.tables import Quoted, Report, Row, script
from pipelines.papers.verdicts import above, all_of, at_equal_tau, below

SETS = {"P+H": (P, H), "P+d": (P, D), "H+d": (H, D), "P+H+d": (P, H, D)}
EAGLE2 = Quoted(3.89, 1.0e6)
PAPER = {  # features -> threshold, what it gives on LLaMA-2 7B and MT-bench
    "P+H": (0.42, Quoted(3.92, 0.9e6)),
    "P+d": (0.7, Quoted(3.92, 0.9e6)),
    "H+d": (0.5, Quoted(0.98, 3.3e6)),
    "P+H+d": (0.5, Quoted(3.92, 0.7e6)),
}


def table(study: Study) -> Report:
    """C2T, table 1: feature ablation."""
    eagle2 = study.count(Eagle2(K=15, levels=10, N=100))
    rows = [Row("EAGLE-2", "N=100", eagle2, EAGLE2)]
    points = {}
    for name, features in SETS.items():
        classifier = study.classifier(features)
        beta, quote = PAPER[name]
        rows.append(Row(f"C2T {name}", f"beta={beta:g}", study.count(C2T(classifier, beta)), quote))
        points[name] = study.c2t_around(classifier, eagle2)
        same = nearest(points[name], eagle2)
        rows.append(Row(f"C2T {name}", f"{same.label} (nearest tau)", same))
    gain = {name: at_equal_tau(found, [eagle2], eagle2) for name, found in points.items()}
    rivals = {name: at_equal_tau(points["P+H+d"], points[name], eagle2) for name in ("P+H", "P+d")}
    what = "gamma over EAGLE-2's at its tau, "
    return Report(
        "C2T, table 1: features of the classifier",
        rows,
        [
            all_of(
                "P with H or d slightly outperforms EAGLE-2",
                [below("", what + name, gain[name]) for name in ("P+H", "P+d")],
            ),
            below("all three outperform EAGLE-2", what + "P+H+d", gain["P+H+d"]),
            all_of(
                "all three outperform two of them",
                [below("", f"gamma of P+H+d over {name}'s", found) for name, found in rivals.items()],
            ),
            above("without P performance degrades", what + "H+d", gain["H+d"]),
        ],
        [f"classifiers: {study.settings.training} settings; EAGLE-2: K=15, 10 levels; C2T: K=W=15, 10 levels"],
    )


if __name__ == "__main__":
    script("table1", table)
