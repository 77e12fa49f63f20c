"""A draft whose distributions are mixed with counts of what followed the same tokens earlier in the text.

This is a cache language model (Kuhn and De Mori, 1990) around any draft; prompt lookup decoding copies from the same
counts. It costs no forward and serves every policy.
"""

from dataclasses import dataclass
from numbers import Real

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.errors import InputError
from c2t.models.conditioned import ConditionedDraft
from c2t.models.draft import DraftSession, WrappedSession
from c2t.models.draft_lm import DraftLM
from c2t.models.eagle_draft import EagleDraft
from c2t.models.medusa import MedusaDraft
from c2t.models.published_medusa import PublishedMedusaDraft
from c2t.protocols import NextTokenDistributions
from c2t.tree import Tree

SHORTEST, LONGEST = 2, 4  # tokens of an n-gram's context
SOONER = 4.0  # the draft's weight is divided by this for each further token of the context
PLAUSIBLE = 20  # most probable tokens of the draft that counts may raise; others are rarely right, however frequent
NOTHING = -2  # in place of a token: unlike any, and unlike the beginning of the text
PRIOR_WEIGHTS = (1e-3, 1e6)  # beyond them float32 has no room, and no draft needs it


@dataclass(frozen=True)
class NgramDraft:
    """Draft `draft`, mixed with the n-grams of the text itself.

    If the last n tokens occur N times earlier in the text, c of them before the token x, the probability p of x becomes
    (c + d p) / (N + d) with d = prior_weight / SOONER^(n - SHORTEST). This is applied first for n = SHORTEST, then to
    that result for n one larger, up to LONGEST. Counts of tokens that are not among the draft's PLAUSIBLE ones are left
    out, and the rest is normalised. prior_weight: number of places in the text that weigh as much as the draft;
    InputError outside of PRIOR_WEIGHTS.
    """

    draft: EagleDraft | MedusaDraft | PublishedMedusaDraft | DraftLM | ConditionedDraft
    prior_weight: float = 32.0

    def __post_init__(self):
        check_prior_weight(self.prior_weight)

    @property
    def hidden_size(self) -> int:
        return self.draft.hidden_size

    def session(self) -> "NgramSession":
        """Return a new session for one generation."""
        return NgramSession(self.draft.session(), self.prior_weight)


def check_prior_weight(prior_weight: float) -> None:
    """Raise InputError for a prior weight that is no number within PRIOR_WEIGHTS."""
    least, most = PRIOR_WEIGHTS
    if not isinstance(prior_weight, Real) or not least <= prior_weight <= most:
        raise InputError(f"prior weight = {prior_weight} of the n-grams must be a number from {least:g} to {most:g}")


