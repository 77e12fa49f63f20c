"""A head's classifier: commands find it next to the head; and where it cannot be trained, nothing changes."""

import json
import math
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from c2t.classifier import TreeClassifier
from c2t.cli.app import app
from c2t.drafting.train import noted
from c2t.errors import InputError
from c2t.harvest.settings import HarvestSettings
from c2t.models.loading.fingerprint import weights_fingerprint
from c2t.models.loading.load import Pair, load_pair
from c2t.output.signals import Stopped
from c2t.replay.prompts import Prompt
from c2t.study import head_classifier
from c2t.study.head_classifier import FEWEST, train_classifier
from c2t.training.settings import TrainSettings

QUESTIONS = [Prompt(n, "", [f"def f{n}(a, b):\n    return "], "validation") for n in range(FEWEST)]
SMALL = HarvestSettings(K=4, levels=3, M=100, max_new_tokens=8)


@pytest.fixture
def pair(home: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """A target with a head in the folder c2t, as `c2t draft train` leaves it."""
    monkeypatch.setattr(head_classifier, "TrainSettings", lambda: TrainSettings(epochs=1, min_steps=10))
    target = (home / "checkpoints" / "tiny").rename(home / "mine") / "target"
    (target / "c2t").mkdir()
    (target.parent / "draft").rename(target / "c2t" / "draft")
    (target / "c2t" / "provenance.json").write_text(json.dumps({"target_weights": weights_fingerprint(target)}))
    return load_pair(target, dtype=torch.float32)


def c2t(pair: Pair, *words: str) -> str:
    done = CliRunner().invoke(app, ["generate", "--model", pair.sources["target"][0], *words, "--dtype", "float32"])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.slow
def test_commands_find_the_classifier_of_a_trained_head(pair: Pair) -> None:
    heads = Path(pair.sources["target"][0]) / "c2t"
    assert pair.classifier == "target"
    result = train_classifier(pair, QUESTIONS, math.inf, SMALL)
    assert result.out == pair.classifier == heads / "classifier"
    assert sum(weight.numel() for weight in TreeClassifier.from_pretrained(pair.classifier).parameters()) == 241
    assert len(result.classifier.config.validation_prompts) == 8
    assert not (heads / "training" / "harvest").exists()
    words = [QUESTIONS[0].turns[0], "--max-new-tokens", "8", "--policy"]
    assert c2t(pair, *words, "c2t:beta=0.1").splitlines()[:-1] == c2t(pair, *words, "plain").splitlines()[:-1]


def test_the_classifier_of_another_kind_of_head_is_another_one(pair: Pair) -> None:
    heads = Path(pair.sources["target"][0]) / "c2t"
    TreeClassifier().save_pretrained(heads / "classifier_eagle3")
    assert pair.classifier == "target"
    (heads / "draft").rename(heads / "draft_eagle3")
    assert load_pair(pair.sources["target"][0]).classifier == heads / "classifier_eagle3"


@pytest.mark.parametrize(
    ("questions", "until", "said"),
    [
        (QUESTIONS[1:], math.inf, "15 questions are too few, it needs 16: give more --minutes"),
        (QUESTIONS, -math.inf, "the time was too short for 16 questions: give more --minutes"),
    ],
)
def test_too_few_questions_or_seconds_leave_everything_as_it_was(
    questions: list[Prompt], until: float, said: str, pair: Pair
) -> None:
    heads = Path(pair.sources["target"][0]) / "c2t"
    before = sorted(heads.rglob("*"))
    with pytest.raises(InputError, match=said):
        train_classifier(pair, questions, until, SMALL)
    assert sorted(heads.rglob("*")) == before


def test_a_signal_leaves_the_head_and_no_rows(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(pair: Pair, group: list[Prompt], out: Path, *_: object, **__: object) -> None:
        out.mkdir(parents=True)
        raise Stopped(signal.SIGINT)

    monkeypatch.setattr(head_classifier, "harvest", stop)
    heads = Path(pair.sources["target"][0]) / "c2t"
    with pytest.raises(Stopped, match="the best head so far"), noted(heads / "draft"):
        train_classifier(pair, QUESTIONS, math.inf, SMALL)
    assert (heads / "draft" / "config.json").exists()
    assert not list(heads.rglob("harvest"))


def test_rows_are_harvested_until_the_time_is_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def count(folders: list[Path], *_: object, **__: object) -> None:
        raise InputError(f"{len(folders)} harvests")

    monkeypatch.setattr(head_classifier, "train", count)
    clock = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr(head_classifier, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with pytest.raises(InputError, match="2 harvests"):
        train_classifier(pair, QUESTIONS * 2, 3.0, SMALL)
