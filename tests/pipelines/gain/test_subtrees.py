"""Trees cut out of harvested ones: columns, counts by hand, and EAGLE-2's selection."""

from pathlib import Path

import numpy as np
import pytest

from pipelines.gain.subtrees import along, cuts, ddd, eagle2, read_nodes, talon
from tests.harvests import two_files
from tests.rounding import figure, growth, within


@pytest.fixture(scope="module")
def harvest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_files(tmp_path_factory.mktemp("subtrees") / "rows")


def test_values_along_a_path() -> None:
    above, depth = np.array([-1, 0, 0, 1]), np.array([0, 1, 1, 2])
    assert along(np.array([1.0, 2.0, 3.0, 4.0]), above, depth).tolist() == [1, 3, 4, 7]
    assert along(np.array([1.0, 2.0, 0.5, 0.7]), above, depth, np.minimum).tolist() == [1, 1, 0.5, 0.7]


def test_columns_are_those_of_the_tree(harvest: Path) -> None:
    nodes = read_nodes(harvest)
    for row in np.random.default_rng(0).integers(0, len(nodes.above), 50):
        path = [row]
        while nodes.above[path[-1]] >= 0:
            path.append(nodes.above[path[-1]])
        assert nodes.depth[row] == len(path) - 1
        entropy = nodes.columns["entropy"][path].sum()
        assert nodes.columns["path_entropy"][row] == figure(entropy, 12)
        steps = nodes.columns["log_prob"][path]  # each the float32 logarithm of a float32 quotient
        step = growth(2) * (len(path) + 1 + abs(steps).sum() + abs(nodes.columns["log_joint"][row]))
        assert nodes.columns["log_joint"][row] == within(steps.sum(), step)
        if nodes.columns["rank"][row] == 0:
            assert nodes.columns["log_max_prob"][row] == nodes.columns["log_prob"][row]


def test_cuts_keep_whole_paths_above_a_threshold(harvest: Path) -> None:
    nodes = read_nodes(harvest)
    score = np.random.default_rng(0).normal(size=len(nodes.above))
    least = along(score, nodes.above, nodes.depth, np.minimum)
    for point in cuts(nodes, "any", score):
        assert point.rounds == (3, 3, 3, 3)
        kept = sum(point.verified) - 12
        threshold = np.sort(least)[::-1][kept - 1]
        for prompt in range(4):
            mine = (nodes.prompt == prompt) & (least >= threshold)
            assert point.verified[prompt] == 3 + mine.sum()
            assert point.accepted[prompt] == (mine & nodes.accepted).sum()


def test_a_threshold_on_the_place_is_eagle2(harvest: Path) -> None:
    nodes = read_nodes(harvest)
    place = eagle2(nodes)
    for tree in np.unique(nodes.tree):
        joint = nodes.columns["log_joint"][nodes.tree == tree]
        best = np.argsort(-joint, kind="stable")[:25]
        assert sorted(-place[nodes.tree == tree][best]) == list(range(25))


def test_eagle2_of_few_levels_keeps_deep_nodes_last(harvest: Path) -> None:
    nodes = read_nodes(harvest)
    place = eagle2(nodes, levels=4)
    assert place[nodes.depth < 4].min() == -(10 + 3 * 100) + 1
    assert place[nodes.depth >= 4].max() == -(10 + 3 * 100)


def test_ddd_ends_with_the_first_improbable_beam(harvest: Path) -> None:
    nodes, threshold = read_nodes(harvest), 0.3
    place = ddd(nodes, threshold)
    ended = set()
    for tree in np.unique(nodes.tree):
        mine = nodes.tree == tree
        joint, depth = nodes.columns["log_joint"][mine], nodes.depth[mine]
        masses = [np.sort(np.exp(joint[depth == level]))[-10:].sum() for level in range(10)]
        levels = 1 + next((level for level, mass in enumerate(masses) if mass < threshold), 10)
        ended.add(levels)
        order = np.lexsort((np.arange(len(joint)), -joint, depth >= levels))
        inside = (depth < levels).sum()
        assert (-place[mine])[order[:inside]].tolist() == list(range(inside))
    assert len(ended) > 1


def test_talon_spends_its_nodes_level_by_level(harvest: Path) -> None:
    nodes, mu = read_nodes(harvest), 0.1
    place = -talon(nodes, mu)
    for tree in np.unique(nodes.tree):
        rows = np.flatnonzero(nodes.tree == tree)
        kept, expected = {-1}, []
        for level in range(11):
            here = rows[nodes.depth[rows] == level]
            best = nodes.columns["log_joint"][here].max()
            near = [
                row
                for row in here[np.argsort(-nodes.columns["log_joint"][here], kind="stable")]
                if level == 0 or (nodes.above[row] in kept and nodes.columns["log_joint"][row] >= best + np.log(mu))
            ]
            kept |= set(near)
            expected += near
        assert rows[np.argsort(place[rows])][: len(expected)].tolist() == expected
