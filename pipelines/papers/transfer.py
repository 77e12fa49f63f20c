"""Classifiers on targets and drafts that they were not trained on: tables 2 and 7, figure 7 of C2T."""

import copy
from pathlib import Path
from typing import NamedTuple

import torch

from c2t.classifier import TreeClassifier
from c2t.policies import C2T, Chain, Eagle2
from c2t.study.interval import Interval
from c2t.training.data import NodeData, TrainSettings
from c2t.training.metrics import ClassifierMetrics, evaluate
from pipelines.papers.report import Quoted, Report, Reproduction, Row, of_policies
from pipelines.papers.study import Counted, Study, available, nearest, relative
from pipelines.papers.verdicts import Conclusion, above, all_of, apart, at_equal_tau, below, fact

FAR_BETA = 0.3
LIMIT = 12  # fewer prompts than elsewhere: trees without second top-K have hundreds of nodes
TARGETS = [  # target, N of EAGLE-2 and what it gives, beta of C2T, of C2T fine-tuned
    ("L2 7B", 290, Quoted(4.40, 2.6e6), {"C2T": (0.3, Quoted(4.41, 2.0e6))}),
    ("L2 13B", 300, Quoted(4.58, 2.6e6), {"C2T": (0.3, Quoted(4.59, 1.9e6))}),
    ("L2 70B", 260, Quoted(4.08, 2.5e6), {"C2T": (0.3, Quoted(4.08, 2.0e6))}),
    ("V 7B", 180, Quoted(5.25, 1.5e6), {"C2T": (0.35, Quoted(5.30, 1.3e6)), "C2T*": (0.25, Quoted(5.32, 1.1e6))}),
    ("V 13B", 200, Quoted(4.02, 1.4e6), {"C2T": (0.35, Quoted(4.03, 1.2e6)), "C2T*": (0.25, Quoted(4.03, 1.1e6))}),
    ("V 33B", 210, Quoted(3.70, 2.0e6), {"C2T": (0.3, Quoted(3.72, 2.0e6)), "C2T*": (0.2, Quoted(3.74, 1.8e6))}),
]


class Transfer(NamedTuple):
    """Result on one target. gain: gamma of C2T over EAGLE-2's. finetuned: gamma of C2T* over C2T's. Each is at the tau
    of C2T."""

    rows: list[Row]
    gain: Interval
    finetuned: Interval | None


def transfer(study: Study, classifier: TreeClassifier, tuned: TreeClassifier | None = None) -> Transfer:
    """Count EAGLE-2, and C2T with the classifier and with the one fine-tuned for this pair, on the study's pair."""
    name, c2t = study.settings.pair, study.count(C2T(classifier, FAR_BETA, W=None))
    sizes = study.eagle2_around(c2t)
    same = nearest(sizes, c2t)
    rows = [_row(name, "EAGLE-2", same), _row(name, "C2T", c2t)]
    if tuned is None:
        return Transfer(rows, at_equal_tau([c2t], sizes, c2t), None)
    points = study.c2t_around(tuned, c2t, W=None)
    rows.append(_row(name, "C2T*", nearest(points, c2t)))
    return Transfer(rows, at_equal_tau([c2t], sizes, c2t), at_equal_tau(points, [c2t], c2t))


def _row(name: str, method: str, counted: Counted) -> Row:
    return Row(f"{name}, {method}", counted.label, counted)


