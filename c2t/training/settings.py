"""What a classifier is trained with; nothing here needs more than decoding does."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from c2t.classifier import CONDITIONAL, known_features
from c2t.errors import InputError
from c2t.records.schema import Records

LOGGERS = ("csv", "wandb", "tensorboard")


class Label(NamedTuple):
    """of: what is learned of a node. reads: the further columns of Records that this takes."""

    of: Callable[[Records], Tensor]
    reads: tuple[str, ...] = ()


# What the network is trained to say: whether the node is accepted; the same if its parent is (learned from the nodes
# for which that was asked: the children of accepted ones); or how likely a token drawn from the draft would be accepted
# (MCSD+, section 3.3; the paper prints max(1, p/q) and means min).
LABELS = {
    "accepted": Label(lambda records: records.accepted.float()),
    CONDITIONAL: Label(lambda records: records.accepted.float(), ("parent_accepted",)),
    "ratio": Label(lambda records: (records.target / records.log_prob.exp()).clamp(max=1), ("target", "log_prob")),
}


@dataclass(frozen=True)
class TrainSettings:
    """C2T's settings; `fraction` of the training prompts is used, `negatives` of None or 0 means all of them; `layers`
    of the network, `label` one of LABELS. beta: threshold that the classifier is to recommend."""

    features: Sequence[str] = ("joint_prob", "entropy", "depth")
    hidden: int = 48
    epochs: int = 10
    lr: float = 1e-3
    batch_size: int = 1024
    negatives: int | None = 1
    min_steps: int = 2000
    val_fraction: float = 0.05
    fraction: float = 1.0
    seed: int = 0
    layers: int = 2
    label: str = "accepted"
    beta: float = 0.5

    def __post_init__(self):
        known_features(self.features)
        if self.label not in LABELS or self.layers < 2:
            raise InputError(f"label = {self.label!r} must be {' or '.join(LABELS)}, layers = {self.layers} at least 2")
        for name in ("hidden", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} = {getattr(self, name)} must be at least 1")
        if not 0 < self.lr < math.inf or (self.negatives or 0) < 0:
            raise InputError(f"lr = {self.lr} must be above 0 and finite, negatives = {self.negatives} not below 0")
        if not -(2**63) <= self.seed < 2**63:
            raise InputError(f"seed = {self.seed} must be a number of 64 bits")
        if not 0 < self.beta < 1:
            raise InputError(f"beta = {self.beta} must be between 0 and 1, both excluded")
        if not (0 < self.val_fraction < 1 and 0 < self.fraction <= 1):
            raise InputError(
                f"val_fraction = {self.val_fraction} must be in (0, 1), fraction = {self.fraction} in (0, 1]"
            )


# The networks of the papers, and C2T's conditional one. All but the first leave no negatives out, so that a threshold
# means what it says.
MODELS = {
    "c2t": TrainSettings(),
    "c2t-conditional": TrainSettings(
        ("log_prob", "log_max_prob", "rank", "entropy", "depth"), negatives=None, lr=3e-3, label=CONDITIONAL, beta=0.05
    ),
    "mcsd-hidden": TrainSettings(("hidden",), negatives=None, layers=3, label="ratio"),
    "mcsd-topk": TrainSettings(("top_probs", "entropy"), negatives=None),
}
OLD_MODELS = {"c2t-steps": "c2t-conditional"}  # names of version 0.1
FINETUNE = TrainSettings(fraction=0.1, lr=1e-4)
