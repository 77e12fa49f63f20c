"""Features, settings and sizes of C2T's classifier: tables 1 and 6, figure 6 of C2T."""

import warnings

from c2t.policies import C2T, Eagle2
from c2t.study.interval import Interval
from pipelines.papers.report import Quoted, Report, Reproduction, Row, of_policies
from pipelines.papers.study import D, H, P, Study, nearest
from pipelines.papers.verdicts import Conclusion, above, all_of, at_equal_tau, below, gamma_ratio, tau_ratio

SETS = {"P+H": (P, H), "P+d": (P, D), "H+d": (H, D), "P+H+d": (P, H, D)}
EAGLE2_QUOTED = Quoted(3.89, 1.0e6)
BY_FEATURES = {  # features -> threshold, what it gives on LLaMA-2 7B and MT-bench
    "P+H": (0.42, Quoted(3.92, 0.9e6)),
    "P+d": (0.7, Quoted(3.92, 0.9e6)),
    "H+d": (0.5, Quoted(0.98, 3.3e6)),
    "P+H+d": (0.5, Quoted(3.92, 0.7e6)),
}


def table1(study: Study) -> Report:
    """C2T, table 1: the effect of the classifier's features.

    The paper sets a threshold for every set of features so that tau is that of EAGLE-2; here each set is also counted
    at thresholds that close in on that tau, and gamma is compared there.
    """
    eagle2 = study.count(Eagle2(K=15, levels=10, N=100))
    rows = [Row("EAGLE-2", "N=100", eagle2, EAGLE2_QUOTED)]
    points = {}
    for name, features in SETS.items():
        classifier = study.classifier(features)
        beta, quote = BY_FEATURES[name]
        rows.append(Row(f"C2T {name}", f"beta={beta:g}", study.count(C2T(classifier, beta)), quote))
        points[name] = study.c2t_around(classifier, eagle2)
        same = nearest(points[name], eagle2)
        rows.append(Row(f"C2T {name}", f"{same.label} (nearest tau)", same))
    gain = {name: at_equal_tau(counts, [eagle2], eagle2) for name, counts in points.items()}
    rivals = {name: at_equal_tau(points["P+H+d"], points[name], eagle2) for name in ("P+H", "P+d")}
    what = "gamma over EAGLE-2's at its tau, "
    return of_policies(
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
                [below("", f"gamma of P+H+d over {name}'s", ratio) for name, ratio in rivals.items()],
            ),
            above("without P performance degrades", what + "H+d", gain["H+d"]),
        ],
        [f"classifiers: {study.settings.training} settings; EAGLE-2: K=15, 10 levels; C2T: K=W=15, 10 levels"],
    )


BY_ENTROPY = {
    100: Quoted(3.70, 815365),
    500: Quoted(3.89, 796981),
    1000: Quoted(3.92, 781613),
    10000: Quoted(3.92, 782104),
    None: Quoted(3.92, 781806),
}
CLOSE = 0.005  # the paper's tau and gamma at M = 1000 differ less from those of the whole vocabulary


def table6(study: Study) -> Report:
    """C2T, table 6: entropy over the M most probable tokens."""
    classifier = study.classifier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the classifier was trained with M = 1000 is the experiment
        counts = {m: study.count(C2T(classifier, 0.5, M=m)) for m in BY_ENTROPY}
    rows = [Row("C2T", f"M={m or 'all'}", counted, BY_ENTROPY[m]) for m, counted in counts.items()]
    equal = {"tau": tau_ratio(counts[1000], counts[None]), "gamma": gamma_ratio(counts[1000], counts[None])}
    return of_policies(
        "C2T, table 6: entropy over the M most probable tokens",
        rows,
        [
            all_of(
                "M = 1000 is as good as the whole vocabulary",
                [
                    judge("", f"ratio of {name}, M = 1000 to all", counted, 1 + sign * CLOSE)
                    for name, counted in equal.items()
                    for judge, sign in ((below, 1), (above, -1))
                ],
            ),
            below("M = 100 costs tau", "ratio of tau, M = 100 to all", tau_ratio(counts[100], counts[None])),
            above("and tokens", "ratio of gamma, M = 100 to all", gamma_ratio(counts[100], counts[None])),
        ],
        [
            f"classifier: {study.settings.training} settings, trained with M = 1000; beta=0.5, K=W=15, 10 levels; "
            f"vocabulary of {study.pair.target.config.vocab_size} tokens"
        ],
    )


HIDDEN = (2, 6, 12, 24, 36, 48)
BY_SIZE = dict(zip(HIDDEN, (3.91, 3.97, 4.02, 4.03, 4.02, 4.02), strict=True))  # tau at beta = 0.5, gammas alike
BETAS = (0.3, 0.5, 0.7)


def figure6(study: Study) -> Report:
    """C2T, figure 6: classifiers of several hidden sizes, and their effect in trees."""
    classifiers = {hidden: study.classifier(hidden=hidden) for hidden in HIDDEN}
    points = {h: [study.count(C2T(classifier, beta)) for beta in BETAS] for h, classifier in classifiers.items()}
    goal = points[HIDDEN[-1]][BETAS.index(0.5)]
    ratios = {h: at_equal_tau(values, points[HIDDEN[-1]], goal) for h, values in points.items() if h != HIDDEN[-1]}
    rows = []
    for hidden, classifier in classifiers.items():
        half, metrics = points[hidden][BETAS.index(0.5)], classifier.config.metrics
        ratio = ratios[hidden].estimate if hidden in ratios else 1.0
        shown_metrics = [metrics[name] for name in ("recall", "theta", "average_precision")]
        rows.append([f"HS{hidden}", *shown_metrics, half.tau, half.verified_tokens, ratio, BY_SIZE[hidden]])
    return Report(
        "C2T, figure 6: hidden sizes of the classifier",
        [
            "size",
            "recall",
            "theta",
            "average precision",
            "tau at 0.5",
            "verified tokens",
            "gamma at the same tau",
            "paper: tau",
        ],
        rows,
        of_sizes(ratios),
        ["gamma at the same tau: over HS48's at its tau with beta = 0.5; metrics on validation prompts"],
    )


def of_sizes(ratios: dict[int, Interval]) -> list[Conclusion]:
    """Judge appendix B.3's statements, at the same tau instead of similar gamma."""
    similar = [(f"gamma of HS{h} over HS48's", ratio) for h, ratio in ratios.items() if h >= 12]
    return [
        all_of(
            "hidden sizes of 2 and 6 are worse",
            [above("", f"gamma of HS{h} over HS48's", ratio) for h, ratio in ratios.items() if h < 12],
        ),
        all_of(
            "hidden sizes of 12 to 48 are alike",
            [part for what, ratio in similar for part in (below("", what, ratio, 1.05), above("", what, ratio, 0.95))],
        ),
    ]


REPORTS = {
    "table1": Reproduction(table1),
    "table6": Reproduction(table6),
    "figure6": Reproduction(figure6, {"limit": 12}),
}
