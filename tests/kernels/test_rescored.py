"""An LM head in 4 bits whose largest logits are computed again, exactly."""

import pytest
import torch
from torch import nn

from c2t.kernels import rescored
from c2t.kernels.decoder_layers import Kind, PackedMatrix, works
from c2t.kernels.rescored import TOP_RESCORED, RescoredMatrix
from c2t.models.packing.projection import Projection

pytestmark = pytest.mark.skipif(Kind.INT4 not in works(), reason="this processor has no products of bytes")
TOKENS, HIDDEN = 1003, 128  # no whole number of panels


def head(tokens: int = TOKENS, bias: bool = False, dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    generator = torch.Generator().manual_seed(1)
    linear = nn.Linear(HIDDEN, tokens, bias=bias).to(dtype).requires_grad_(False)
    linear.weight.copy_(torch.randn(tokens, HIDDEN, generator=generator))
    if bias:
        linear.bias.copy_(torch.randn(tokens, generator=generator))
    return linear


def states(*rows: int) -> torch.Tensor:
    return torch.randn(*rows, HIDDEN, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_the_largest_of_4_bits_are_those_of_the_weights(rows: int, bias: bool, dtype: torch.dtype) -> None:
    linear, x = head(bias=bias, dtype=dtype), states(rows)
    found = RescoredMatrix(linear.weight, linear.bias)(x)
    int4 = PackedMatrix(linear.weight, linear.bias, Kind.INT4)(x)
    whole = x.double() @ linear.weight.double().T + (linear.bias.double() if bias else 0)
    top = torch.zeros_like(int4, dtype=torch.bool).scatter(1, int4.topk(TOP_RESCORED).indices, True)
    assert (found[top] - whole[top]).abs().max() < 1e-4
    assert found[~top].equal(int4[~top])
    assert (int4[top] - whole[top]).abs().mean() > 0.1, "nothing was rounded, so that nothing was shown"


def test_the_most_probable_token_is_nearly_always_that_of_the_weights() -> None:
    linear, x = head(), states(400)
    whole = (x @ linear.weight.float().T).argmax(1)
    agree = [
        (matrix(x).argmax(1) == whole).float().mean()
        for matrix in (RescoredMatrix(linear.weight), PackedMatrix(linear.weight, None, Kind.INT4))
    ]
    assert agree[0] > 0.99 > 0.95 > agree[1]


@pytest.mark.parametrize("shape", [(), (2, 3), (0,), (1, 0)])
def test_states_may_have_any_shape(shape: tuple[int, ...]) -> None:
    linear, x = head(), states(*shape)
    found = RescoredMatrix(linear.weight)(x)
    assert found.shape == (*shape, TOKENS)
    assert found.view(-1, TOKENS).equal(RescoredMatrix(linear.weight)(x.view(-1, HIDDEN)))


def test_a_few_tokens_are_all_rescored() -> None:
    linear, x = head(tokens=TOP_RESCORED - 3), states(5)
    assert (RescoredMatrix(linear.weight)(x) - x @ linear.weight.float().T).abs().max() < 1e-4


def test_a_projection_has_it_where_it_is_coarse_and_again_when_weights_change() -> None:
    linear, x = head(), states(4)
    project = Projection(linear, rounded=True, int4=True)
    assert project(x).equal(RescoredMatrix(linear.weight)(x))
    linear.weight.mul_(-1)
    assert project(x).equal(RescoredMatrix(linear.weight)(x))
    assert not project(x).equal(Projection(linear, rounded=True)(x))


def test_rows_that_cannot_be_read_as_they_are_stay_in_8_bits() -> None:
    """Every second column of a wider matrix."""
    linear, x = head(), states(4)
    linear.weight = nn.Parameter(torch.stack([linear.weight] * 2, 2).flatten(1)[:, ::2], requires_grad=False)
    assert not rescored.serves(linear.weight)
    assert Projection(linear, rounded=True, int4=True)(x).equal(Projection(linear, rounded=True)(x))
