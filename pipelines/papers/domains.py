"""Data sets: tau against gamma on each, and classifiers that learned from another one: figures 4 and 8 of C2T."""

from dataclasses import replace
from pathlib import Path

from c2t.policies import C2T, Eagle2, JointThreshold
from pipelines.papers.report import Report, Reproduction
from pipelines.papers.study import Counted, Study, data_set, default
from pipelines.papers.verdicts import Conclusion, above, all_of, at_equal_tau, below, fact

K, LEVELS = 15, 10  # the paper's for both
SIZES = (15, 30, 60, 100, 200)
BETAS = (0.85, 0.65, 0.5, 0.4, 0.3, 0.2)
THRESHOLDS = (0.1, 0.03, 0.01, 0.004, 0.002)
W15, NAIVE, EAGLE2, SIMPLE = "C2T w15", "C2T w/o", "EAGLE-2", "threshold on P"
Families = dict[str, list[Counted]]


def data_sets(study: Study) -> dict[str, Study]:
    """Return a study of the same pair for every prompt file."""
    files: list[Path] = list(study.settings.prompts) or default(study.settings.pair, "bench")
    return {data_set(file): Study(study.pair, replace(study.settings, prompts=(file,))) for file in files}


def families(study: Study, classifier) -> Families:
    """Return the points of every method."""
    return {
        EAGLE2: [study.count(Eagle2(K, LEVELS, size)) for size in SIZES],
        W15: [study.count(C2T(classifier, beta, K, K, LEVELS)) for beta in BETAS],
        NAIVE: [study.count(C2T(classifier, beta, K, None, LEVELS)) for beta in BETAS],
        SIMPLE: [study.count(JointThreshold(threshold, K, K, LEVELS)) for threshold in THRESHOLDS],
    }


def figure4(study: Study) -> Report:
    """C2T, figure 4: tau against gamma on every data set, of C2T with and without the second top-K, and of EAGLE-2.

    A data set is a prompt file; --limit counts prompts of each. The classifier has learned from the pair's harvest and
    is transferred as it is. The threshold on the joint probability, in C2T's loop, is not in the paper: it is the rival
    to beat.
    """
    classifier = study.classifier()
    by_data_set = {name: families(part, classifier) for name, part in data_sets(study).items()}
    rows = [
        [name, method, point.label, point.tau, point.verified_tokens, point.total.gamma]
        for name, methods in by_data_set.items()
        for method, points in methods.items()
        for point in points
    ]
    return Report(
        "C2T, figure 4: tau and gamma by data set",
        ["data set", "method", "setting", "tau", "verified tokens", "gamma"],
        rows,
        [conclusion for name, methods in by_data_set.items() for conclusion in on_data_set(name, methods)],
        ["the paper's figure (LLaMA-2 7B, six data sets) has no numbers"],
    )


def on_data_set(name: str, methods: Families) -> list[Conclusion]:
    """Judge the statements of section 5.2 and appendix B.6 on the figure, at those taus of EAGLE-2's trees that C2T
    reaches."""
    least, most = (f(point.tau for point in methods[W15]) for f in (min, max))
    goals = sorted((point for point in methods[EAGLE2] if least <= point.tau <= most), key=lambda p: p.tau)
    if not goals:
        return [fact(f"{name}: C2T needs fewer tokens for the same tau", None, "EAGLE-2's taus are not in C2T's reach")]
    low, high = goals[0], goals[-1]
    ratio = {goal.label: at_equal_tau(methods[W15], methods[EAGLE2], goal) for goal in (low, high)}
    values = [interval.estimate for interval in ratio.values()]
    naive = at_equal_tau(methods[NAIVE], methods[W15], high).estimate
    what = f"gamma over EAGLE-2's at the tau of {high.label} ({high.tau:.2f})"
    return [
        below(f"{name}: C2T needs fewer tokens for the same tau", what, ratio[high.label]),
        fact(
            f"{name}: its advantage grows with tau",
            None if low is high or None in values else values[1] < values[0],
            "; ".join(f"at the tau of {label}: {interval}" for label, interval in ratio.items()),
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


CROSS_BETAS = (0.7, 0.5, 0.35, 0.2)
MIDDLE = 1  # the beta at whose tau gammas are compared
ALIKE = 0.05
Scores = dict[str, dict[str, list[Counted]]]  # judged on -> trained on -> points


def cross(study: Study) -> Scores:
    """Count every classifier on every data set."""
    files = list(study.settings.harvest_prompts) or default(study.settings.pair, "harvest")
    trained = {
        data_set(file): Study(study.pair, replace(study.settings, harvest_prompts=(file,), limit=1)).classifier()
        for file in files
    }
    return {
        name: {
            source: [judge.count(C2T(classifier, beta)) for beta in CROSS_BETAS]
            for source, classifier in trained.items()
        }
        for name, judge in data_sets(study).items()
    }


def figure8(study: Study) -> Report:
    """C2T, figure 8: classifiers trained on one data set each, judged on every one.

    A data set is a prompt file. --limit and --harvest-limit count prompts of each.
    """
    scores = cross(study)
    rows = []
    for name, classifiers in scores.items():
        reference = classifiers.get(name, next(iter(classifiers.values())))
        for source, points in classifiers.items():
            ratio = at_equal_tau(points, reference, reference[MIDDLE]).estimate
            rows += [[name, source, point.label, point.tau, point.verified_tokens, ratio] for point in points]
    return Report(
        "C2T, figure 8: classifiers trained on one data set and judged on another",
        ["judged on", "trained on", "setting", "tau", "verified tokens", "gamma at the same tau"],
        rows,
        [alike(name, classifiers) for name, classifiers in scores.items()],
        ["gamma at the same tau: over the own classifier's at beta = 0.5; the paper: on MT-bench, without numbers"],
    )


def alike(name: str, classifiers: dict[str, list[Counted]]) -> Conclusion:
    """Judge appendix B.5: classifiers of other data sets give the same points as the data set's own."""
    reference = name if name in classifiers else next(iter(classifiers))
    parts = []
    for source, points in classifiers.items():
        if source != reference:
            ratio = at_equal_tau(points, classifiers[reference], classifiers[reference][MIDDLE])
            what = f"gamma of {source}'s over {reference}'s"
            parts += [below("", what, ratio, 1 + ALIKE), above("", what, ratio, 1 - ALIKE)]
    return all_of(f"{name}: classifiers of other data sets are nearly identical to its own", parts)


REPORTS = {
    "figure4": Reproduction(figure4, {"limit": 10}),
    "figure8": Reproduction(figure8, {"limit": 8, "harvest_limit": 40, "harvest_tokens": 64}),
}
