"""Metrics of a classifier on whole trees of prompts that it was not trained on, and the choice of the epoch to keep."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.errors import InputError


class Validation(NamedTuple):
    """Validation rows: features, labels, and the tree of each row."""

    x: Float[Tensor, "v F"]
    accepted: Bool[Tensor, " v"]
    tree: Int[Tensor, " v"]  # counted from 0 without gaps


class ClassifierMetrics(NamedTuple):
    """Metrics on validation trees.

    recall and theta (the share of nodes called positive) at threshold 0.5 are means over trees, as in the paper, whose
    evaluation batch is one tree; recall is over those with an accepted node. average_precision needs no threshold and
    is over all nodes, because scores must compare between trees.
    """

    recall: float
    theta: float
    average_precision: float


def evaluate(logits: Float[Tensor, " v"], validation: Validation) -> ClassifierMetrics:
    """Return the metrics of scores before the sigmoid, which is 1.0 in float32 for all above 16, for the nodes of whole
    trees. InputError if one is not finite."""
    from sklearn.metrics import average_precision_score  # noqa: PLC0415 - of an extra; reports do without it

    if not logits.isfinite().all():
        raise InputError("the classifier's scores are not finite: train a new one")
    accepted, tree = validation.accepted.double(), validation.tree
    called = (logits >= 0).double()
    nodes = torch.bincount(tree)
    hits, positives, calls = (torch.bincount(tree, weight) for weight in (called * accepted, accepted, called))
    return ClassifierMetrics(
        recall=float((hits / positives)[positives > 0].mean()),
        theta=float((calls / nodes).mean()),
        average_precision=float(average_precision_score(validation.accepted.numpy(), logits.numpy())),
    )


def select(history: Sequence[ClassifierMetrics]) -> int:
    """Return the number of the epoch to keep. Average precision must be within 1 % of the best, then recall within
    0.005 of the highest of those; of the rest the one with the smallest theta is taken.

    Recall alone, as in the paper, would choose an early epoch that calls many more nodes positive: on smollm2's harvest
    its average precision is 0.30 to 0.37, where later epochs reach 0.41.
    """
    best = max(metrics.average_precision for metrics in history)
    near = [i for i, metrics in enumerate(history) if metrics.average_precision >= 0.99 * best]
    recall = max(history[i].recall for i in near)
    similar = [i for i in near if history[i].recall >= recall - 0.005]
    return min(similar, key=lambda i: history[i].theta)
