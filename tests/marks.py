"""Which of a test's parameters `make test` runs, and which tests need smollm2's target."""

from collections.abc import Iterable

import pytest

from c2t.models.target.gguf_target import not_there
from c2t.storage.paths import find

needs_smollm2 = pytest.mark.skipif(find("smollm2", "target") is None, reason=f"no target of smollm2: {not_there()}")


def slow_except(names: Iterable[str], *quick: str) -> list:
    """Return `names` for `parametrize`, all but `quick` of them marked slow."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]
