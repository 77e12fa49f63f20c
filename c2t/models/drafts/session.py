"""A draft, and its side of one generation: the committed prefix, the slots expanded in a round, and their ancestors."""

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from c2t.caches.padded import KVCache
from c2t.caches.ragged import Ragged, end_to_end, stretches, whole
from c2t.errors import InputError
from c2t.kernels.entries import Columns, Entries, descend, follow
from c2t.kernels.level_plan import LevelPlan
from c2t.protocols import DraftVocabulary, Grown, NextTokenDistributions, Root
from c2t.sessions.stateless import StatelessSession
from c2t.sessions.wrapped import WrappedSession
from c2t.tree import Tree


class BaseDraft(ABC):
    """A draft, which starts a session for every generation; what others need to know about it are attributes.

    hidden_size: width of its states; 0 for none. vocabulary: tokens that it can name, None for all. reads_path: its
    distributions depend on a path's tokens; False for a parallel draft, whose depths have one each. uniform: it knows
    nothing. has_ngrams: n-grams of the text are mixed in. has_graphs: its forwards can be recorded as CUDA graphs.
    language_models: those that it runs.
    """

    hidden_size: int
    vocabulary: DraftVocabulary | None = None
    reads_path: bool = True
    uniform: bool = False
    has_ngrams: bool = False
    has_graphs: bool = False
    language_models: tuple[PreTrainedModel, ...] = ()

    @abstractmethod
    def session(self) -> "DraftSession":
        """Return a new session for one generation."""


@dataclass(frozen=True)
class WrappedDraft(BaseDraft):
    """Draft around another one, which has the attributes of the inner one that a subclass does not change. mark: what
    tells it from other wrappers of its kind, without a file of its own."""

    draft: BaseDraft

    @property
    def mark(self) -> str:
        return ""

    @property
    def hidden_size(self) -> int:
        return self.draft.hidden_size

    @property
    def vocabulary(self) -> DraftVocabulary | None:
        return self.draft.vocabulary

    @property
    def reads_path(self) -> bool:
        return self.draft.reads_path

    @property
    def uniform(self) -> bool:
        return self.draft.uniform

    @property
    def has_ngrams(self) -> bool:
        return self.draft.has_ngrams

    @property
    def language_models(self) -> tuple[PreTrainedModel, ...]:
        return self.draft.language_models


