"""A draft that knows nothing: all tokens are equally probable. With the text's n-grams around it, it is prompt lookup
(`c2t.models.ngrams.lookup`)."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from c2t.models.draft import DraftSession
from c2t.protocols import NextTokenDistributions
from c2t.tree import Tree


@dataclass(frozen=True)
class EvenDraft:
    """Draft of `vocabulary` tokens, with logits of this dtype."""

    vocabulary: int
    dtype: torch.dtype

    @property
    def hidden_size(self) -> int:
        """Return 0: it has no states."""
        return 0

    def session(self) -> "EvenSession":
        """Return a new session for one generation."""
        return EvenSession(self)


@DraftSession.register
class EvenSession:
    """Session that reads nothing, and makes no forward. scale: 0, which takes the noise of the target's draws away: of
    tokens that are all alike it would promise the loudest."""

    scale = 0.0

    def __init__(self, draft: EvenDraft):
        self.draft = draft
        self.passes: Int[Tensor, " B"] | None = None

    def observe(self, tokens: Tensor, features: Tensor, count: Int[Tensor, " B"]) -> None:
        """Set the draft forwards of the new round to 0."""
        self.passes = torch.zeros_like(count)

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`."""
        logits, states = (
            torch.zeros(*slots.shape, width, dtype=self.draft.dtype, device=slots.device)
            for width in (self.draft.vocabulary, 0)
        )
        return NextTokenDistributions(logits, states)

    def fork(self, back: Int[Tensor, " B"]) -> "EvenSession":
        """See `DraftSession.fork`."""
        fork = EvenSession(self.draft)
        fork.passes = torch.zeros_like(back)
        return fork

    def rewind(self, back: Tensor) -> None: ...

    def refuse_nan(self) -> None: ...

    def select(self, rows: Tensor) -> None: ...

    def join(self, other: "EvenSession") -> None:
        """See `DraftSession.join`."""
        self.passes = torch.cat([self.passes, other.passes])
