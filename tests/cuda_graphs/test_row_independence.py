"""The check that a product's rows do not depend on each other, on products that do so in different ways."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from c2t.cuda_graphs.row_independence import are_independent, check_rows
from c2t.errors import InputError


def linear(forward: Callable[[Tensor], Tensor] | None = None) -> nn.Linear:
    """A product whose numbers are whole, so that every order of adding gives the same bits, but for a fault."""
    module = nn.Linear(12, 5, bias=False, dtype=torch.float64).requires_grad_(False)
    module.weight.copy_(torch.randint(-9, 9, (5, 12)))
    if forward:
        whole = module.forward
        module.forward = lambda x: forward(whole(x))
    return module


FAULTS = {
    "by its place": lambda out: out * (1 + (torch.arange(len(out)) > 6)[:, None] * 2.0**-20),
    "by the others": lambda out: out + (out.roll(1, 0) != out) * 2.0**-40,
    "by the largest": lambda out: out + out.amax(0) * 2.0**-40 * (out < out.amax(0)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_dependence_is_seen_and_named(fault: str) -> None:
    assert not are_independent(linear(FAULTS[fault]), 16)
    with pytest.raises(InputError, match=r"a row of third \(5 x 12, torch.float64\) depends on the other 15 rows"):
        check_rows(nn.ModuleDict({"third": linear(FAULTS[fault])}), 16)


def test_each_shape_is_checked_once() -> None:
    calls = []
    first, second = linear(lambda out: calls.append("first") or out), linear(lambda out: calls.append("second") or out)
    check_rows(nn.ModuleDict({"first": first, "second": second}), 8)
    assert set(calls) == {"first"}


def test_the_layers_of_gpt2_are_products_too() -> None:
    layer = Conv1D(5, 12).double()
    assert are_independent(layer, 1)
    with torch.no_grad():
        layer.forward = lambda x: (x @ layer.weight) * (1 + torch.arange(len(x))[:, None])
        with pytest.raises(InputError, match=r"a row of 0 \(12 x 5, torch.float64\) depends on the other 7 rows"):
            check_rows(nn.Sequential(layer), 8)
