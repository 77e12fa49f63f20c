"""Learned scores: from models that saw other files, of whole paths and under accepted parents."""

from pathlib import Path

import numpy as np
import pytest

from pipelines.gain import variants
from pipelines.gain.subtrees import along, read_nodes
from pipelines.gain.variants import Variant, learned, scores
from tests.harvests import two_files
from tests.rounding import growth


@pytest.fixture(scope="module")
def harvest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_files(tmp_path_factory.mktemp("variants") / "rows")


def test_a_file_is_scored_by_models_of_the_others(harvest: Path) -> None:
    nodes, seen = read_nodes(harvest), []

    def fit(x, y, nodes, chosen):
        seen.append(set(nodes.fold[chosen]))
        return lambda rows: np.full(len(rows), float(len(seen)))

    score = learned(nodes, Variant(("log_joint",), fit))
    assert seen == [{1}, {0}]
    assert (score == nodes.fold + 1).all()


def test_conditional_scores_are_learned_under_accepted_parents_and_multiplied(harvest: Path) -> None:
    nodes = read_nodes(harvest)

    def fit(x, y, nodes, chosen):
        parents = nodes.above[chosen]
        assert nodes.accepted[parents[parents >= 0]].all()
        assert (parents < 0).sum() == 10 * len(np.unique(nodes.tree[chosen]))
        return lambda rows: np.log(np.exp(rows[:, 0]) / (1 - np.exp(rows[:, 0])))

    score = learned(nodes, Variant(("log_prob",), fit, conditional=True))
    # The model answers in float32: 1 - p errs by four roundings, which log-odds enlarge 1 / (1 - p) p-fold; a path has
    # at most 11 of them.
    log_prob = nodes.columns["log_prob"]
    step = growth(4) * (1 + np.abs(log_prob)) + growth(4) * np.exp(log_prob) / -np.expm1(log_prob)
    bound = along(step, nodes.above, nodes.depth)
    assert (np.abs(score - along(log_prob, nodes.above, nodes.depth)) <= bound).all()


def test_a_network_learns_again_from_what_its_trees_asked_about(harvest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "GROWN", 3)
    nodes, learned_from = read_nodes(harvest), []

    def fit(x, y, nodes, chosen):
        learned_from.append(chosen)
        return lambda rows: rows[:, 0]

    learned(nodes, Variant(("log_joint",), fit, grown=1))
    first, again = learned_from[:2]
    trees = len(np.unique(nodes.tree[first]))
    assert len(again) < len(first)
    kept = set(nodes.above[again]) - {-1}
    assert 0 < len(kept) <= 3 * trees  # the parents of what was asked about


@pytest.mark.parametrize(
    "name", ["paper's network", "network, all 11, ranked in the tree", "logistic, log P", "conditional: network, own 8"]
)
@pytest.mark.slow
def test_variants_learn(name: str, harvest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "STEPS", 200)
    nodes = read_nodes(harvest)
    ((_, score),) = scores(nodes, [name])
    assert score[nodes.accepted].mean() > score[~nodes.accepted].mean()
