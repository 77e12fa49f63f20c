"""Triton's interpreter multiplies as a tensor core does: its own products are numpy's, whose bits depend on the number
of rows."""

import pytest

from pipelines.gpu.tensor_core import create_dot, interpreter


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply as `pipelines.gpu.tensor_core.product` does while a test runs."""
    monkeypatch.setattr(interpreter().InterpreterBuilder, "create_dot", create_dot)
