"""How far apart two computations of one thing may lie on any processor.

Processors add in different orders (vector width, fused multiply-add, threads), so nothing here is what a machine
printed: bounds follow from the unit roundoff u of the type and the number of roundings n that a result has gone
through. Each rounding is a factor (1 + d), |d| <= u, and n of them at most 1 + n u / (1 - n u), whatever their order
(N. Higham, Accuracy and Stability of Numerical Algorithms, lemma 3.1). No other file of the tests types a tolerance
(test_rounding.py looks for them): what is no rounding has its bound from the number of samples, or from a step of the
code.
"""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from torch import Tensor

# A result of a toy network passes at most 8 layers of some 500 roundings in sequence (seven products of at most 96
# terms, a softmax, two norms).
ROUNDINGS = 4000
# Two float64 computations of such a network: a layer's errors are enlarged at most 1000-fold by those after it
# (test_rounding.py measures that), 4000 * 1000 * 2^-53 = 4.4e-10, on both sides.
NETWORK = 1e-9


def growth(roundings: int, dtype: torch.dtype = torch.float32) -> float:
    """Return the largest relative error after so many roundings."""
    error = roundings * torch.finfo(dtype).eps / 2
    return error / (1 - error)


def dot_bound(a: Tensor, b: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return how far a @ b computed in `dtype` may lie from the exact one: n products and their sum in any order."""
    return growth(a.shape[-1], dtype) * (a.double().abs() @ b.double().abs())


def assert_equal(found: Tensor, expected: Tensor, what: str = "value") -> None:
    """Fail where two tensors differ at all, in type or shape too; NaN equals NaN."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), what
    assert_within(found, expected, 0, what)


def assert_equal_fields(found: NamedTuple, expected: NamedTuple) -> None:
    """Fail where two tuples of one kind differ in a tensor, by `assert_equal`, or in anything else."""
    for name, value, other in zip(found._fields, found, expected, strict=True):
        if isinstance(value, Tensor):
            assert_equal(value, other, name)
        else:
            assert value == other, name


def assert_within(found: ArrayLike, exact: ArrayLike, bound: Tensor | float, what: str = "value") -> None:
    """Fail where |found - exact| > bound; NaN equals NaN, and an infinity itself only."""
    found, exact = (as_tensor(each).detach().double() for each in (found, exact))
    assert found.shape == exact.shape, what
    bound = torch.as_tensor(bound, dtype=torch.float64, device=exact.device).expand_as(exact)
    error = (found - exact).abs()
    right = (found == exact) | (error <= bound) | (found.isnan() & exact.isnan())
    if not right.all():
        place = torch.where(right, -1, (error / bound).nan_to_num(nan=float("inf"))).argmax()
        raise AssertionError(
            f"{what}: {int((~right).sum())} of {right.numel()} differ by more than rounding explains; the worst is "
            f"{found.flatten()[place]:.9g} for {exact.flatten()[place]:.9g}, where {bound.flatten()[place]:.2g} may be"
        )


def as_tensor(values: ArrayLike) -> Tensor:
    """Return numbers as a tensor, Python's in float64."""
    return values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))


def assert_same_sums(found: ArrayLike, expected: ArrayLike, roundings: int = ROUNDINGS, what: str = "value") -> None:
    """Fail where two computations of one thing differ by more than so many roundings in sequence, in the coarser of
    both types, of numbers no larger than 1 or than the largest that is expected."""
    found, expected = as_tensor(found), as_tensor(expected)
    kinds = [each.dtype for each in (found, expected) if each.is_floating_point()]
    dtype = max(kinds, key=lambda kind: torch.finfo(kind).eps)
    finite = expected.detach()[expected.isfinite()].double().abs()
    largest = max(1.0, float(finite.max())) if finite.numel() else 1.0
    assert_within(found, expected, growth(roundings, dtype) * largest, what)


def assert_same_network(found: Tensor, expected: Tensor, what: str = "value") -> None:
    """Fail where two float64 computations of a toy network differ by more than NETWORK, relative to the largest."""
    assert found.dtype == expected.dtype == torch.float64
    finite = expected.detach()[expected.isfinite()].abs()
    assert_within(found, expected, NETWORK * max(1.0, float(finite.max()) if finite.numel() else 0.0), what)


