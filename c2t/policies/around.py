"""Levels and children of policies that work on the trees of another one."""

from typing import Any

from c2t.errors import InputError


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

    def check_inner(self) -> None:
        """Raise InputError unless the inner policy ranks its candidates, and has none of its own."""
        mine, kind = type(self).__name__, type(self.policy).__name__
        if isinstance(self.policy, type):
            raise InputError(f"{mine}: {self.policy.__name__} is a class: give an instance, such as Eagle2()")
        proposal = getattr(self.policy, "proposal", None)
        if proposal is None:
            raise InputError(f"{mine}: {kind} is no policy: give one that ranks its candidates, such as Eagle2")
        if hasattr(self.policy, "policy"):
            raise InputError(f"{mine}: {kind} has a policy of its own: give that one")
        if proposal != "ranked":
            raise InputError(f"{mine}: {kind} has {proposal} candidates: give a policy that ranks them, such as Eagle2")
