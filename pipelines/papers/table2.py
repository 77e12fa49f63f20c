"""C2T's table 2: a classifier on targets that it was not trained on, frozen and fine-tuned; trees without second top-K.

    python -m pipelines.papers.table2 [--pair tiny] [--same tiny-small] [--other tiny-qwen] [--no-build]

The classifier is trained on --pair and used on pairs of the same family (--same) and of another one (--other), where it
is also fine-tuned on 10 % of that pair's harvest. The embedded repository has only `tiny`: its two relatives are built
by `python -m pipelines.pair.build` where they are missing (about 20 minutes each on two cores), or left out with
--no-build, together with the conclusions about them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import typer

from c2t.classifier import TreeClassifier
from c2t.cli import shared, terminal
from c2t.policies import C2T
from c2t.storage import paths as checkpoints
from pipelines.pair.build import build, stages_of
from pipelines.pair.recipes import PAIRS
from pipelines.papers import command, tables
from pipelines.papers.study import Counted, Study, nearest
from pipelines.papers.tables import Quoted, Report, Row
from pipelines.papers.verdicts import Conclusion, Estimate, apart, at_equal_tau, below

BETA = 0.3
LIMIT = 12  # fewer prompts than elsewhere: trees without second top-K have hundreds of nodes
PAPER = [  # target, N of EAGLE-2 and what it gives, beta of C2T, of C2T fine-tuned
    ("L2 7B", 290, Quoted(4.40, 2.6e6), {"C2T": (0.3, Quoted(4.41, 2.0e6))}),
    ("L2 13B", 300, Quoted(4.58, 2.6e6), {"C2T": (0.3, Quoted(4.59, 1.9e6))}),
    ("L2 70B", 260, Quoted(4.08, 2.5e6), {"C2T": (0.3, Quoted(4.08, 2.0e6))}),
    ("V 7B", 180, Quoted(5.25, 1.5e6), {"C2T": (0.35, Quoted(5.30, 1.3e6)), "C2T*": (0.25, Quoted(5.32, 1.1e6))}),
    ("V 13B", 200, Quoted(4.02, 1.4e6), {"C2T": (0.35, Quoted(4.03, 1.2e6)), "C2T*": (0.25, Quoted(4.03, 1.1e6))}),
    ("V 33B", 210, Quoted(3.70, 2.0e6), {"C2T": (0.3, Quoted(3.72, 2.0e6)), "C2T*": (0.2, Quoted(3.74, 1.8e6))}),
]


class Transfer(NamedTuple):
    """One target. gain: gamma of C2T over EAGLE-2's, finetuned: of C2T* over C2T's, each at the tau of C2T."""

    rows: list[Row]
    gain: Estimate
    finetuned: Estimate | None


def transfer(study: Study, classifier: TreeClassifier, tuned: TreeClassifier | None = None) -> Transfer:
    """The classifier, and the one fine-tuned for this pair, against EAGLE-2 on the study's pair."""
    name, c2t = study.settings.pair, study.count(C2T(classifier, BETA, W=None))
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


def table(study: Study, same: str | None, other: str | None) -> Report:
    """C2T, table 2: transfer to other targets."""
    classifier = study.classifier()
    found = {study.settings.pair: transfer(study, classifier)}
    for name in filter(None, (same, other)):
        beside = relative(study, name)
        found[name] = transfer(beside, classifier, beside.finetuned(classifier) if name == other else None)
    what = "gamma over EAGLE-2's at C2T's tau, "
    conclusions = [
        below(f"C2T needs at most 80 % of EAGLE-2's tokens on {name}", what + name, found[name].gain, 0.8)
        for name in (study.settings.pair, same)
        if name
    ]
    if other:
        conclusions += _elsewhere(found, same or study.settings.pair, other)
    rows = [row for one in found.values() for row in one.rows]
    notes = [
        f"classifier: {study.settings.training} settings, trained on {study.settings.pair}, K=15, 10 levels, no second "
        f"top-K (at most 64 nodes a level); C2T*: fine-tuned on 10 % of {other or 'the other pair'}'s harvest",
        *(f"left out, not built: a pair of {kind}" for kind, name in kinds(same, other).items() if name is None),
    ]
    return Report("C2T, table 2: other targets", [*rows, *quoted()], conclusions, notes)


def _elsewhere(found: dict[str, Transfer], near: str, far: str) -> list[Conclusion]:
    what = f"gamma over EAGLE-2's at C2T's tau, {near} and {far},"
    return [
        below(f"still better than EAGLE-2 in another family ({far})", what, found[far].gain),
        apart("the gain is smaller in another family", what, found[near].gain, found[far].gain),
        below("fine-tuning makes it larger there", "gamma of C2T* over C2T's at its tau", found[far].finetuned),
    ]


def kinds(same: str | None, other: str | None) -> dict[str, str | None]:
    """The pairs that a classifier is carried to."""
    return {"the same family": same, "another family": other}


def quoted() -> list[Row]:
    """The paper's rows."""
    rows = []
    for target, size, eagle2, ours in PAPER:
        rows.append(Row(f"paper: {target}, EAGLE-2", f"N={size}", None, eagle2))
        rows += [Row(f"paper: {target}, {name}", f"beta={beta:g}", None, quote) for name, (beta, quote) in ours.items()]
    return rows


def relative(study: Study, name: str) -> Study:
    """The same study of another pair."""
    settings = replace(study.settings, pair=name, draft=None)
    return Study(shared.load(name, None, None, str(study.pair.target.device), None, None), settings)


def available(names: Sequence[str], make: bool) -> list[str | None]:
    """The pairs that can be loaded; those of our recipes are built if `make`."""
    ready: list[str | None] = []
    for name in names:
        there = name in checkpoints.known("target")
        if not there and make and name in PAIRS:
            terminal.say(f"{name} is built first: about 20 minutes on two cores; --no-build leaves it out", error=True)
            build(PAIRS[name], stages_of(PAIRS[name]))
            there = True
        ready.append(name if there else None)
    return ready


def main(same: str, other: str, make: bool, **chosen: Any) -> Report:
    """C2T, table 2: transfer to other targets."""
    near, far = available((same, other), make)
    return tables.run("table2", lambda study: table(study, near, far), **chosen)


OPTIONS = {
    "same": (Annotated[str, typer.Option(help="Pair of the same family.")], "tiny-small"),
    "other": (Annotated[str, typer.Option(help="Pair of another family.")], "tiny-qwen"),
    "make": (
        Annotated[bool, typer.Option("--build/--no-build", help="Build missing pairs, or leave them out.")],
        True,
    ),
}

if __name__ == "__main__":
    command.run(main, main.__doc__, OPTIONS, limit=LIMIT)
