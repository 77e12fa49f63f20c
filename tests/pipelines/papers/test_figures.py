"""Every figure's script on the small pair: a readable PNG, and numbers that must be right whatever the pair is."""

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from c2t.classifier import ClassifierConfig, TreeClassifier
from c2t.records.reader import describe, read_columns
from c2t.training.data import TrainSettings
from pipelines.papers import (
    eagle2_calibration,
    figure2,
    figure4,
    figure5,
    figure6,
    figure7,
    figure8,
    figure9,
    figure10,
    figure11,
    figures,
    stages,
)
from pipelines.papers import study as paper
from pipelines.papers.figures import Shown
from pipelines.papers.study import Study

SMALL = {"limit": 3, "max_new_tokens": 8, "harvest_limit": 6, "harvest_tokens": 8}
EPOCHS = 2
PNG = b"\x89PNG"


@pytest.fixture(autouse=True)
def quick(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings of a few steps, and few settings of each policy."""
    monkeypatch.setitem(paper.TRAINING, "paper", TrainSettings(epochs=EPOCHS, min_steps=20, val_fraction=0.4))
    monkeypatch.setattr(paper, "TrainSettings", partial(TrainSettings, min_steps=20))
    for module, name, values in (
        (figure4, "SIZES", (4, 15)),
        (figure4, "BETAS", (0.7, 0.6)),
        (figure4, "THRESHOLDS", (0.1, 0.03)),
        (figure5, "SIZES", (4, 15)),
        (figure5, "BETAS", (0.5,)),
        (figure5, "REPEATS", 1),
        (figure6, "HIDDEN", (2, 12, 48)),
        (figure6, "BETAS", (0.6, 0.5)),
        (figure8, "BETAS", (0.6, 0.5)),
        (figure8, "MIDDLE", 1),
    ):
        monkeypatch.setattr(module, name, values)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Shown]:
    """Runs a figure as its script does, and looks at what it has written."""

    def run(name: str, build: Callable[[Study], Shown], **settings: Any) -> Shown:
        shown = figures.run(name, build, tmp_path, str(tmp_path / "lines.jsonl"), **{**SMALL, **settings})
        png = (tmp_path / f"{name}.png").read_bytes()
        assert png[:4] == PNG
        assert 2_000 < len(png) < 80_000
        assert (tmp_path / "lines.jsonl").read_text().count("\n") == 1
        assert shown.conclusions
        assert all(len(row) == len(shown.columns) for row in shown.rows)
        return shown

    return run


def harvested(home: Path) -> Path:
    (folder,) = (home / "data" / "harvest").iterdir()
    return folder


def test_figure2_counts_every_node_once(make: Callable[..., Shown], home: Path) -> None:
    found = make("figure2", figure2.figure).numbers
    harvest = describe(harvested(home))
    nodes = np.array(found["nodes"])
    assert nodes.sum() == harvest.rows
    assert (nodes == nodes[:, :1]).all()  # every distribution has all its ranks
    assert nodes[:, 0].sum() == harvest.trees
    assert np.sum(found["accepted"]) == harvest.positives
    np.testing.assert_allclose(np.subtract(found["probability"], found["accepted"]), found["excess"], atol=1e-4)


def test_figure2_judges_the_bias_by_its_standard_error() -> None:
    nodes = np.zeros((len(figure2.BANDS), figure2.RANKS), int)
    nodes[0], excess = 100, np.zeros(nodes.shape)
    excess[0, 0], squares = 50.0, np.zeros(nodes.shape)
    squares[0, 0] = 50.0  # of 100 distributions half are over by 1: mean 0.5, deviation 0.5
    found = figure2.Cells(nodes, excess, excess, excess, squares)
    assert found.best(figure2.LOW) == (pytest.approx(0.5), pytest.approx(0.05))


def test_calibration_counts_the_nodes_under_accepted_ones(make: Callable[..., Shown], home: Path) -> None:
    shown = make("eagle2_calibration", eagle2_calibration.figure)
    columns = read_columns(harvested(home), ("tree", "node", "parent", "accepted"))
    trees: dict[int, dict[int, bool]] = {}
    tokens = 0
    for tree, node, parent, accepted in zip(*columns.values(), strict=True):
        tokens += parent == -1 or trees[tree][parent]
        trees.setdefault(tree, {})[node] = accepted
    assert sum(row[1] for row in shown.rows) == tokens
    accepted = sum(row[1] * row[3] for row in shown.rows if row[1])
    assert accepted == pytest.approx(columns["accepted"].sum())


def test_figure4_has_every_method_on_every_data_set(make: Callable[..., Shown], home: Path) -> None:
    (home / "data" / "prompts" / "other.jsonl").write_text((home / "data" / "prompts" / "code.jsonl").read_text())
    rows = make("figure4", figure4.figure, limit=1, max_new_tokens=4).rows
    points = [row[1:] for row in rows if row[0] == "code"]
    assert points == [row[1:] for row in rows if row[0] == "other"]  # the same prompts under another name
    assert {row[0] for row in points} == {figure4.EAGLE2, figure4.W15, figure4.NAIVE, figure4.SIMPLE}
    assert [row[-1] for row in points if row[0] == figure4.EAGLE2] == list(figure4.SIZES)  # gamma a round is N


def test_figure5_adds_up(make: Callable[..., Shown]) -> None:
    shown = make("figure5", figure5.figure, limit=1, max_new_tokens=4)
    columns = dict(zip(shown.columns, zip(*shown.rows, strict=True), strict=True))
    assert list(columns["verified tokens"][:2]) == [
        n * r for n, r in zip(figure5.SIZES, columns["rounds"], strict=False)
    ]
    assert min(*columns["draft, s"], *columns["verify, s"]) > 0


def test_figure6_draws_every_epoch(make: Callable[..., Shown]) -> None:
    shown = make("figure6", figure6.figure)
    for epochs in shown.numbers["epochs"].values():
        assert {name: len(values) for name, values in epochs.items()} == dict.fromkeys(epochs, EPOCHS)
    sizes = {row[0]: row for row in shown.rows}
    recall = shown.columns.index("recall")
    for hidden, found in shown.numbers["epochs"].items():
        assert min(abs(sizes[f"HS{hidden}"][recall] - value) for value in found["recall"]) < 1e-6
    assert sizes["HS48"][shown.columns.index("gamma at equal tau")] == 1


def test_figure7_starts_from_the_transferred_classifier(
    make: Callable[..., Shown], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "checkpoints" / "llama2-7b").rename(home / "checkpoints" / "tiny-small")
    shown = make("figure7", lambda study: figure7.figure(study, "tiny-small", None))
    rows = {row[0]: row[1:] for row in shown.rows}
    assert list(rows) == [figure7.BEFORE, figure7.AFTER, figure7.SCRATCH]
    last = {name: [found[curve][-1] for curve in figure7.CURVES] for name, found in shown.numbers["epochs"].items()}
    assert rows[figure7.BEFORE] != rows[figure7.AFTER]
    assert set(last) == {figure7.AFTER, figure7.SCRATCH}


def test_figure8_compares_a_classifier_with_itself_at_one(make: Callable[..., Shown], home: Path) -> None:
    text = (home / "data" / "prompts" / "harvest" / "code.jsonl").read_text().splitlines(keepends=True)
    (home / "data" / "prompts" / "harvest" / "prose.jsonl").write_text("".join(reversed(text)))
    shown = make("figure8", figure8.figure)
    ratios = {tuple(row[:2]): row[-1] for row in shown.rows}
    assert set(ratios) == {("code", "code"), ("code", "prose")}
    assert ratios["code", "code"] == 1
    assert len({tuple(row[3:5]) for row in shown.rows}) > 1


def only_p() -> TreeClassifier:
    """Its output before the sigmoid is 3 P."""
    classifier = TreeClassifier(ClassifierConfig(hidden=1))
    with torch.no_grad():
        classifier.hidden.weight.copy_(torch.tensor([[3.0, 0.0, 0.0]]))
        classifier.output.weight.fill_(1)
        for bias in (classifier.hidden.bias, classifier.output.bias):
            bias.zero_()
    return classifier


def test_figure9_finds_the_feature_that_matters(make: Callable[..., Shown]) -> None:
    make("figure9", figure9.figure)
    assert figure9.shares(only_p()) == {"P": pytest.approx(1), "H": pytest.approx(0), "d": pytest.approx(0)}


def test_figure10_reads_the_surfaces(make: Callable[..., Shown]) -> None:
    make("figure10", figure10.figure)
    found = figure10.surfaces(only_p())
    expected = torch.sigmoid(3 * torch.tensor(figure10.AXES["P"])).numpy()
    np.testing.assert_allclose(found["H", 2], np.repeat(expected[:, None], 11, 1), rtol=1e-6)
    np.testing.assert_allclose(found["P", 0.5], 1 / (1 + np.exp(-1.5)), rtol=1e-6)
    verdicts = [one.verdict for one in figure10.conclusions(found)]
    assert verdicts[0] == "holds"  # surfaces of P are apart
    assert verdicts[1] == verdicts[3] == verdicts[5] == "does not hold"  # neither H nor d does anything


def test_figure11_stages_add_up(make: Callable[..., Shown]) -> None:
    """On a clock that ticks each time it is read, a stage without stages inside takes one tick a call."""
    ticks = count()
    shown = make("figure11", lambda study: figure11.figure(study, lambda: float(next(ticks))), limit=1)
    eagle2, ours = (dict(zip(shown.columns, row, strict=True)) for row in shown.rows)
    assert eagle2["gamma"] == figure11.N
    assert eagle2["passes/round"] == figure11.LEVELS
    assert eagle2["classifier, ms"] == 0
    assert ours["classifier, ms"] == pytest.approx(1e3 * ours["passes/round"])  # once a level
    assert eagle2["verify, ms"] == ours["verify, ms"] == pytest.approx(1e3)
    for row in (eagle2, ours):
        assert sum(row[f"{stage}, ms"] for stage in stages.DRAFT) == pytest.approx(row["draft, ms"])
