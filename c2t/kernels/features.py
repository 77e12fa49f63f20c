"""Element-wise transforms of a node's columns into the classifier's inputs (C2T, section 4.1).

This is the only definition of a feature: decoding reads the columns of a live tree, training the same columns from
disk. The first three are the paper's, as raw values; a variant is one more line of `FEATURES`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Column:
    """Column as it is, or its exponential: a feature that a kernel can compute from this description."""

    name: str
    exp: bool = False

    def __call__(self, nodes: Any) -> Tensor:
        column = getattr(nodes, self.name)
        return column.exp() if self.exp else column


def max_prob_logit(nodes: Any) -> Tensor:
    """Return the log-odds of the most probable sibling's draft probability."""
    return torch.logit(nodes.max_log_prob.exp(), eps=1e-6)


# `nodes` is anything with the columns of a Tree or Nodes that the feature reads.
FEATURES: dict[str, Callable[[Any], Tensor]] = {
    "joint_prob": Column("log_joint", exp=True),
    "entropy": Column("entropy"),
    "depth": Column("depth"),
    "log_joint": Column("log_joint"),
    "log_prob": Column("log_prob"),
    "log_max_prob": Column("max_log_prob"),
    "rank": Column("rank"),
    "max_prob_logit": max_prob_logit,
    "top_probs": lambda nodes: nodes.top_probs,
    "hidden": lambda nodes: nodes.hidden,
}
# Several inputs a node: the k highest probabilities and the draft's hidden state of the distribution that the node was
# sampled from. For decision models (MCSD+, section 3.3); trees do not store these.
WIDE = ("top_probs", "hidden")
# Columns that records do not store under these names, by the features that read them.
DERIVED = {"log_prob": "log_prob", "log_max_prob": "max_log_prob", "max_prob_logit": "max_log_prob", "rank": "rank"}