class NgramSession(WrappedSession):
    """Session of the inner draft, and the committed text with the root: text[r, :lengths[r]].

    behind: the last LONGEST tokens up to each place that has a token after it, its own first; NOTHING where there are
    none. after: the token after each place.
    """

    def __init__(self, draft: DraftSession, prior_weight: float):
        super().__init__(draft)
        self.prior_weights = [prior_weight / SOONER**longer for longer in range(LONGEST - SHORTEST + 1)]
        self.text: Int[Tensor, "B L"] | None = None
        self.lengths: Int[Tensor, " B"] | None = None
        self.behind: Int[Tensor, "B N L"] | None = None
        self.after: Int[Tensor, "B L"] | None = None

    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """See `DraftSession.observe`; also appends the tokens to the text."""
        super().observe(tokens, features, count)
        if self.text is None:
            self._read(tokens, count + 1)
            return
        place = self.lengths[:, None] + torch.arange(tokens.shape[1] - 1, device=tokens.device)
        longer = torch.nn.functional.pad(self.text, (0, tokens.shape[1] - 1))
        lengths = self.lengths + count
        self._read(longer.scatter(1, place, tokens[:, 1:])[:, : int(lengths.max())], lengths)

    def _read(self, text: Int[Tensor, "B L"], lengths: Int[Tensor, " B"]) -> None:
        """Take in the whole text, once a round: every level of a tree looks through it."""
        self.text, self.lengths, self.after = text, lengths, text.roll(-1, 1)
        places = torch.arange(text.shape[1], device=text.device)
        behind = torch.stack([text.roll(back, 1).masked_fill(places < back, NOTHING) for back in range(LONGEST)], 1)
        self.behind = behind.masked_fill((places >= (lengths - 1)[:, None])[:, None], NOTHING)

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`."""
        rows = self.draft.expand(tree, slots)
        copied, kept = self._copies(self._context(tree, slots.clamp(min=0)), rows.log_norm.dtype)

        def mixed(tokens: Int[Tensor, "B F K"], log_probs: Float[Tensor, "B F K"]) -> tuple[Tensor, Tensor]:
            share = ((tokens[..., None] == self.after[:, None, None]) * copied[:, :, None]).sum(-1)
            scores = torch.logaddexp(log_probs + kept.log(), share.log())
            return scores.where(log_probs > float("-inf"), log_probs), kept.log()

        return rows.rescored(PLAUSIBLE, mixed)

    def fork(self, back: Int[Tensor, " B"]) -> "NgramSession":
        """See `DraftSession.fork`."""
        fork: NgramSession = super().fork(back)
        fork._read(self.text.expand(len(back), -1), self.lengths - back)
        return fork

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        super().select(rows)
        if self.text is not None:  # a row may end with its first token, before anything is observed
            self.text, self.lengths = self.text[rows], self.lengths[rows]
            self.behind, self.after = self.behind[rows], self.after[rows]

    def join(self, other: "NgramSession") -> None:
        """See `DraftSession.join`."""
        super().join(other)
        longest = max(self.text.shape[1], other.text.shape[1])
        texts = [torch.nn.functional.pad(text, (0, longest - text.shape[1])) for text in (self.text, other.text)]
        self._read(torch.cat(texts), torch.cat([self.lengths, other.lengths]))

    def _context(self, tree: Tree, slots: Int[Tensor, "B F"]) -> Int[Tensor, "B F N"]:
        """Return the last LONGEST tokens up to each slot, its own first; -1 before the beginning of the text.

        A beginning mark, the text and the tree stand in one row of tokens, with each one's predecessor.
        """
        size = self.text.shape[1] + 1
        token = torch.cat([torch.full_like(self.text[:, :1], -1), self.text, tree.token], 1)
        before = (torch.arange(size, device=token.device) - 1).clamp(min=0).expand(len(token), -1)
        under_root = torch.where(tree.parent < 0, self.lengths[:, None] - 1, size + tree.parent)
        before, place, places = torch.cat([before, under_root], 1), size + slots, []
        for _ in range(LONGEST):
            places.append(place)
            place = before.gather(1, place)
        return token.gather(1, torch.cat(places, 1)).unflatten(1, (LONGEST, -1)).mT

    def _copies(
        self, context: Int[Tensor, "B F N"], dtype: torch.dtype
    ) -> tuple[Float[Tensor, "B F L"], Float[Tensor, "B F 1"]]:
        """Return the probability that goes to the token after each place of the text, and the factor left to the
        draft's."""
        fits = (self.behind[:, None] == context[..., None]).to(dtype).cumprod(2)[:, :, SHORTEST - 1 :]
        prior_weights = torch.tensor(self.prior_weights, dtype=dtype, device=context.device)
        weight = 1 / (fits.sum(3) + prior_weights)
        # A longer context's counts leave that much of what the shorter ones said.
        left = (weight * prior_weights).flip(2).cumprod(2).flip(2)
        copied = (fits * (weight * torch.nn.functional.pad(left[..., 1:], (0, 1), value=1.0))[..., None]).sum(2)
        return copied, left[..., :1]
