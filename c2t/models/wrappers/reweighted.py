"""A draft whose distributions are reweighted by the path.

A parallel draft gives marginals: a depth's distribution is the same on every path, and a product of marginals says
nothing about whether two tokens fit together. Here a `Correction` scores the most probable tokens of each slot by the
slot's token and the one before it. That costs no forward and serves every policy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from c2t.models.drafts.session import DraftSession, WrappedDraft
from c2t.protocols import NextTokenDistributions
from c2t.sessions.wrapped import WrappedSession
from c2t.tree import Tree

Rescore = Callable[
    [Int[Tensor, "B F K"], Float[Tensor, "B F K"]], tuple[Float[Tensor, "B F K"], Float[Tensor, "B F 1"]]
]
CANDIDATES = 16  # most probable tokens of a slot that are scored; the others keep their odds against each other


class Path(NamedTuple):
    """End of the path to each of F slots: its token, the token before it, the depth of its children, and the draft's
    hidden states there."""

    token: Int[Tensor, "B F"]
    before: Int[Tensor, "B F"]
    depth: Int[Tensor, "B F"]
    hidden: Float[Tensor, "B F H"]


@runtime_checkable
class Correction(Protocol):
    """Correction of the draft's log-probabilities after a path."""

    def __call__(
        self, path: Path, tokens: Int[Tensor, "B F C"], log_probs: Float[Tensor, "B F C"]
    ) -> tuple[Float[Tensor, "B F C"], Float[Tensor, "B F 1"]]:
        """Return new log scores of these tokens, the draft's C most probable ones, and the log-factor for the
        probability of each other token; they are normalised together afterwards."""
        ...


@dataclass(frozen=True)
class ReweightedDraft(WrappedDraft):
    """Draft `draft`, reweighted by `correction` after every slot except the root, whose token the draft has read."""

    correction: Correction

    def session(self) -> "ReweightedSession":
        """Return a new session for one generation."""
        return ReweightedSession(self.draft.session(), self.correction)


class ReweightedSession(WrappedSession):
    """Session of the inner draft."""

    def __init__(self, draft: DraftSession, correction: Correction):
        super().__init__(draft)
        self.correction = correction

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`."""
        rows = self.draft.expand(tree, slots)
        if tree.size == 1:
            return rows
        slots = slots.clamp(min=0)
        parent = tree.parent.gather(1, slots).clamp(min=0)
        depth = tree.depth.gather(1, slots) + 1
        path = Path(tree.token.gather(1, slots), tree.token.gather(1, parent), depth, rows.hidden)
        return rescored(rows, CANDIDATES, lambda tokens, log_probs: self.correction(path, tokens, log_probs))


def rescored(rows: NextTokenDistributions, k: int, score: Rescore) -> NextTokenDistributions:
    """Return distributions with other scores for the k most probable tokens (fewer, if the draft has fewer):
    score(tokens, log_probs), which also says by what log-factor the probabilities of all others change."""
    tokens, log_probs = rows.top(min(k, rows.size))
    (scores, factor), log_norm, real = score(tokens, log_probs), rows.log_norm, rows.rows
    if real is not None:
        tokens, scores, factor, log_norm = map(real.take, (tokens, scores, factor, log_norm))
    index = tokens if rows.vocabulary is None else rows.vocabulary.indices(tokens, real and real.row)
    logits = (rows.drafted - (log_norm - factor)).scatter(-1, index, scores.to(rows.drafted))
    return rows.with_logits(logits, real)
