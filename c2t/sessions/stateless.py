"""Sessions without state and without a forward."""

import copy

import torch
from jaxtyping import Int
from torch import Tensor

from c2t.errors import InputError
from c2t.protocols import NextTokenDistributions
from c2t.tree import Tree


class StatelessSession:
    """Session of a draft without state and without a forward; subclasses define `expand`."""

    passes: Int[Tensor, " B"]

    def observe(self, tokens: Tensor, features: Tensor, count: Int[Tensor, " B"]) -> None:
        """Set the draft forwards of the new round to 0."""
        self.passes = torch.zeros_like(count)

    def fork(self, back: Int[Tensor, " B"]) -> "StatelessSession":
        """See `c2t.models.drafts.session.DraftSession.fork`."""
        fork = copy.copy(self)
        fork.passes = torch.zeros_like(back)
        return fork

    def rewind(self, back: Tensor) -> None: ...

    def refuse_nan(self) -> None: ...

    def select(self, rows: Tensor) -> None: ...

    def join(self, other: "StatelessSession") -> None:
        """See `c2t.protocols.Session.join`."""
        self.passes = torch.cat([self.passes, other.passes])


class NoDraft(StatelessSession):
    """Stand-in for a draft, so that plain decoding runs the same loop."""

    takes_noise = False  # there are no logits

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """Raise InputError: without a draft no policy but the plain one can run."""
        raise InputError("only the plain policy decodes without a draft")