def table2(study: Study) -> Report:
    """C2T, table 2: a classifier on other targets, frozen and fine-tuned; trees without the second top-K.

    It is trained on --pair and used on pairs of the same family (--same) and of another one (--other), where it is also
    fine-tuned on 10 % of that pair's harvest. What is missing is left out, together with the conclusions about it;
    `python -m pipelines.pair` builds `tiny-small` and `tiny-qwen`.
    """
    same, other = map(available, (study.settings.same, study.settings.other))
    classifier = study.classifier()
    results = {study.settings.pair: transfer(study, classifier)}
    for name in filter(None, (same, other)):
        relative_study = relative(study, name)
        results[name] = transfer(
            relative_study, classifier, relative_study.finetuned(classifier) if name == other else None
        )
    what = "gamma over EAGLE-2's at C2T's tau, "
    conclusions = [
        below(f"C2T needs at most 80 % of EAGLE-2's tokens on {name}", what + name, results[name].gain, 0.8)
        for name in (study.settings.pair, same)
        if name
    ]
    if other:
        conclusions += _elsewhere(results, same or study.settings.pair, other)
    rows = [row for result in results.values() for row in result.rows]
    kinds = {"the same family": same, "another family": other}
    notes = [
        f"classifier: {study.settings.training} settings, trained on {study.settings.pair}, K=15, 10 levels, no second "
        f"top-K (at most 64 nodes a level); C2T*: fine-tuned on 10 % of {other or 'the other pair'}'s harvest",
        *(f"left out, not built: a pair of {kind}" for kind, name in kinds.items() if name is None),
    ]
    return of_policies("C2T, table 2: other targets", [*rows, *quoted()], conclusions, notes)


def _elsewhere(results: dict[str, Transfer], near: str, far: str) -> list[Conclusion]:
    what = f"gamma over EAGLE-2's at C2T's tau, {near} and {far},"
    return [
        below(f"still better than EAGLE-2 in another family ({far})", what, results[far].gain),
        apart("the gain is smaller in another family", what, results[near].gain, results[far].gain),
        below("fine-tuning makes it larger there", "gamma of C2T* over C2T's at its tau", results[far].finetuned),
    ]


def quoted() -> list[Row]:
    """Return the paper's rows."""
    rows = []
    for target, size, eagle2, ours in TARGETS:
        rows.append(Row(f"paper: {target}, EAGLE-2", f"N={size}", None, eagle2))
        rows += [Row(f"paper: {target}, {name}", f"beta={beta:g}", None, quote) for name, (beta, quote) in ours.items()]
    return rows


LENGTH = 9  # gamma of the paper's chains is 10 times a whole number of rounds
DRAFTS = {  # draft -> fixed chain; beta and chain with C2T; EAGLE-2 with N = 90; C2T with beta = 0.5
    "EAGLE": (Quoted(1.96, 161020), 0.9, Quoted(1.97, 104141), Quoted(3.68, 935280), Quoted(3.70, 800848)),
    "MTP": (Quoted(2.12, 156040), 0.8, Quoted(2.10, 98141), Quoted(3.86, 900090), Quoted(3.84, 724913)),
}


def table7(study: Study) -> Report:
    """C2T, table 7: a classifier trained on the pair's own draft, frozen, with the draft of --draft."""
    source = relative(study, study.settings.pair)
    classifier = source.classifier()
    rows: list[Row] = []
    chains: list[Conclusion] = []
    trees: list[Conclusion] = []
    for draft, part in (("EAGLE", source), ("MTP", study)):
        name = draft if part is source else Path(study.settings.draft or draft).name
        part_rows, chain, tree = combine(part, classifier, draft, name)
        rows += part_rows
        chains.append(chain)
        trees.append(tree)
    return of_policies(
        "C2T, table 7: a classifier on another kind of draft",
        rows,
        [
            all_of("C2T stops chains of either draft early at the same tau", chains),
            all_of("C2T's trees of either draft need fewer tokens than EAGLE-2's", trees),
        ],
        [f"classifier: {study.settings.training} settings, trained on the pair's own draft; trees: K=W=15, 10 levels"],
    )


