"""An independent language model with the target's tokenizer as draft (the setting of EntropyTree, MCSD+ and DySpec)."""

from pathlib import Path

from jaxtyping import Float, Int
from torch import Tensor

from c2t.errors import InputError
from c2t.models.draft import DraftSession
from c2t.models.target import Target
from c2t.ragged import Ragged


class DraftLM:
    """Draft made of any causal LM that `Target` can run; it ignores the target's features."""

    def __init__(self, model: Target):
        self.model = model

    @property
    def hidden_size(self) -> int:
        return self.model.config.hidden_size

    def session(self) -> "DraftLMSession":
        """Return a new session for one generation."""
        return DraftLMSession(self)


class DraftLMSession(DraftSession):
    """Draft session whose cache holds the committed tokens, the root included."""

    def __init__(self, draft: DraftLM):
        super().__init__(draft.model.num_layers)
        self.draft = draft

    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """See `DraftSession.observe`; the first call also reads the prompt's first token."""
        if self.cache.lengths is None:  # the prompt's first token is not read yet
            self._observe(tokens, features, count + 1)
        else:
            self._observe(tokens[:, 1:], features, count)

    def _forward(self, tokens: Tensor, features: Tensor, positions: Tensor, mask: Tensor, rows: Ragged) -> Tensor:
        return self.draft.model.forward(tokens, positions, mask, self.cache)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.draft.model.logits(hidden)


def check_vocabulary(draft: Target, target: Target, where: str | Path) -> None:
    """Raise InputError unless both models have the same number of tokens."""
    mine, theirs = draft.config.vocab_size, target.config.vocab_size
    if mine != theirs:
        raise InputError(f"{where}: the draft has {mine} tokens, the target {theirs}; take a draft with its tokenizer")
