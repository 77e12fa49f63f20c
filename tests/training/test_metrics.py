"""Means over trees, worked by hand, and the rule that picks an epoch."""

import pytest
import torch
from sklearn.metrics import average_precision_score

from c2t.errors import InputError
from c2t.training.metrics import ClassifierMetrics, Validation, evaluate, select
from tests.rounding import figure


def test_metrics_are_means_over_trees() -> None:
    """Tree 0: 1 of 2 accepted found, 2 of 4 called. Tree 1: 1 of 1, 1 of 2. Tree 2: none accepted, 2 of 2 called."""
    tree = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    accepted = torch.tensor([1, 1, 0, 0, 1, 0, 0, 0], dtype=torch.bool)
    logits = torch.tensor([2.0, -0.5, 0.4, -2.0, 0.0, -1.5, 0.8, 1.5])
    metrics = evaluate(logits, Validation(torch.zeros(8, 3), accepted, tree))
    assert metrics.recall == figure((1 / 2 + 1) / 2)
    assert metrics.theta == figure((2 / 4 + 1 / 2 + 1) / 3)
    assert metrics.average_precision == figure(average_precision_score(accepted, logits))


def test_the_surest_nodes_do_not_tie() -> None:
    """Their sigmoids are all 1.0 in float32."""
    logits, accepted = torch.tensor([20.0, 18.0, 17.0]), torch.tensor([True, False, False])
    assert evaluate(logits, Validation(torch.zeros(3, 3), accepted, torch.zeros(3).long())).average_precision == 1


def test_scores_that_are_not_finite_are_no_classifier() -> None:
    validation = Validation(torch.zeros(2, 3), torch.ones(2) > 0, torch.zeros(2).long())
    with pytest.raises(InputError, match="scores are not finite"):
        evaluate(torch.tensor([1.0, torch.inf]), validation)


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        ((0.9, 0.3, 0.50), (0.8, 0.2, 0.60), 1),  # precision comes first
        ((0.9, 0.3, 0.595), (0.8, 0.2, 0.60), 0),  # within 1 %: recall
        ((0.804, 0.3, 0.60), (0.8, 0.2, 0.60), 1),  # similar recall: the smaller theta
        ((1.0, 1.0, 0.10), (0.5, 0.1, 0.60), 1),  # all-positive networks have full recall
    ],
)
def test_selection(first: tuple[float, ...], second: tuple[float, ...], chosen: int) -> None:
    assert select([ClassifierMetrics(*first), ClassifierMetrics(*second)]) == chosen
