"""The result of a training."""

from pathlib import Path
from typing import NamedTuple

from c2t.classifier import TreeClassifier
from c2t.training.metrics import ClassifierMetrics


class Result(NamedTuple):
    """Trained classifier, its folder and its metrics."""

    classifier: TreeClassifier
    out: Path
    metrics: ClassifierMetrics
    history: list[ClassifierMetrics]  # of every epoch
    chosen: int  # the epoch that was saved
    before: ClassifierMetrics  # of the untrained network, or of the fine-tuned classifier
    rows: int  # in one pass
    dropped: int  # rows with an input that is not known
    steps: int
    seconds: float
