"""Noise in C against the same noise in torch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from c2t.kernels import noise as kernel
from c2t.kernels.native import kernels
from c2t.kernels.noise import Noise
from c2t.protocols import DraftVocabulary
from c2t.sessions.coupled import noise_of
from tests.rounding import assert_same_sums

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 700), st.integers(0, 9), st.booleans(), st.integers(0, 2**31))
def test_noise_is_that_of_torch(tokens: int, more: int, named: bool, seed: int) -> None:
    """Of all tokens or of some, and of those that only a text has; none in greedy rows, and -inf stays -inf."""
    random = torch.Generator().manual_seed(seed)
    rows, texts, more = 5, 3, more * named
    common = torch.randperm(4000, generator=random)[:tokens].sort().values
    own = torch.randint(-1, 4000, (texts, more), generator=random)
    vocabulary = DraftVocabulary(common, 4000, own if more else None) if named else None
    stream = torch.randint(-(2**63), 2**63 - 1, (texts,), generator=random)
    noise = Noise(torch.tensor([1.0, 0.0, 0.4]), stream, torch.zeros(texts, dtype=torch.long))
    row, position = (torch.randint(0, most, (rows,), generator=random) for most in (texts, 9999))
    logits = torch.randn(rows, tokens + more, generator=random) * 5
    logits[:, 0] = -math.inf
    expected = logits + noise_of(logits, vocabulary, row, position, noise)
    assert kernel.serves(logits)
    kernel.add_noise(logits, common if named else None, own if more else None, row, position, noise)
    assert_same_sums(logits, expected, 1000)


def test_noise_is_exact_where_it_is_large() -> None:
    """The tokens that win: a rounded random number would lose the digits that their noise is made of."""
    logits = torch.zeros(4, 200_000)
    noise = Noise(torch.ones(4), torch.arange(4), torch.zeros(4, dtype=torch.long))
    row, position = torch.arange(4), torch.full((4,), 7)
    expected = noise_of(logits, None, row, position, noise)
    kernel.add_noise(logits, None, None, row, position, noise)
    large = expected > 5
    assert large.sum() > 1000
    bound = 2.0**-32 * expected.exp() + 1e-5  # of the random numbers 32 bits are read
    assert ((logits - expected).abs() <= bound)[large].all()


def test_what_has_gaps_or_another_dtype_is_left_to_torch() -> None:
    logits = torch.zeros(2, 8)
    assert kernel.serves(logits)
    assert not kernel.serves(logits.double())
    assert not kernel.serves(logits[:, :4])
