"""The uniform draft: all tokens are equally probable.

With the text's n-grams around it, which its name `lookup` always has, it is prompt lookup decoding (Saxena, 2023), as
distributions: what followed the last tokens earlier in the text is all that it uses. A context that was there several
times has several continuations, so that it gives trees.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from c2t.models.drafts.session import BaseDraft
from c2t.models.loading.registry import DRAFTS, DraftKind, DraftRequest
from c2t.models.wrappers.ngrams import NGRAMS
from c2t.protocols import NextTokenDistributions
from c2t.sessions.stateless import StatelessSession
from c2t.tree import Tree

LOOKUP = "lookup"


@dataclass(frozen=True)
class UniformDraft(BaseDraft):
    """Draft of so many tokens, with logits of this dtype."""

    tokens: int
    dtype: torch.dtype

    hidden_size = 0
    uniform = True

    def session(self) -> "UniformSession":
        """Return a new session for one generation."""
        return UniformSession(self)


class UniformSession(StatelessSession):
    """Session that reads nothing. scale: 0, no shared noise: among equal tokens it alone would decide."""

    scale = 0.0

    def __init__(self, draft: UniformDraft):
        self.draft = draft

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`."""
        logits, states = (
            torch.zeros(*slots.shape, width, dtype=self.draft.dtype, device=slots.device)
            for width in (self.draft.tokens, 0)
        )
        return NextTokenDistributions(logits, states)


def _load(folder: Path, request: DraftRequest) -> UniformDraft:
    dtype = request.target.embed_tokens.weight.dtype
    return UniformDraft(request.target.config.vocab_size, torch.float64 if dtype == torch.float64 else torch.float32)


DRAFTS[LOOKUP] = DraftKind(
    _load, ending=NGRAMS, summary="No model: copies of what followed the same tokens earlier in the text."
)
