"""The inputs of the network are the paper's raw values, in whatever shape the columns have."""

import math
from types import SimpleNamespace

import pytest
import torch

from c2t.classifier import features
from c2t.errors import InputError
from c2t.kernels.features import FEATURES, WIDE
from tests.rounding import assert_within, growth, within

NODES = SimpleNamespace(
    log_joint=torch.tensor([[0.5, 0.25], [1.0, 1e-6]]).log(),
    entropy=torch.tensor([[0.0, 1.5], [2.5, 6.0]]),
    depth=torch.tensor([[0, 1], [2, 10]], dtype=torch.uint8),
    log_prob=torch.tensor([[0.5, 0.3], [1.0, 1e-3]]).log(),
    max_log_prob=torch.tensor([[0.5, 0.5], [1.0, 0.9]]).log(),
    rank=torch.tensor([[0, 1], [0, 7]]),
)


def test_raw_values_in_the_order_of_the_names() -> None:
    x = features(NODES, ("depth", "joint_prob", "entropy"))
    assert x.shape == (2, 2, 3)
    assert x.dtype == torch.float32
    assert x[..., 0].tolist() == [[0, 1], [2, 10]]
    assert x[..., 2].equal(NODES.entropy)
    for place, prob in (((0, 0), 0.5), ((1, 1), 1e-6)):  # an exponential of a rounded logarithm
        assert x[(*place, 1)].item() == within(prob, (growth(4) - growth(1) * math.log(prob)) * prob)


def test_the_log_odds_of_the_most_probable_sibling_are_finite() -> None:
    even = features(NODES, ("max_prob_logit",))[0, :, 0]  # log-odds have the slope 4 at a half
    assert_within(even, torch.zeros(2), 4 * growth(5))
    assert features(NODES, ("max_prob_logit",)).isfinite().all()


def test_every_feature_is_element_wise() -> None:
    """Decoding computes features level by level, training for millions of rows at once."""
    row = SimpleNamespace(**{name: column[1:, :1] for name, column in vars(NODES).items()})
    for name in FEATURES.keys() - set(WIDE):
        assert torch.equal(features(row, (name,)), features(NODES, (name,))[1:, :1])


def test_unknown_or_missing_names_list_the_known() -> None:
    for names in (("joint_prob", "colour"), ()):
        with pytest.raises(InputError, match="known: joint_prob, entropy, depth"):
            features(NODES, names)
