"""Draft temperature: a draft of any kind whose logits are multiplied, so that it is surer or less sure of itself."""

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from c2t.models.block import BlockDraft
from c2t.models.conditioned import ConditionedDraft
from c2t.models.draft import DraftSession, WrappedSession, scale_of
from c2t.models.draft_lm import DraftLM
from c2t.models.eagle_draft import EagleDraft
from c2t.models.hydra import HydraDraft
from c2t.models.medusa import MedusaDraft
from c2t.models.ngrams import NgramDraft
from c2t.models.published_medusa import PublishedMedusaDraft
from c2t.protocols import NextTokenDistributions
from c2t.tree import Tree


@dataclass(frozen=True)
class ScaledDraft:
    """Draft `draft`, its logits multiplied by `factor` behind everything that conditions it, and the noise of the
    target's draws with them: it ranks tokens as the draft does."""

    draft: (
        EagleDraft
        | MedusaDraft
        | PublishedMedusaDraft
        | BlockDraft
        | DraftLM
        | ConditionedDraft
        | HydraDraft
        | NgramDraft
    )
    factor: float

    @property
    def hidden_size(self) -> int:
        return self.draft.hidden_size

    def session(self) -> "ScaledSession":
        """Return a new session for one generation."""
        return ScaledSession(self.draft.session(), self.factor)


class ScaledSession(WrappedSession):
    """Session of the inner draft."""

    def __init__(self, draft: DraftSession, factor: float):
        super().__init__(draft)
        self.factor = factor

    @property
    def scale(self) -> float:
        return self.factor * scale_of(self.draft)

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`."""
        rows = self.draft.expand(tree, slots)
        return NextTokenDistributions(rows.drafted * self.factor, rows.hidden, rows.vocabulary, rows.rows)
