"""A draft whose distributions are mixed with counts of what followed the same tokens earlier in the text.

This is a cache language model (Kuhn and De Mori, 1990) around any draft; prompt lookup decoding copies from the same
counts. It costs no forward and serves every policy.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from c2t.caches.ragged import whole
from c2t.errors import InputError, check_number
from c2t.kernels.draft_phase import NgramInput
from c2t.kernels.level_plan import LevelPlan
from c2t.kernels.ngrams import LONGEST, Paths, Prior, Trust, mix, raise_followers, serves
from c2t.models.drafts.session import BaseDraft, DraftSession, WrappedDraft
from c2t.models.loading.registry import ENDINGS, TEXT, Ending
from c2t.models.target.target import Target
from c2t.protocols import Grown, NextTokenDistributions, Root, grow_tree_of
from c2t.sessions.wrapped import WrappedSession
from c2t.storage.atomic import write_text
from c2t.storage.checked import CLOSED, from_json, read_file
from c2t.storage.checksum import checksum
from c2t.tree import Tree

NGRAMS = "+ngrams"  # end of any draft's name, or "+ngrams=WEIGHT"
LEARNED = "ngrams.json"  # weights that were learned for one draft, in its folder
PRIOR_WEIGHTS = (1e-3, 1e6)  # smallest and largest; float32 has no room beyond them


class Mixing(NamedTuple):
    """How counts are mixed into a kind of draft: weights that suit one that reads the path cost a parallel one
    1.8 times the tokens at tau 2.

    default: for a draft of this kind. The others are the mixing without learning, for a weight of the shortest context
    that is given. decay: it is divided by this for each further token; shortest, longest: tokens of a context.
    """

    default: Prior
    decay: float
    shortest: int
    longest: int

    def prior(self, prior_weight: float | None = None) -> Prior:
        """Return the draft's weights against counts, given that for the shortest context; None: the default."""
        if prior_weight is None:
            return self.default
        longer = range(self.longest - self.shortest + 1)
        return Prior(self.shortest, tuple(prior_weight / self.decay**more for more in longer))


# Learned by `python -m pipelines.ngrams` from smollm2's `eagle`, as the next from its `medusa`. A draft that reads the
# path: what followed a single token says nothing new.
READING = Mixing(
    default=Prior(2, (34.2, 8.63, 7.82, 9.3, 5.35, 5.21, 1.2), Trust(0.756, 0.303, 0.0129)),
    decay=1.5,
    shortest=2,
    longest=8,
)
# A parallel draft's distributions say nothing of the path, so that what followed even one token is new to it. This
# holds, if less, for those that are reweighted by a token or two (`+bigrams`, `+fit`).
PARALLEL = Mixing(
    default=Prior(1, (89.6, 6.67, 9.22, 6.09, 11.4, 4.15, 5.18, 1.89), Trust(0.894, 0.0871, 1.27)),
    decay=2.0,
    shortest=1,
    longest=5,
)
# `lookup`: there is nothing but the counts, and nothing is learned.
ALONE = Mixing(default=Prior(2, (4.0, 1.0, 0.25)), decay=4.0, shortest=2, longest=4)


@dataclass(frozen=True)
class NgramDraft(WrappedDraft):
    """Draft `draft`, mixed with the n-grams of the text itself.

    Counts of what followed the last n tokens earlier in the text raise its probabilities, for several n, as
    `c2t.kernels.ngrams.mix` says; `mixing` says how much, and for which n. prior_weight: mix without what was learned,
    with this weight for the shortest n; InputError outside of PRIOR_WEIGHTS. None: the mixture that was learned for
    this draft, else the default one of its kind.
    """

    prior_weight: float | None = None
    learned: Prior | None = None

    def __post_init__(self):
        if self.prior_weight is not None:
            check_prior_weight(self.prior_weight)

    @property
    def has_ngrams(self) -> bool:
        return True

    @property
    def mixing(self) -> Mixing:
        """Return the way of mixing that goes with the kind of draft."""
        if self.draft.uniform:
            return ALONE
        return READING if self.draft.reads_path else PARALLEL

    @property
    def prior(self) -> Prior:
        """Return the weight of the draft against counts."""
        return self.learned if self.learned and self.prior_weight is None else self.mixing.prior(self.prior_weight)

    @property
    def mark(self) -> str:
        """Return a short hash of the weights, by which mixtures of the same draft differ."""
        return checksum(self.prior)[:8]

    def session(self) -> "NgramSession":
        """Return a new session for one generation."""
        return NgramSession(self.draft.session(), self.prior)


def check_prior_weight(prior_weight: float) -> None:
    """Raise InputError for a prior weight that is no number within PRIOR_WEIGHTS."""
    least, most = PRIOR_WEIGHTS
    check_number("prior weight", prior_weight)
    if not least <= prior_weight <= most:
        raise InputError(f"prior weight = {prior_weight} of the n-grams must be a number from {least:g} to {most:g}")


