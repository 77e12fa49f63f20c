"""Logistic regression as classifier, the simpler model to compare a network with. It is saved, loaded and used like any
other classifier."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from c2t.classifier import ClassifierConfig, TreeClassifier
from c2t.storage import paths as checkpoints
from c2t.training.data import NodeData, TrainSettings
from c2t.training.fit import config_of
from c2t.training.metrics import evaluate


def train_logistic(
    data: Sequence[str | Path], out: Path, settings: TrainSettings = TrainSettings(), overwrite: bool = False
) -> TreeClassifier:
    """Fit scikit-learn's logistic regression to one draw of the rows that the network would learn from, and save it in
    `out`.

    Of the settings it reads features, negatives, fraction and seed.
    """
    checkpoints.check_classifier_out(out, overwrite)
    nodes = NodeData(data, settings)
    rows = nodes.training.draw()
    x, accepted = nodes.training.x.index_select(0, rows), nodes.training.accepted.index_select(0, rows)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x.numpy(), accepted.numpy())
    scale, regression = torch.from_numpy(model[0].scale_), model[1]
    weight = torch.from_numpy(regression.coef_[0]) / scale
    bias = float(regression.intercept_[0] - (weight * torch.from_numpy(model[0].mean_)).sum())
    config = config_of(nodes, settings)
    metrics = evaluate(linear(weight, bias, config).logits(nodes.validation.x).detach(), nodes.validation)
    classifier = linear(weight, bias, replace(config, metrics=metrics._asdict()))
    with checkpoints.replacing(out) as folder:
        classifier.save_pretrained(folder)
    return classifier


def linear(weight: Float[Tensor, " F"], bias: float, config: ClassifierConfig) -> TreeClassifier:
    """Return the network that computes sigmoid(weight x + bias): two hidden units, z and -z, because z = relu(z) -
    relu(-z)."""
    classifier = TreeClassifier(replace(config, hidden=2))
    sign = torch.tensor([1.0, -1.0])
    with torch.no_grad():
        classifier.hidden.weight.copy_(sign[:, None] * weight)
        classifier.hidden.bias.copy_(sign * bias)
        classifier.output.weight.copy_(sign[None])
        classifier.output.bias.zero_()
    return classifier.eval()
