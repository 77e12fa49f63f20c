"""Which of a test's parameters `make quick` runs."""

from collections.abc import Iterable

import pytest


def slow_except(names: Iterable[str], *quick: str) -> list:
    """Return `names` for `parametrize`, all but `quick` of them marked slow."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]