class NgramSession(WrappedSession):
    """Session of the inner draft, and the committed text with the root: text[r, :lengths[r]]."""

    def __init__(self, draft: DraftSession, prior: Prior):
        super().__init__(draft)
        self.prior = prior
        self.text: Int[Tensor, "B L"] | None = None
        self.lengths: Int[Tensor, " B"] | None = None

    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """See `DraftSession.observe`; also appends the tokens to the text."""
        super().observe(tokens, features, count)
        if self.text is None:
            self.text, self.lengths = tokens.contiguous(), count + 1
            return
        index = self.lengths[:, None] + torch.arange(tokens.shape[1] - 1, device=tokens.device)
        new = tokens[:, 1:]
        self.lengths = self.lengths + count
        self.text = torch.cat([self.text, new], 1).scatter(1, index, new)[:, : int(self.lengths.max())]

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`."""
        rows = self.draft.expand(tree, slots)
        paths = Paths(self.text, self.lengths, tree.token, tree.parent)
        if serves(rows.drafted):
            real = rows.rows or whole(*slots.shape, slots.device)
            drafted = rows.vocabulary
            ids, oov_ids = (drafted.tokens, drafted.oov_ids) if drafted else (None, None)
            raise_followers(paths, real.row, real.take(slots), rows.drafted, ids, oov_ids, self.prior)
            return rows
        mixed, drafted = mix(paths, slots, rows.log_probs, self.prior), rows.vocabulary
        return rows.with_logits(mixed if drafted is None else drafted.part(mixed), None)

    def grow_tree(self, plan: LevelPlan, root: Root, **inputs: Any) -> Grown | None:
        """See `DraftSession.grow_tree`."""
        boost = NgramInput(self.text, self.lengths.contiguous(), self.prior)
        return grow_tree_of(self.draft, plan, root, **inputs, ngram_input=boost)

    def rewind(self, back: Int[Tensor, " B"]) -> None:
        """See `DraftSession.rewind`."""
        super().rewind(back)
        self.lengths = self.lengths - back
        self.text = self.text[:, : int(self.lengths.max())]

    def fork(self, back: Int[Tensor, " B"]) -> "NgramSession":
        """See `DraftSession.fork`."""
        fork: NgramSession = super().fork(back)
        fork.text, fork.lengths = self.text.expand(len(back), -1), self.lengths - back
        return fork

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        super().select(rows)
        if self.text is not None:  # a row may end with its first token, before anything is observed
            self.text, self.lengths = self.text[rows], self.lengths[rows]

    def join(self, other: "NgramSession") -> None:
        """See `DraftSession.join`."""
        super().join(other)
        longest = max(self.text.shape[1], other.text.shape[1])
        texts = [torch.nn.functional.pad(text, (0, longest - text.shape[1])) for text in (self.text, other.text)]
        self.text, self.lengths = torch.cat(texts), torch.cat([self.lengths, other.lengths])


Weight = Annotated[float, Field(ge=PRIOR_WEIGHTS[0], le=PRIOR_WEIGHTS[1], allow_inf_nan=False)]
Term = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]


@dataclass(frozen=True)
class _Learned:
    """A file of learned weights: those of contexts of `shortest` tokens and more, and the numbers of `Trust`."""

    __pydantic_config__ = CLOSED
    shortest: Annotated[int, Field(ge=1, le=LONGEST)]
    weights: Annotated[list[Weight], Field(min_length=1, max_length=LONGEST)]
    trust: Annotated[list[Term], Field(min_length=len(Trust()), max_length=len(Trust()))]


def write_learned(folder: Path, prior: Prior) -> None:
    """Store the weights that were learned for the draft in a folder. Raises OSError."""
    learned = _Learned(prior.shortest, list(prior.weights), list(prior.trust))
    write_text(folder / LEARNED, json.dumps(asdict(learned)) + "\n")


def read_learned(folder: Path) -> Prior | None:
    """Return the weights that were learned for the draft in a folder; None if there are none. InputError for a damaged
    file."""
    file = folder / LEARNED
    if not file.is_file():
        return None
    learned = from_json(_Learned, read_file(file), file, "delete it for the weights of all drafts of its kind")
    prior = Prior(learned.shortest, tuple(learned.weights), Trust(*learned.trust))
    if prior.longest > LONGEST:
        raise InputError(f"{file}: weights of contexts of up to {prior.longest} tokens; {LONGEST} are the most")
    return prior


def _with_ngrams(draft: BaseDraft, prior_weight: float | None, folder: Path, target: Target) -> NgramDraft:
    return NgramDraft(draft, prior_weight, read_learned(folder) if folder.parts else None)


SUMMARY = "Mix in what followed the same tokens earlier in the text; WEIGHT instead of what was learned."
ENDINGS[NGRAMS] = Ending(_with_ngrams, TEXT, number="WEIGHT", check=check_prior_weight, summary=SUMMARY)
