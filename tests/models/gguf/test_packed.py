"""A file's blocks are multiplied as they are, and give a row the same bits alone and among others."""

import pytest
import torch

from c2t.kernels.decoder_layers import BLOCK, Kind, NumbersMatrix, works
from c2t.models.gguf.blocks import NAMED, Q4_0, dequantized
from c2t.models.gguf.packed import KINDS, numbers_of
from tests.models.gguf.small_files import random_blocks
from tests.rounding import assert_within, growth

needs_bytes = pytest.mark.skipif(Kind.INT8 not in works(), reason="this processor has no products of bytes")
NAMES = [kind.name for kind in KINDS]


def matrix_of(name: str, outputs: int, inputs: int) -> tuple[NumbersMatrix, torch.Tensor]:
    """A matrix of random blocks, and its weights."""
    rows = torch.from_numpy(random_blocks(name, outputs, inputs)[0])
    return NumbersMatrix([numbers_of(rows, NAMED[name])]), dequantized(rows, NAMED[name])


@needs_bytes
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("outputs", "inputs"), [(70, 512), (1, 256), (4200, 256)])
def test_products_are_those_of_the_weights_and_inputs_in_bytes(name: str, outputs: int, inputs: int) -> None:
    matrix, weight = matrix_of(name, outputs, inputs)
    x = torch.randint(-127, 128, (9, inputs // BLOCK, BLOCK), generator=torch.Generator().manual_seed(0))
    x[..., 0] = 127  # so that 8 bits hold all of them exactly
    x = x.flatten(1).float()
    # a weight is a scale times a number, and an offset, which may be larger than their sum
    size = 64 * weight.abs().amax(1) * x.abs().sum(1, keepdim=True)
    assert_within(matrix(x), x.double() @ weight.double().T, growth(inputs // 16 + 8) * size.double())


@needs_bytes
@pytest.mark.parametrize("name", NAMES)
def test_a_row_has_the_same_bits_alone_and_among_others(name: str) -> None:
    matrix, _ = matrix_of(name, 96, 512)
    x = torch.randn(60, 512, generator=torch.Generator().manual_seed(0))
    together = matrix(x)
    for count in range(1, 10):
        assert all(torch.equal(matrix(x[at : at + count]), together[at : at + count]) for at in (0, 29, 60 - count))


@needs_bytes
def test_matrices_of_several_kinds_follow_each_other() -> None:
    rows = {name: torch.from_numpy(random_blocks(name, outputs, 256)[0]) for name, outputs in SEVERAL}
    parts = [numbers_of(some, NAMED[name]) for name, some in rows.items()]
    bias = torch.randn(sum(outputs for _, outputs in SEVERAL), generator=torch.Generator().manual_seed(0))
    x = torch.randn(11, 256, generator=torch.Generator().manual_seed(1))
    alone = torch.cat([NumbersMatrix([part])(x) for part in parts], 1)
    assert torch.equal(NumbersMatrix(parts, bias)(x), alone + bias)


SEVERAL = (("Q4_K", 64), ("Q5_0", 32), ("Q6_K", 40))


def test_what_has_no_form_is_known() -> None:
    for name in ("Q5_1", "Q5_K"):
        assert numbers_of(torch.from_numpy(random_blocks(name, 2, 256)[0]), NAMED[name]) is None
    rows = torch.from_numpy(random_blocks("Q4_0", 2, 64)[0])
    assert numbers_of(rows[:, :18], Q4_0) is None, "32 inputs are no block of inputs in 8 bits"
    rows[0, :2] = torch.tensor([3e4]).half().view(torch.uint8)
    assert numbers_of(rows, Q4_0) is None, "8 times its scale is beyond fp16"
