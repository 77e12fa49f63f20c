"""Element-wise transforms of a node's columns into the classifier's inputs (C2T, section 4.1).

The only definition of a feature: decoding reads the columns of a live tree, training the same columns from disk. The
raw values are the paper's; a variant is one more line of `FEATURES`.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

# `nodes` is anything with the columns `joint` (log joint probability), `entropy` (nats) and `depth`: a Tree, or Nodes.
FEATURES: dict[str, Callable[[Any], Tensor]] = {
    "joint_prob": lambda nodes: nodes.joint.exp(),
    "entropy": lambda nodes: nodes.entropy,
    "depth": lambda nodes: nodes.depth.float(),
}
