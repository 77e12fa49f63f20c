"""C2T, figure 7: fine-tuning a classifier on 10 % of another pair's nodes, against training from scratch on them.

    python -m pipelines.papers.figure7 [--pair NAME] [--pair-to NAME] [--draft-to NAME]

The other pair is `tiny-small` by default; where it is not there, it is built first (about 15 minutes of training).
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from c2t.classifier import TreeClassifier
from c2t.cli import shared, terminal
from c2t.policies import C2T
from c2t.storage import paths as checkpoints
from c2t.training.data import NodeData, TrainSettings
from c2t.training.metrics import Metrics, evaluate
from pipelines.pair.build import build, stages_of
from pipelines.pair.recipes import PAIRS
from pipelines.papers import command, drawing
from pipelines.papers.figure6 import history
from pipelines.papers.figures import FIGURES, Out, Shown, fact, run
from pipelines.papers.study import Counted, Study
from pipelines.papers.verdicts import Conclusion, above, all_of, at_equal_tau, below

FRACTION = 0.1
BETAS = (0.7, 0.5, 0.3)
HALF = BETAS.index(0.5)
CURVES = ("recall", "theta", "average_precision")
BEFORE, AFTER, SCRATCH = "transferred", "fine-tuned", "from scratch"


def ensure(name: str) -> None:
    """Build a pair of this project's own that is not there yet."""
    if name in PAIRS and name not in checkpoints.known("target"):
        terminal.say(f"{name} is not there yet: building it in {PAIRS[name].out}")
        build(PAIRS[name], stages_of(PAIRS[name]))


def judged(classifier: TreeClassifier, study: Study) -> Metrics:
    """Of a classifier on the prompts that the study's own classifiers are judged on."""
    settings = TrainSettings(features=classifier.config.features)
    validation = NodeData([study.harvest().folder], settings).validation
    with torch.inference_mode():
        return evaluate(classifier.cpu().logits(validation.x).sigmoid(), validation)


def figure(study: Study, pair_to: str, draft_to: str | None) -> Shown:
    """C2T, figure 7: fine-tuning."""
    source = study.classifier()
    ensure(pair_to)
    settings = replace(study.settings, pair=pair_to, draft=draft_to)
    other = Study(shared.load(pair_to, None, draft_to, str(study.pair.target.device), None, None), settings)
    made = {BEFORE: source, AFTER: other.finetuned(source, FRACTION), SCRATCH: other.classifier(fraction=FRACTION)}
    metrics = {name: judged(classifier, other) for name, classifier in made.items()}
    epochs = {name: history(made[name]) for name in (AFTER, SCRATCH)}
    points = {name: [other.count(C2T(classifier, beta)) for beta in BETAS] for name, classifier in made.items()}
    drawn, panels = drawing.panels(len(CURVES) + 1, columns=2)
    for panel, curve in zip(panels, CURVES, strict=False):
        lines = {AFTER: [getattr(metrics[BEFORE], curve), *epochs[AFTER][curve]], SCRATCH: epochs[SCRATCH][curve]}
        drawing.curves(panel, {AFTER: lines[AFTER], SCRATCH: [float("nan"), *lines[SCRATCH]]})
        panel.set_ylabel(curve)
    drawing.fronts(
        panels[-1], {name: [(one.tau, one.verified_tokens) for one in found] for name, found in points.items()}
    )
    rows = [
        [name, *metrics[name], *(value for one in found for value in (one.tau, one.verified_tokens))]
        for name, found in points.items()
    ]
    return Shown(
        f"C2T, figure 7: from {study.settings.pair} to {other.title}, {FRACTION:.0%} of its nodes",
        drawn,
        [
            "classifier",
            "recall",
            "theta",
            "average precision",
            *(f"{x} {b:g}" for b in BETAS for x in ("tau", "gamma")),
        ],
        rows,
        conclusions(metrics, points),
        ["metrics on held-out prompts of the other pair; epoch 0 is the classifier as transferred"],
        {"epochs": epochs},
    )


def conclusions(metrics: dict[str, Metrics], points: dict[str, list[Counted]]) -> list[Conclusion]:
    """Appendix B.4."""
    before, after, scratch = (metrics[name] for name in (BEFORE, AFTER, SCRATCH))
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
        fact(
            "(not in the paper) it is better than one trained from scratch on the same nodes",
            after.average_precision > scratch.average_precision,
            f"average precision {after.average_precision:.3f} and {scratch.average_precision:.3f}",
        ),
    ]


def main(pair_to: str, draft_to: str | None, out: Path, **chosen: Any) -> Shown:
    """C2T, figure 7: fine-tuning a classifier on 10 % of another pair's nodes."""
    return run("figure7", partial(figure, pair_to=pair_to, draft_to=draft_to), out, **chosen)


OPTIONS = {
    "pair_to": (Annotated[str, typer.Option(help="NAME of the pair to transfer to.")], "tiny-small"),
    "draft_to": (Annotated[str | None, typer.Option(help="Its draft.", show_default="eagle")], None),
    "out": (Out, FIGURES),
}

if __name__ == "__main__":
    command.run(main, main.__doc__, OPTIONS, limit=12)
