"""A packed layer computes what torch's does, and follows its weights."""

import pytest
import torch
from torch import nn

from c2t.models.packing import projection
from c2t.models.packing.projection import OneDNNMatrix, Projection, packing_of
from tests.rounding import assert_within, dot_bound, growth


def assert_is_the_layers(found: torch.Tensor, linear: nn.Linear, x: torch.Tensor) -> None:
    """Only float32 is packed, and then added in an order of its own; other types are torch's own layer."""
    if x.dtype != torch.float32:
        assert found.equal(linear(x))
        return
    weight, bias = linear.weight.detach().double(), 0.0 if linear.bias is None else linear.bias.detach().double()
    exact = x.double() @ weight.T + bias
    assert_within(found, exact, dot_bound(x, weight.T) + growth(2) * exact.abs())


@pytest.fixture(params=["kernel", "oneDNN"])
def _packing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of packing, as far as they are there."""
    if request.param == "oneDNN":
        monkeypatch.setattr(projection, "kernels", lambda: None)
    packing = packing_of(nn.Linear(8, 4))
    if packing is None or (packing is OneDNNMatrix) != (request.param == "oneDNN"):
        pytest.skip(f"no {request.param} here")


@pytest.mark.usefixtures("_packing")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3, 40), (1, 5, 40), (2, 17, 40), (0, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@torch.no_grad()
def test_outputs_are_the_layers(shape: tuple[int, ...], dtype: torch.dtype, bias: bool) -> None:
    linear = nn.Linear(40, 96, bias=bias, dtype=dtype)
    x = torch.randn(shape, dtype=dtype)
    found = Projection(linear)(x)
    assert found.shape == (*shape[:-1], 96)
    assert_is_the_layers(found, linear, x)


def test_what_cannot_be_rounded_shares_the_copy() -> None:
    """A matrix of 40 inputs has no whole blocks of them."""
    linear, x = nn.Linear(40, 32), torch.randn(2, 40)
    with torch.no_grad():
        assert Projection(linear)(x).equal(Projection(linear, rounded=True)(x))
    assert len(projection._COPIES.get(linear, {0: None})) == 1


@pytest.mark.usefixtures("_packing")
def test_weights_are_packed_once_and_again_when_they_change() -> None:
    linear, x = nn.Linear(8, 4), torch.randn(2, 8)
    first, second = Projection(linear), Projection(linear)
    with torch.no_grad():
        first(x)
        packed = projection._COPIES[linear][False, False, False][1]
        second(x)
        assert projection._COPIES[linear][False, False, False][1] is packed
        linear.weight.add_(1)
        assert_is_the_layers(first(x), linear, x)
        assert projection._COPIES[linear][False, False, False][1] is not packed
        linear.weight.data += 1
        assert_is_the_layers(first(x), linear, x)
        linear.weight = nn.Parameter(torch.randn(4, 8))
        assert_is_the_layers(first(x), linear, x)


@torch.inference_mode()
def test_changed_layers_made_in_inference_mode_are_seen() -> None:
    linear, x = nn.Linear(8, 4), torch.randn(2, 8)
    assert_is_the_layers(Projection(linear)(x), linear, x)
    linear.weight.add_(1)
    assert_is_the_layers(Projection(linear)(x), linear, x)


def test_gradients_pass() -> None:
    linear, x = nn.Linear(8, 4), torch.randn(2, 8)
    Projection(linear)(x).sum().backward()
    assert linear.weight.grad is not None