def combine(
    study: Study, classifier: TreeClassifier, draft: str, name: str
) -> tuple[list[Row], Conclusion, Conclusion]:
    """Count chains and trees of one draft with and without the classifier; `draft` is the paper's name of it."""
    chain, eagle2 = study.count(Chain(LENGTH)), study.count(Eagle2(K=15, levels=10, N=90))
    c, beta, stopped, e, tree = DRAFTS[draft]

    chains = study.c2t_around(classifier, chain, K=1, W=1)
    trees = study.c2t_around(classifier, eagle2)
    rows = [
        Row(f"{name} C", f"length {LENGTH}", chain, c),
        Row(f"{name} C + C2T", f"beta={beta:g}", study.count(C2T(classifier, beta, K=1, W=1)), stopped),
        _at_equal_tau(f"{name} C + C2T", chains, chain),
        Row(f"{name} EAGLE-2", "N=90", eagle2, e),
        Row(f"{name} C2T", "beta=0.5", study.count(C2T(classifier, 0.5)), tree),
        _at_equal_tau(f"{name} C2T", trees, eagle2),
    ]
    what = "gamma over that without C2T at its tau, "
    return (
        rows,
        below("", f"{what}chains, {name}", at_equal_tau(chains, [chain], chain)),
        below("", f"{what}trees, {name}", at_equal_tau(trees, [eagle2], eagle2)),
    )


def _at_equal_tau(method: str, counts: list[Counted], goal: Counted) -> Row:
    same = nearest(counts, goal)
    return Row(method, f"{same.label} (nearest tau)", same)


FRACTION = 0.1
BETAS = (0.7, 0.5, 0.3)
HALF = BETAS.index(0.5)
BEFORE, AFTER = "transferred", "fine-tuned"


def judged(classifier: TreeClassifier, study: Study) -> ClassifierMetrics:
    """Judge a classifier on the prompts that the study's own classifiers are judged on."""
    settings = TrainSettings(features=classifier.config.features)
    validation = NodeData([study.harvest().folder], settings).validation
    with torch.inference_mode():
        return evaluate(copy.deepcopy(classifier).cpu().logits(validation.x), validation)


def figure7(study: Study) -> Report:
    """C2T, figure 7: fine-tuning on 10 % of another pair's nodes (--same)."""
    source = study.classifier()
    other = relative(study, study.settings.same, study.settings.same_draft)
    made = {BEFORE: source, AFTER: other.finetuned(source, FRACTION)}
    metrics = {name: judged(classifier, other) for name, classifier in made.items()}
    points = {name: [other.count(C2T(classifier, beta)) for beta in BETAS] for name, classifier in made.items()}
    rows = [
        [name, *metrics[name], *(value for counted in counts for value in (counted.tau, counted.verified_tokens))]
        for name, counts in points.items()
    ]
    columns = ["classifier", "recall", "theta", "average precision"]
    return Report(
        f"C2T, figure 7: from {study.settings.pair} to {other.title}, {FRACTION:.0%} of its nodes",
        [*columns, *(f"{x} {b:g}" for b in BETAS for x in ("tau", "gamma"))],
        rows,
        of_finetuning(metrics, points),
        ["metrics on validation prompts of the other pair"],
    )


def of_finetuning(metrics: dict[str, ClassifierMetrics], points: dict[str, list[Counted]]) -> list[Conclusion]:
    """Judge appendix B.4's statements."""
    before, after = (metrics[name] for name in (BEFORE, AFTER))
    ratio = at_equal_tau(points[AFTER], points[BEFORE], points[BEFORE][HALF])
    what = "gamma after over before, at the tau of beta = 0.5 before"
    gammas = [points[name][HALF].total.gamma for name in (BEFORE, AFTER)]
    return [
        fact(
            "fine-tuning improves recall",
            after.recall > before.recall,
            f"recall at 0.5: {before.recall:.3f} before, {after.recall:.3f} after",
        ),
        fact(
            "it also increases the positive rate",
            after.theta > before.theta,
            f"theta at 0.5: {before.theta:.4f} before, {after.theta:.4f} after",
        ),
        all_of("gamma over tau stays as it was", [below("", what, ratio, 1.05), above("", what, ratio, 0.95)]),
        fact(
            "the fine-tuned classifier needs a larger beta",
            gammas[1] > gammas[0],
            f"gamma a round at beta = 0.5: {gammas[0]:.1f} before, {gammas[1]:.1f} after",
        ),
    ]


REPORTS = {
    "table2": Reproduction(table2, {"limit": LIMIT}),
    "table7": Reproduction(table7, {"draft": "lm"}),  # in the paper an MTP layer, which the repository has no room for
    "figure7": Reproduction(figure7, {"limit": 12}),
}
