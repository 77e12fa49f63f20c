"""Levels and children of policies that work on the trees of another one."""

from typing import Any


class Around:
    """Policy around `policy`, which drafts."""

    policy: Any

    @property
    def levels(self) -> int:
        """Layers of drafted nodes at most."""
        return self.policy.levels

    @property
    def K(self) -> int:
        """Children of a node, which the vocabulary must have."""
        return getattr(self.policy, "K", 1)
