"""A packed layer computes what torch's does, and follows its weights."""

import pytest
import torch
from torch import nn

from c2t.models.projection import AVAILABLE, Projection
from tests.rounding import assert_within, dot_bound, growth


def assert_is_the_layers(found: torch.Tensor, linear: nn.Linear, x: torch.Tensor) -> None:
    """Only float32 is packed, and then added in an order of its own; other types are torch's own layer."""
    if x.dtype != torch.float32:
        assert found.equal(linear(x))
        return
    weight, bias = linear.weight.detach().double(), 0.0 if linear.bias is None else linear.bias.detach().double()
    exact = x.double() @ weight.T + bias
    assert_within(found, exact, dot_bound(x, weight.T) + growth(2) * exact.abs())


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


@pytest.mark.skipif(not AVAILABLE, reason="torch was built without oneDNN")
def test_weights_are_packed_once_and_again_when_they_change() -> None:
    linear, x = nn.Linear(8, 4), torch.randn(2, 8)
    projection = Projection(linear)
    with torch.no_grad():
        projection(x)
        packed = projection._packed
        projection(x)
        assert packed is not None
        assert projection._packed is packed
        linear.weight.add_(1)
        assert_is_the_layers(projection(x), linear, x)
        linear.weight = nn.Parameter(torch.randn(4, 8))
        assert_is_the_layers(projection(x), linear, x)


def test_gradients_pass() -> None:
    linear, x = nn.Linear(8, 4), torch.randn(2, 8)
    Projection(linear)(x).sum().backward()
    assert linear.weight.grad is not None


@torch.inference_mode()
def test_layers_made_in_inference_mode_work_too() -> None:
    linear, x = nn.Linear(8, 4), torch.randn(2, 8)
    assert_is_the_layers(Projection(linear)(x), linear, x)