class DraftSession(ABC):
    """Keys and values of the draft for B rows, and `expand` over them; subclasses bring the forward.

    Slots expanded in a round are numbered in that order ("entries"). Entry 0 is the root, whose forward is the last one
    over the prefix. An entry sees the prefix, its ancestors among the entries, and itself.

    passes: for each row, the draft forwards of the current round that it took part in, the one over the prefix
    included. vocabulary: tokens that `_logits` gives, None for all. entries: the round's own. hidden: their states.
    """

    def __init__(self, layers: int, vocabulary: DraftVocabulary | None = None):
        self.cache, self.vocabulary = KVCache(layers), vocabulary
        self.passes: Int[Tensor, " B"] | None = None
        self.entries: Entries | None = None

    @abstractmethod
    def _forward(
        self,
        tokens: Int[Tensor, "B F"],
        features: Float[Tensor, "B F H"],
        positions: Int[Tensor, "B F"],
        mask: Bool[Tensor, "B F t"],
        rows: Ragged,
    ) -> Float[Tensor, "B F H"]:
        """Run one draft forward behind the cache; return hidden states, which `_logits` reads and children take as
        features. Those of slots that are not in `rows` are not used."""

    @abstractmethod
    def _logits(self, hidden: Float[Tensor, "B F H"]) -> Float[Tensor, "B F v"]: ...

    @abstractmethod
    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """See `c2t.protocols.Session.observe`."""

    def _observe(self, tokens: Tensor, features: Tensor, count: Tensor) -> None:
        """Run committed tokens through the draft and make the last real one of each row the root's entry."""
        self.cache.drop()
        found, full = zip(*(self._read(*part) for part in stretches(count, tokens, features)), strict=True)
        hidden = self.observed = end_to_end(found)
        if not all(full):
            hidden = hidden[torch.arange(len(count), device=count.device), count - 1][:, None]
        self._begin(hidden[:, -1:])

    def _read(
        self, count: Int[Tensor, " B"], tokens: Int[Tensor, "B n"], features: Float[Tensor, "B _ D"]
    ) -> tuple[Float[Tensor, "B n H"], bool]:
        """Run the next count[r] tokens of row r through the draft in one forward, and commit them; return whether all
        tokens are real, too."""
        rows, steps = tokens.shape
        lengths = self.cache.lengths if self.cache.lengths is not None else torch.zeros_like(count)
        positions, sight, real = follow(lengths, self.cache.length, count, steps)
        full = real == tokens.numel()
        if full:
            places = whole(rows, steps, tokens.device)  # kept, where it is small
            step = places.slot.view(rows, steps)
        else:
            step = torch.arange(steps, device=tokens.device).expand(rows, -1)
            places = Ragged.of(step < count[:, None])
        hidden = self._forward(tokens, features, positions, sight, places)
        self.cache.keep(step, count)
        return hidden, full

    def _begin(self, root: Float[Tensor, "B 1 H"]) -> None:
        """Start a new round, whose first entry will be the root."""
        rows, device = len(root), root.device
        self.hidden, self.entries = root, None
        self.passes = torch.zeros(rows, dtype=torch.long, device=device)
        self.expanded = False
        self.latest: NextTokenDistributions | None = None
        self.log_norms: list[Float[Tensor, "B F 1"]] = []

    def fork(self, back: Int[Tensor, " B"]) -> "DraftSession":
        """Return a session of B rows, where row r is in the state of a session that has observed the text without its
        last back[r] tokens. This session must have observed the text in one call, as its only row."""
        fork = copy.copy(self)
        fork.cache = self.cache.fork(self.cache.lengths - back)
        fork._begin(self.observed[0, fork.cache.lengths - 1][:, None])
        return fork

    def rewind(self, back: Int[Tensor, " B"]) -> None:
        """Forget the last back[r] tokens that row r has observed; what it observes next stands in their place, and has
        to come before it is asked for a guess."""
        self.cache.rewind(back)

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`."""
        if not self.expanded:
            assert slots.shape[1] == 1, "the root is expanded first, alone"
            self.expanded, used = True, slots >= 0
            self.entries = Entries(torch.zeros_like(slots), self.cache.visible()[:, None])
            self.passes = self.passes + (used & tree.alive[:, :1])[:, 0]
            return self._rows(self.hidden, computed(used))
        assert self.entries is not None, "a tree that was grown at once has no entries to go on from"
        known, columns = self.entries, Columns(tree.token, tree.parent, tree.depth, tree.alive)
        self.entries, level = descend(known, self.hidden, columns, slots, self.cache.lengths)
        self.passes = self.passes + level.asked
        rows = whole(*slots.shape, slots.device) if level.used == slots.numel() else computed(slots >= 0)
        sight = self.entries.sight[:, known.slots.shape[1] :]
        hidden = self._forward(level.tokens, level.features, level.positions, sight, rows)
        self.hidden = torch.cat([self.hidden, hidden], 1)
        return self._rows(hidden, rows)

    def grow_tree(self, plan: LevelPlan, root: Root, **inputs: Any) -> Grown | None:
        """Return the trees that a policy with this plan grows by `expand`, where the draft makes them all at once; None
        where it does not, and has done nothing.

        inputs: what wrappers around the draft add to it (see `c2t.kernels.draft_phase`): `raised`, n-grams that it is
        mixed with; `noise` of the target's draws; `budget_input` of a budget, which decides about every level.
        """
        return None

    def refuse_nan(self) -> None:
        """See `c2t.protocols.Session.refuse_nan`."""
        self._take_log_norms()
        if self.log_norms:
            refuse_nan(torch.cat(self.log_norms, 1).isnan().any())

    def end(self, step: Any) -> None:  # noqa: B027 - most drafts do nothing
        """See `c2t.protocols.Session.end`."""

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        self.cache.select(rows)

    def join(self, other: "DraftSession") -> None:
        """See `c2t.protocols.Session.join`."""
        self.cache.join(other.cache)
        self._begin(torch.cat([self.hidden, other.hidden]))

    def _rows(self, hidden: Float[Tensor, "B F H"], rows: Ragged) -> NextTokenDistributions:
        self._take_log_norms()
        logits, vocabulary = self._drafted(rows.take(hidden), rows.row)
        self.latest = NextTokenDistributions(logits, hidden, vocabulary, rows)
        return self.latest

    def _drafted(
        self, states: Float[Tensor, "S H"], row: Int[Tensor, " S"]
    ) -> tuple[Float[Tensor, "S w"], DraftVocabulary | None]:
        """Return the logits behind states of these rows, and the tokens that they are of."""
        return self._logits(states[None])[0], self.vocabulary

    def _take_log_norms(self) -> None:
        """Keep the log-norms of the latest distributions, which were found when they were ranked, and let go of the
        rest."""
        if self.latest is not None:
            self.log_norms.append(self.latest.log_norm)
            self.latest = None


DraftSession.register(WrappedSession)  # around a session of any draft
DraftSession.register(StatelessSession)


def computed(used: Bool[Tensor, "B F"]) -> Ragged:
    """Return the slots of a level that are computed: on a CPU the used ones, on CUDA all, because to ask which are used
    waits for the device, and a level's few tokens cost it nothing."""
    return whole(*used.shape, used.device) if used.is_cuda else Ragged.of(used)


def refuse_nan(broken: Bool[Tensor, ""] | bool) -> None:
    """Raise InputError if `broken` is True: one of the draft's distributions was NaN."""
    if broken:
        raise InputError("the draft's logits contain NaN; check its checkpoint, or load it in a wider dtype")
