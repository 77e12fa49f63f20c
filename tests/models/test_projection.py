"""A packed layer computes what torch's does, and follows its weights."""

import pytest
import torch
from torch import nn

from c2t.models.projection import AVAILABLE, Projection


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3, 40), (1, 5, 40), (2, 17, 40), (0, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@torch.no_grad()
def test_outputs_are_the_layers(shape: tuple[int, ...], dtype: torch.dtype, bias: bool) -> None:
    linear = nn.Linear(40, 96, bias=bias, dtype=dtype)
    x = torch.randn(shape, dtype=dtype)
    found = Projection(linear)(x)
    assert found.shape == (*shape[:-1], 96)
    torch.testing.assert_close(found, linear(x))


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
        torch.testing.assert_close(projection(x), linear(x))
        linear.weight = nn.Parameter(torch.randn(4, 8))
        torch.testing.assert_close(projection(x), linear(x))


def test_gradients_pass() -> None:
    linear, x = nn.Linear(8, 4), torch.randn(2, 8)
    Projection(linear)(x).sum().backward()
    assert linear.weight.grad is not None


@torch.inference_mode()
def test_layers_made_in_inference_mode_work_too() -> None:
    linear, x = nn.Linear(8, 4), torch.randn(2, 8)
    torch.testing.assert_close(Projection(linear)(x), linear(x))
