"""A model of a tensor core for Triton's interpreter, whose own products are numpy's: their bits depend on the number of
rows.
"""

from importlib import import_module

import numpy as np
import pytest


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply as `product` does while a test runs."""
    interpreter = import_module("triton.runtime.interpreter")

    def create_dot(_builder, a, b, onto, *_):
        parts = (part.data.astype(np.float64) for part in (a, b, onto))
        return interpreter.TensorHandle(product(*parts), onto.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


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
