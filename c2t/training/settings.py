"""Settings of a classifier's training; this module needs no package that decoding does not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from pydantic import Field
from torch import Tensor

from c2t.classifier import CONDITIONAL, Hidden, LabelName, Layers, check_weights, known_features
from c2t.records.schema import Records
from c2t.storage.checked import Positive, Share, check_fields

LOGGERS = ("csv", "wandb", "tensorboard")


class Label(NamedTuple):
    """Training target. of: computes it from Records. reads: the optional columns of Records that it needs."""

    of: Callable[[Records], Tensor]
    reads: tuple[str, ...] = ()


# Training targets: the node is accepted; it is accepted if its parent is (learned from children of accepted nodes
# only); or the probability that a token sampled from the draft would be accepted (MCSD+, section 3.3; the paper prints
# max(1, p/q) and means min).
LABELS = {
    "accepted": Label(lambda records: records.accepted.float()),
    CONDITIONAL: Label(lambda records: records.accepted.float(), ("parent_accepted",)),
    "ratio": Label(lambda records: (records.target / records.log_prob.exp()).clamp(max=1), ("target", "log_prob")),
}


@dataclass(frozen=True)
class TrainSettings:
    """Settings of a training, by default C2T's.

    val_fraction: share of the conversations to validate with (see `split_conversations`). fraction: share of the others
    to train on. negatives: sampled for each positive; None or 0 takes all of them. layers: of the network. label: one
    of LABELS. beta: threshold that the classifier will recommend.
    """

    features: Sequence[str] = ("joint_prob", "entropy", "depth")
    hidden: Hidden = 48
    epochs: Positive = 10
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    batch_size: Annotated[int, Field(ge=1, le=2**24)] = 1024  # more would only be memory
    negatives: Annotated[int, Field(ge=0, le=2**20)] | None = 1
    min_steps: Annotated[int, Field(ge=0)] = 2000
    val_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.05
    fraction: Share = 1.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    layers: Layers = 2
    label: LabelName = "accepted"
    beta: Annotated[float, Field(gt=0, lt=1)] = 0.5

    def __post_init__(self):
        check_fields(self)
        known_features(self.features)
        check_weights(len(self.features), self.hidden, self.layers)


# The networks of the papers, and C2T's conditional one. All but the first learn from every negative, so that their
# outputs are probabilities.
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
