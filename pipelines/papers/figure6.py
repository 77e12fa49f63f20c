"""C2T, figure 6: the training of classifiers of several hidden sizes, and what they are worth in trees.

python -m pipelines.papers.figure6 [--pair NAME] [--draft NAME] [--training committed]
"""

import csv
from pathlib import Path

from c2t.classifier import TreeClassifier
from c2t.policies import C2T
from pipelines.papers import drawing
from pipelines.papers.figures import Shown, script
from pipelines.papers.study import Study
from pipelines.papers.verdicts import Conclusion, Estimate, above, all_of, at_equal_tau, below

HIDDEN = (2, 6, 12, 24, 36, 48)
PAPER = dict(zip(HIDDEN, (3.91, 3.97, 4.02, 4.03, 4.02, 4.02), strict=True))  # tau at beta = 0.5, gammas alike
BETAS = (0.3, 0.5, 0.7)
CURVES = ("loss", "recall", "theta")


def history(classifier: TreeClassifier) -> dict[str, list[float]]:
    """Loss, and recall, theta and average precision on held-out prompts, after each epoch of a trained classifier."""
    with (Path(classifier.name) / "metrics.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["recall"]]
    return {name: [float(line[name]) for line in lines] for name in (*CURVES, "average_precision")}


def figure(study: Study) -> Shown:
    """C2T, figure 6: hidden sizes."""
    classifiers = {hidden: study.classifier(hidden=hidden) for hidden in HIDDEN}
    curves = {hidden: history(classifier) for hidden, classifier in classifiers.items()}
    points = {h: [study.count(C2T(classifier, beta)) for beta in BETAS] for h, classifier in classifiers.items()}
    drawn, panels = drawing.panels(len(CURVES))
    for panel, name in zip(panels, CURVES, strict=True):
        drawing.curves(panel, {f"HS{hidden}": found[name] for hidden, found in curves.items()}, start=1)
        panel.set_ylabel(name)
    goal = points[HIDDEN[-1]][BETAS.index(0.5)]
    ratios = {h: at_equal_tau(found, points[HIDDEN[-1]], goal) for h, found in points.items() if h != HIDDEN[-1]}
    rows = []
    for hidden, classifier in classifiers.items():
        half, metrics = points[hidden][BETAS.index(0.5)], classifier.config.metrics
        ratio = ratios[hidden].value if hidden in ratios else 1.0
        kept = [metrics[name] for name in ("recall", "theta", "average_precision")]
        rows.append([f"HS{hidden}", *kept, half.tau, half.verified_tokens, ratio, PAPER[hidden]])
    return Shown(
        "C2T, figure 6: hidden sizes of the classifier",
        drawn,
        [
            "size",
            "recall",
            "theta",
            "average precision",
            "tau at 0.5",
            "verified tokens",
            "gamma at equal tau",
            "paper: tau",
        ],
        rows,
        conclusions(ratios),
        ["gamma at equal tau: over that of HS48, at the tau of HS48 with beta = 0.5; metrics on held-out prompts"],
        {"epochs": {str(hidden): found for hidden, found in curves.items()}},
    )


def conclusions(ratios: dict[int, Estimate]) -> list[Conclusion]:
    """What appendix B.3 says, at equal tau instead of similar gamma."""
    similar = [(f"gamma of HS{h} over HS48's", found) for h, found in ratios.items() if h >= 12]
    return [
        all_of(
            "hidden sizes of 2 and 6 are worse",
            [above("", f"gamma of HS{h} over HS48's", found) for h, found in ratios.items() if h < 12],
        ),
        all_of(
            "hidden sizes of 12 to 48 are alike",
            [part for what, found in similar for part in (below("", what, found, 1.05), above("", what, found, 0.95))],
        ),
    ]


if __name__ == "__main__":
    script("figure6", figure, limit=12)
