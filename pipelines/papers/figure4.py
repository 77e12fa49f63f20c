"""C2T, figure 4: tau against gamma on every data set, of C2T with and without the second top-K, and of EAGLE-2.

    python -m pipelines.papers.figure4 [--pair NAME] [--draft NAME] [--prompts FILE --prompts FILE]

A data set is a prompt file; --limit counts prompts of each. The classifier has learned from the pair's harvest and is
transferred as it is. The threshold on the joint probability, in C2T's loop, is not in the paper: the figure it must
beat.
"""

from dataclasses import replace
from pathlib import Path

from c2t.policies import C2T, Eagle2, JointThreshold
from pipelines.papers import drawing
from pipelines.papers.figures import Shown, fact, script
from pipelines.papers.study import Counted, Study, default
from pipelines.papers.verdicts import Conclusion, at_equal_tau, below

K, LEVELS = 15, 10  # the paper's for both
SIZES = (15, 30, 60, 100, 200)
BETAS = (0.85, 0.65, 0.5, 0.4, 0.3, 0.2)
THRESHOLDS = (0.1, 0.03, 0.01, 0.004, 0.002)
W15, NAIVE, EAGLE2, SIMPLE = "C2T w15", "C2T w/o", "EAGLE-2", "threshold on P"
Families = dict[str, list[Counted]]


def data_sets(study: Study) -> dict[str, Study]:
    """A study of the same pair for every prompt file."""
    files: list[Path] = list(study.settings.prompts) or default(study.settings.pair, "bench")
    return {file.stem: Study(study.pair, replace(study.settings, prompts=(file,))) for file in files}


def families(study: Study, classifier) -> Families:
    """The points of every method."""
    return {
        EAGLE2: [study.count(Eagle2(K, LEVELS, size)) for size in SIZES],
        W15: [study.count(C2T(classifier, beta, K, K, LEVELS)) for beta in BETAS],
        NAIVE: [study.count(C2T(classifier, beta, K, None, LEVELS)) for beta in BETAS],
        SIMPLE: [study.count(JointThreshold(threshold, K, K, LEVELS)) for threshold in THRESHOLDS],
    }


def figure(study: Study) -> Shown:
    """C2T, figure 4: tau against gamma by data set."""
    classifier = study.classifier()
    found = {name: families(part, classifier) for name, part in data_sets(study).items()}
    drawn, panels = drawing.panels(len(found))
    for panel, (name, methods) in zip(panels, found.items(), strict=True):
        drawing.fronts(
            panel, {method: [(one.tau, one.verified_tokens) for one in points] for method, points in methods.items()}
        )
        panel.set_title(name, fontsize="medium")
    rows = [
        [name, method, one.label, one.tau, one.verified_tokens, one.total.gamma]
        for name, methods in found.items()
        for method, points in methods.items()
        for one in points
    ]
    return Shown(
        "C2T, figure 4: tau and gamma by data set",
        drawn,
        ["data set", "method", "setting", "tau", "verified tokens", "gamma"],
        rows,
        [conclusion for name, methods in found.items() for conclusion in conclusions(name, methods)],
        ["the paper (LLaMA-2 7B, six data sets) draws its figure without numbers"],
    )


def conclusions(name: str, methods: Families) -> list[Conclusion]:
    """What section 5.2 and appendix B.6 read off the figure, at the tau of EAGLE-2's trees within C2T's reach."""
    least, most = (f(one.tau for one in methods[W15]) for f in (min, max))
    goals = sorted((one for one in methods[EAGLE2] if least <= one.tau <= most), key=lambda one: one.tau)
    if not goals:
        return [fact(f"{name}: C2T needs fewer tokens for the same tau", None, "EAGLE-2's taus are not in C2T's reach")]
    low, high = goals[0], goals[-1]
    ratio = {goal.label: at_equal_tau(methods[W15], methods[EAGLE2], goal) for goal in (low, high)}
    values = [found.value for found in ratio.values()]
    naive = at_equal_tau(methods[NAIVE], methods[W15], high).value
    what = f"gamma over EAGLE-2's at the tau of {high.label} ({high.tau:.2f})"
    return [
        below(f"{name}: C2T needs fewer tokens for the same tau", what, ratio[high.label]),
        fact(
            f"{name}: its advantage grows with tau",
            None if low is high or None in values else values[1] < values[0],
            "; ".join(f"at the tau of {label}: {found}" for label, found in ratio.items()),
        ),
        fact(
            f"{name}: the second top-K keeps the distribution",
            None if naive is None else abs(naive - 1) < 0.1,
            f"gamma without it over gamma with it = {naive or float('nan'):.3f} at that tau, holds within 10 %",
        ),
        below(
            f"{name}: (not in the paper) C2T beats the threshold on P",
            f"gamma over the threshold's at the tau of {high.label}",
            at_equal_tau(methods[W15], methods[SIMPLE], high),
        ),
    ]


if __name__ == "__main__":
    script("figure4", figure, limit=10)
