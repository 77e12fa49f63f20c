"""Levels and children of policies that work on the trees of another one."""

from typing import Any

from c2t.decoding import Verifier
from c2t.errors import InputError
from c2t.protocols import Session, check_is_policy, session_of


class WrapperPolicy:
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

    def session(self, draft: Session, rows: int, verifier: Verifier) -> Session:
        """Return the session of the inner policy; see `c2t.protocols.Policy`."""
        return session_of(self.policy, draft, rows, verifier)

    def check_inner(self) -> None:
        """Raise InputError unless the inner policy ranks its candidates, and has none of its own."""
        mine, kind = type(self).__name__, type(self.policy).__name__
        check_is_policy(self.policy, f"{mine}: policy")
        if hasattr(self.policy, "policy"):
            raise InputError(f"{mine}: {kind} has a policy of its own: give that one")
        if self.policy.proposal != "ranked":
            sampled = f"{kind} has {self.policy.proposal} candidates"
            raise InputError(f"{mine}: {sampled}: give a policy that ranks them, such as Eagle2")
