"""Session around another one, the base class of the sessions of wrapper drafts and of policies."""

import copy
from typing import Any, TypeVar

from jaxtyping import Float, Int
from torch import Tensor

from c2t.protocols import Draft, NextTokenDistributions, Session
from c2t.tree import Tree

Kind = TypeVar("Kind")


class WrappedSession:
    """Session around another one; it forwards every call that a subclass does not override."""

    def __init__(self, draft: Session):
        self.draft: Any = draft  # with fork and rewind too, if those of this session are called

    @property
    def passes(self) -> Int[Tensor, " B"]:
        """See `c2t.protocols.Session`."""
        return self.draft.passes

    @property
    def scale(self) -> float:
        """Factor by which the draft's logits were multiplied."""
        return scale_of(self.draft)

    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """See `c2t.protocols.Session.observe`."""
        self.draft.observe(tokens, features, count)

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`."""
        return self.draft.expand(tree, slots)

    def refuse_nan(self) -> None:
        """See `c2t.protocols.Session.refuse_nan`."""
        self.draft.refuse_nan()

    def rewind(self, back: Int[Tensor, " B"]) -> None:
        """See `c2t.models.drafts.session.DraftSession.rewind`."""
        self.draft.rewind(back)

    def fork(self, back: Int[Tensor, " B"]) -> "WrappedSession":
        """See `c2t.models.drafts.session.DraftSession.fork`."""
        fork = copy.copy(self)
        fork.draft = self.draft.fork(back)
        return fork

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        self.draft.select(rows)

    def join(self, other: "WrappedSession") -> None:
        """See `c2t.protocols.Session.join`."""
        self.draft.join(other.draft)


def find(draft: Draft | None, kind: type[Kind]) -> Kind | None:
    """Return the session of this type among a draft and the sessions that it wraps; None if there is none."""
    while draft is not None and not isinstance(draft, kind):
        draft = getattr(draft, "draft", None)
    return draft


def scale_of(draft: object) -> float:
    """Return the factor of a draft's logits, which noise added to them needs too; 1 if it has no `scale`."""
    return getattr(draft, "scale", 1.0)
