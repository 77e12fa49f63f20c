"""The classifier's confidence in C is torch's."""

import copy
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from c2t.classifier import CONDITIONAL, ClassifierConfig, TreeClassifier, features
from c2t.kernels import network
from c2t.kernels.native import kernels
from c2t.tree import Nodes
from tests.rounding import assert_equal, assert_within, confidence_bound

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")

NAMES = ("joint_prob", "entropy", "depth", "log_joint", "log_prob", "log_max_prob", "rank")


def classifier(hidden: int = 48, names: tuple[str, ...] = NAMES, **settings) -> TreeClassifier:
    with torch.random.fork_rng():
        torch.manual_seed(hidden)
        made = TreeClassifier(ClassifierConfig(features=names, hidden=hidden, **settings))
    return made.requires_grad_(False)


def nodes(rows: int, count: int, seed: int = 0) -> Nodes:
    generator = torch.Generator().manual_seed(seed)
    real = -5 * torch.rand(4, rows, count, generator=generator)
    whole = torch.randint(0, 9, (4, rows, count), generator=generator)
    token, parent, depth, rank = whole
    log_prob, log_joint, entropy, most = real
    alive = torch.ones(rows, count, dtype=torch.bool)
    return Nodes(token, parent, depth, rank, log_prob, log_joint, -entropy, most, log_joint, alive)


def in_torch(model: TreeClassifier, of: Nodes) -> torch.Tensor:
    with torch.enable_grad():  # where kernels are not used
        return model(of)


@pytest.mark.parametrize("names", [NAMES, NAMES[:3], ("rank",), ("log_max_prob", "depth")])
@pytest.mark.parametrize("count", [1, 7, 16, 225])
@torch.no_grad()
def test_confidences_are_those_of_torch(names: tuple[str, ...], count: int) -> None:
    model, some = classifier(names=names), nodes(3, count)
    assert network.serves(model.network, some)
    x = features(some, names)
    found, exact = model(some), torch.sigmoid(copy.deepcopy(model).double().logits(x.double()))
    assert found.shape == (3, count)
    assert_within(found, exact, confidence_bound(model, x), "confidence")


@torch.no_grad()
def test_a_node_has_the_same_confidence_among_any_others() -> None:
    model, some = classifier(), nodes(2, 50)
    together = model(some)
    for row, place in ((0, 0), (0, 49), (1, 17)):
        alone = Nodes(**{name: column[row : row + 1, place : place + 1] for name, column in some.columns().items()})
        assert model(alone).item() == together[row, place].item()


@torch.no_grad()
def test_a_node_without_an_input_has_no_confidence() -> None:
    some = nodes(1, 20)
    some.entropy[0, 3] = float("nan")
    assert classifier()(some).isnan().nonzero().tolist() == [[0, 3]]


@torch.no_grad()
def test_what_c_cannot_read_is_left_to_torch() -> None:
    some = nodes(1, 4)
    wide = Nodes(**{name: c.double() if c.is_floating_point() else c for name, c in some.columns().items()})
    assert not network.serves(classifier().network, wide)
    assert not network.serves(classifier().double().network, some)
    assert classifier(layers=3).network is None
    assert classifier(names=("max_prob_logit",)).network is None
    for model, of in ((classifier(), wide), (classifier().double(), some), (classifier(layers=3), some)):
        assert_equal(model(of).double(), in_torch(model, of).double())


@torch.no_grad()
def test_columns_of_several_shapes_are_refused_as_ever() -> None:
    some = nodes(1, 4)
    broken = SimpleNamespace(log_joint=some.log_joint, entropy=some.entropy[0], depth=some.depth)
    with pytest.raises(RuntimeError):
        classifier(names=NAMES[:3])(broken)


@torch.no_grad()
def test_torchs_defaults_do_not_matter() -> None:
    model, some = classifier(), nodes(2, 9)
    expected = model(some)
    torch.set_default_dtype(torch.float16)
    try:
        assert model(some).equal(expected)
    finally:
        torch.set_default_dtype(torch.float32)


@torch.no_grad()
def test_other_layers_and_settings_are_not_those_it_knows() -> None:
    model, some = classifier(), nodes(1, 4)
    model(some)
    model.config = replace(model.config, label=CONDITIONAL)
    assert model.network.conditional
    model.output = nn.Sequential(model.output, nn.Identity())
    assert model.network is None
    assert model(some).shape == (1, 4)


@torch.no_grad()
def test_a_copy_reads_its_own_weights() -> None:
    model, some = classifier(), nodes(1, 5)
    model(some)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301 - made here
        other.output.bias.data.add_(1.0)
        assert (other(some) > model(some)).all()
        assert other.network is not model.network


def test_a_network_is_the_same_until_its_weights_are_replaced() -> None:
    model = classifier(label=CONDITIONAL)
    before = model.network
    assert before.conditional
    assert model.network is before
    model.hidden.weight.data.mul_(2)  # in place, as training does
    assert model.network is before
    model.output.bias.data = torch.ones(1)
    assert model.network is not before
