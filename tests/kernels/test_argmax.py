"""The search for the most probable token against torch's."""

import math

import pytest
import torch

from c2t.kernels.argmax import argmax, argmax_at
from tests.rounding import assert_equal

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def logits_of(kind: str, dtype: torch.dtype) -> torch.Tensor:
    """Logits of 3 rows of 5 slots, whose largest values are equal, infinite or NaN in places."""
    logits = torch.randn(3, 5, 1000, generator=torch.Generator().manual_seed(3)).to(dtype)
    if kind == "ties":
        logits = logits.round()
    if kind == "nan":
        logits[0, 1, [900, 40]] = math.nan
        logits[2, 2, 7] = math.inf
        logits[2, 3] = -math.inf
    return logits


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["plain", "ties", "nan"])
def test_it_is_the_first_of_the_largest_as_torch_has_it(kind: str, dtype: torch.dtype) -> None:
    logits = logits_of(kind, dtype)
    assert argmax(logits).equal(logits.argmax(-1))
    assert argmax(logits[..., ::2]).equal(logits[..., ::2].argmax(-1))
    assert argmax(logits[0, 0]).equal(logits[0, 0].argmax(-1))
    rows = torch.arange(3)  # and at one slot of each
    for slots in (torch.tensor([0, 4, 2]), torch.tensor([1, 1, 3])):
        token, largest = argmax_at(logits.flatten(0, 1), 5 * rows + slots)
        assert token.equal(logits[rows, slots].argmax(-1))
        assert_equal(torch.tensor(largest, dtype=dtype), logits[rows, slots].amax(-1))


def test_a_gradient_does_not_stand_in_its_way() -> None:
    logits = torch.randn(2, 3, 10, requires_grad=True)
    assert argmax(logits).equal(logits.argmax(-1))
    flat = logits.flatten(0, 1)
    assert argmax_at(flat, torch.tensor([2, 3]))[0].equal(flat[2:4].argmax(-1))
