"""Probability and acceptance, against counts of single rows."""

from dataclasses import replace

import numpy as np
import pytest

from c2t.records.reader import read_columns
from pipelines.papers import calibration
from pipelines.papers.study import Study
from tests.pipelines.papers.small_study import check
from tests.rounding import assert_within, figure, half_a_digit


@pytest.fixture
def short(study: Study) -> Study:
    return Study(study.pair, replace(study.settings, harvest_tokens=8))


def test_figure2_counts_every_node_once(short: Study) -> None:
    found = check(calibration.figure2(short)).numbers
    harvest = short.harvest(K=calibration.RANKS, levels=1)
    nodes = np.array(found["nodes"])
    assert nodes.sum() == harvest.rows
    assert (nodes == nodes[:, :1]).all()  # every distribution has all its ranks
    assert nodes[:, 0].sum() == harvest.trees
    assert np.sum(found["accepted"]) == harvest.positives
    excess = np.subtract(found["probability"], found["accepted"])
    assert_within(excess, found["excess"], 3 * half_a_digit(4))  # of all three


def test_figure2_judges_the_bias_by_its_standard_error() -> None:
    nodes = np.zeros((len(calibration.BANDS), calibration.RANKS), int)
    nodes[0], excess = 100, np.zeros(nodes.shape)
    excess[0, 0], squares = 50.0, np.zeros(nodes.shape)
    squares[0, 0] = 50.0  # of 100 distributions half are over by 1: mean 0.5, deviation 0.5
    found = calibration.Cells(nodes, excess, excess, excess, squares)
    assert found.best(calibration.LOW) == (figure(0.5), figure(0.05))


def test_eagle2_figure6_counts_the_nodes_under_accepted_ones(short: Study) -> None:
    report = check(calibration.eagle2_figure6(short))
    columns = read_columns(short.harvest().folder, ("tree", "node", "parent", "accepted"))
    trees: dict[int, dict[int, bool]] = {}
    tokens = 0
    for tree, node, parent, accepted in zip(*columns.values(), strict=True):
        tokens += parent == -1 or trees[tree][parent]
        trees.setdefault(tree, {})[node] = accepted
    assert sum(row[1] for row in report.rows) == tokens
    accepted = sum(row[1] * row[3] for row in report.rows if row[1])
    assert accepted == figure(columns["accepted"].sum())
