"""A study that takes a second: the small pair, a few texts, a network that hardly learns; and counts made by hand."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from c2t.decoding import cut
from c2t.protocols import Policy
from c2t.study import interval
from c2t.verification.target_verifier import generate
from pipelines.papers import study as paper
from pipelines.papers.report import METHOD, Report
from pipelines.papers.study import Study
from pipelines.papers.verdicts import FAILS, HOLDS, OPEN
from tests.rounding import figure

SMALL: dict[str, Any] = {"limit": 3, "max_new_tokens": 8, "harvest_limit": 6, "harvest_tokens": 12}
EPOCHS = 2


def small_training(patch: pytest.MonkeyPatch) -> None:
    """Few steps of optimisers and of searches."""
    short = {
        name: replace(settings, epochs=EPOCHS, min_steps=10, val_fraction=0.4)
        for name, settings in paper.TRAINING.items()
    }
    patch.setattr(paper, "TRAINING", short)
    patch.setattr(paper, "TrainSettings", partial(paper.TrainSettings, min_steps=10))
    patch.setattr(paper, "FINETUNE", replace(paper.FINETUNE, epochs=1, min_steps=10))
    patch.setattr(paper, "STEPS", 1)
    patch.setattr(interval, "RESAMPLES", 50)


def decoded(study: Study, policy: Policy) -> tuple[float, int, float]:
    """tau, verified tokens and draft passes a round of the policy, counted while it decodes every prompt alone and
    live; its text is that of plain decoding."""
    s, texts = study.settings, study.texts(policy.levels)
    accepted, verified, passes = [], 0, 0
    for number, (ids, plain) in enumerate(zip(study.encoded.ids, texts, strict=True)):
        new: list[int] = []
        for step in generate(
            study.pair.target,
            study.pair.draft,
            policy,
            [ids],
            max_new_tokens=s.max_new_tokens,
            sampling=study.sampling,
            eos=study.pair.target.eos,
            sequences=[number],
        ):
            new += step.tokens[0, : step.count[0]].tolist()
            if step.tree is not None:
                accepted.append(int((step.accepted.slots[0] > 0).sum()))
                verified += int(step.tree.alive[0].sum())
                passes += int(step.draft_passes[0])
        assert cut(new, s.max_new_tokens, study.pair.target.eos) == plain.tokens[plain.prompt : plain.end].tolist()
    return sum(accepted) / len(accepted), verified, passes / len(accepted)


def counts_in(report: Report, method: str, setting: str) -> tuple[float, int, float]:
    """The same numbers as a table prints them."""
    (row,) = (dict(zip(report.columns, row, strict=True)) for row in report.rows if row[:2] == [method, setting])
    tau = row["tau"] if "tau" in row else row["tau + 1"] - 1
    return figure(tau), row["verified tokens"], figure(row["passes/round"])


def check(report: Report) -> Report:
    """Look at what holds of every report: whole rows, judged conclusions, and rounds that end with the text."""
    assert all(len(row) == len(report.columns) for row in report.rows)
    assert report.conclusions
    assert {one.verdict for one in report.conclusions} <= {HOLDS, FAILS, OPEN}
    if tuple(report.columns[:2]) == METHOD:
        assert "rounds end where plain decoding's texts end: holds in all" in report.notes[-1]
    return report
