"""A tensor core's product of bfloat16 numbers: by a kernel of this device in tiles of several sizes, and by a model.

The model also multiplies in Triton's interpreter, whose own products are numpy's: their bits depend on the number of
rows.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from itertools import product as combinations
from typing import Any, NamedTuple, no_type_check
from unittest import mock

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pipelines.gpu.lines import Finding

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None


class ProductSizes(NamedTuple):
    """A product of `rows` x `depth` and `depth` x `columns` numbers."""

    rows: int
    depth: int
    columns: int


PRODUCT = ProductSizes(64, 4096, 16384)
TINY_PRODUCT = ProductSizes(64, 256, 64)
ROWS, DEPTHS = (16, 32, 64), (32, 64, 128)  # sizes of tiles
COLUMNS = 64  # of a tile, which are its rows where operands are swapped
MODELLED = 10_000  # outputs that are compared with the model


def product(a: np.ndarray, b: np.ndarray, onto: np.ndarray) -> np.ndarray:
    """Return onto + a b in float32, as Hopper's tensor cores compute it (arXiv 2511.10909): 16 terms and the
    accumulator in one sum, aligned to the largest and truncated to 25 fractional bits, then towards 0 to float32.

    A row of the result is a function of one row of a.
    """
    for k in range(0, a.shape[-1], 16):
        terms = np.concatenate([onto[:, :, None], a[:, None, k : k + 16] * b.T[None, :, k : k + 16]], 2)
        largest = np.abs(terms).max(2, keepdims=True)
        quantum = np.exp2(np.floor(np.log2(np.where(largest == 0, 1, largest))) - 25)
        mantissa, exponent = np.frexp((np.trunc(terms / quantum) * quantum).sum(2))
        onto = np.ldexp(np.trunc(mantissa * 2**24) / 2**24, exponent)
    return onto.astype(np.float32)


def interpreter() -> Any:
    """Return the module of Triton's interpreter."""
    return import_module("triton.runtime.interpreter")


def create_dot(_builder: Any, a: Any, b: Any, onto: Any, *_: Any) -> Any:
    """Do `InterpreterBuilder.create_dot` by `product`."""
    parts = (part.data.astype(np.float64) for part in (a, b, onto))
    return interpreter().TensorHandle(product(*parts), onto.dtype.scalar)


def modelled() -> AbstractContextManager:
    """Return a context in which Triton's interpreter multiplies as `product` does."""
    return mock.patch.object(interpreter().InterpreterBuilder, "create_dot", create_dot)


def by_kernel(
    a: Float[Tensor, "M K"], b: Float[Tensor, "K N"], rows: int, columns: int, depth: int
) -> Float[Tensor, "M N"]:
    """Return a b in float32 by tiles of `rows` x `columns` outputs and `depth` terms, which divide the sizes. One
    accumulator goes over the terms upwards."""
    out = torch.empty(len(a), b.shape[1], dtype=torch.float32, device=a.device)
    _product[(len(a) // rows, b.shape[1] // columns)](
        *(a, b, out, *a.stride(), *b.stride(), b.shape[1], a.shape[1]),
        ROWS=rows,
        COLUMNS=columns,
        DEPTH=depth,
        INTERPRETED=a.device.type == "cpu",
        num_warps=4,
        num_stages=2,
    )
    return out


if triton is not None:  # no_type_check keeps run-time checkers of annotations out of the kernel's source
    # fmt: off
    @triton.jit
    @no_type_check
    def _product(
        a, b, out, a_row, a_column, b_row, b_column, width, terms,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, INTERPRETED: tl.constexpr,
    ):
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        for base in range(0, terms, DEPTH):
            term = base + tl.arange(0, DEPTH)
            left = tl.load(a + row[:, None] * a_row + term[None, :] * a_column)
            right = tl.load(b + term[:, None] * b_row + column[None, :] * b_column)
            if INTERPRETED:  # it multiplies the bits of bfloat16 numbers instead of the numbers
                left, right = left.to(tl.float32), right.to(tl.float32)
            acc = tl.dot(left, right, acc)
        tl.store(out + row[:, None] * width + column[None, :], acc)
    # fmt: on


def measure_mma(device: torch.device, tiny: bool) -> Iterator[Finding]:
    """Compare the outputs of all tiles and both orders of the operands with the first one's, and with the model."""
    sizes = TINY_PRODUCT if tiny else PRODUCT
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator).bfloat16().to(device)  # noqa: E731
    x, weight = draw(sizes.rows, sizes.depth), draw(sizes.columns, sizes.depth)
    expected: Tensor | None = None
    for swapped, rows, depth in combinations((False, True), ROWS, DEPTHS):
        if swapped:
            computed = by_kernel(weight, x.T, COLUMNS, rows, depth).T
        else:
            computed = by_kernel(x, weight.T, rows, COLUMNS, depth)
        expected = computed if expected is None else expected
        differing = int((computed != expected).sum())
        operands = "weights first" if swapped else "weights second"
        what = f"tiles of {rows} rows and {depth} terms, {operands}"
        figures = {"outputs": computed.numel(), "differing": differing}
        yield Finding("mma", what, f"{differing} of {computed.numel()} outputs differ", figures, differing)
    yield against_model(x, weight, expected)


def against_model(x: Float[Tensor, "M K"], weight: Float[Tensor, "N K"], computed: Float[Tensor, "M N"]) -> Finding:
    """Compare outputs with the model, which is Hopper's: on another card differences are no failure."""
    columns = min(len(weight), -(-MODELLED // len(x)))
    left, right = (operand.double().cpu().numpy() for operand in (x, weight[:columns].T))
    expected = torch.from_numpy(product(left, right, np.zeros((len(x), columns))))
    differing = int((computed[:, :columns].cpu() != expected).sum())
    said = f"{differing} of {expected.numel()} outputs differ"
    decides = not x.is_cuda or torch.cuda.get_device_capability(x.device)[0] == 9
    said += "" if decides else "; the model is another architecture's"
    figures = {"outputs": expected.numel(), "differing": differing}
    return Finding("mma", "the model of Hopper's tensor core", said, figures, differing if decides else 0)