def within(expected: Any, bound: float) -> Any:
    """Return a number, or several in a list, a tuple or an array, that equals what is no further than `bound` away."""
    return pytest.approx(expected, rel=0, abs=bound)


def figure(expected: Any, roundings: int = 10_000, dtype: torch.dtype = torch.float64) -> Any:
    """Return a number, or several, that equals the same figure computed in another order: one of at most so many
    roundings, whose terms are no larger than 1 or than the figure."""
    error = growth(roundings, dtype)
    return pytest.approx(expected, rel=error, abs=error, nan_ok=True)


def roughly(expected: Any, share: float) -> Any:
    """Return a number, or several, that equals what was fitted, searched or sampled and comes within this share of it:
    no rounding, but as far as the method goes on the data of the test."""
    return pytest.approx(expected, rel=share)


def as_printed(expected: float, digits: int) -> Any:
    """Return a number that equals itself rounded to so many digits after the point: half a unit of the last one."""
    return within(expected, half_a_digit(digits))


def half_a_digit(digits: int) -> float:
    """Return how far a figure may lie from itself rounded to so many digits after the point."""
    return (0.5 + growth(4)) * 10**-digits


def stored_bound(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return how far `values` that were stored in `dtype` may lie from themselves: one rounding, to a multiple of the
    smallest number at least."""
    kind = torch.finfo(dtype)
    return growth(1, dtype) * values.double().abs() + kind.smallest_normal * kind.eps / 2


def mean_bound(deviation: float, samples: int) -> float:
    """Return how far the mean of so many independent samples may lie from the expectation: five standard errors, which
    one of 1.7 million means exceeds."""
    return 5 * deviation / samples**0.5


def proportion_bound(p: float, samples: int) -> float:
    """Return the same for the share of samples that have what each has with probability p."""
    return mean_bound((p * (1 - p)) ** 0.5, samples)


def log_prob_bound(logits: Tensor, dtype: torch.dtype = torch.float32) -> float:
    """Return how far log-probabilities of V finite `logits` may lie from the exact ones: differences of logits, each
    rounded once (logits up to L in size: 3 L u), and the logarithm of a sum of V exponentials of such differences."""
    largest = float(torch.where(logits.isfinite(), logits, 0).abs().max()) if logits.numel() else 0.0
    return growth(logits.shape[-1] + 8, dtype) + growth(6, dtype) * largest


def entropy_bound(entropy: Tensor, logits: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the same for sums of -p log p: p errs relatively, and log p absolutely, by `log_prob_bound`."""
    return log_prob_bound(logits, dtype) * (1 + 2 * entropy.double()) + growth(logits.shape[-1] + 4, dtype) * entropy


def confidence_bound(model, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the same for a TreeClassifier's confidence in rows of features, which are rounded to float32 themselves:
    the terms of the logit, in size, times the roundings of both layers; a sigmoid's slope is at most 1/4."""
    size, roundings = x.double().abs(), x.shape[-1] + 4
    for layer in (model.hidden, *model.further, model.output):
        size = size @ layer.weight.detach().double().abs().T + layer.bias.detach().double().abs()
        roundings += layer.weight.shape[1] + 1
    return (growth(roundings, dtype) + growth(3)) * size.squeeze(-1) / 4 + growth(4, dtype)


# Of toys.toy_classifier, which computes in float64 from features that are rounded to float32: the terms of its logit
# add up to at most 100 in size at entropies below 4 and 11 levels (test_rounding.py).
SCORE = growth(3) * 100 / 4


def assert_same_column(found: Tensor, expected: Tensor, name: str) -> None:
    """Fail where a column of a tree that was built twice differs: integers must be equal; real columns of float64
    drafts are two computations of one network; a classifier's scores start from features in float32."""
    assert found.dtype == expected.dtype, name
    if found.is_floating_point():
        bound = NETWORK * (1 + torch.where(expected.isfinite(), expected, 0).abs())
        assert_within(found, expected, SCORE if name == "score" else bound, name)
    else:
        assert found.equal(expected), name
