"""A draft model, and its session: the committed prefix, the slots expanded in a round, and their ancestors."""

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from c2t.caches.padded import KVCache
from c2t.caches.ragged import Ragged, chunks, whole
from c2t.errors import InputError
from c2t.kernels.entries import Columns, Entries, descend, follow
from c2t.kernels.level_plan import LevelPlan
from c2t.protocols import DraftVocabulary, Grown, NextTokenDistributions, Root
from c2t.sessions.stateless import StatelessSession
from c2t.sessions.wrapped import WrappedSession
from c2t.tree import Tree


class BaseDraft(ABC):
    """A draft model, which starts a session for every generation, and its properties.

    hidden_size: width of its hidden states, 0 for none. vocabulary: tokens that it can propose, None for all.
    reads_path: True if its distributions depend on a path's tokens; False for a parallel draft, with one distribution
    per depth. uniform: True if all tokens are equally probable. has_ngrams: True if n-grams of the text are mixed in.
    has_graphs: True if CUDA graphs can record its forwards. language_models: the language models that it runs.
    """

    hidden_size: int
    vocabulary: DraftVocabulary | None = None
    reads_path: bool = True
    uniform: bool = False
    has_ngrams: bool = False
    has_graphs: bool = False
    language_models: tuple[PreTrainedModel, ...] = ()

    @property
    def bare(self) -> "BaseDraft":
        """The draft without wrappers."""
        return self

    def realigned(self) -> "BaseDraft | None":
        """Return the draft as it would be if its files were read in another alignment; None if they have only one."""
        return None

    def among(self, candidates: int) -> "BaseDraft | None":
        """Return the draft with so many candidates of each depth for a bias of the path; None if it has no bias."""
        return None

    @abstractmethod
    def session(self) -> "DraftSession":
        """Return a new session for one generation."""


@dataclass(frozen=True)
class WrappedDraft(BaseDraft):
    """Draft that wraps another one and has the inner draft's properties, unless a subclass overrides them.

    mark: a text that identifies its settings, if they are not stored in a file.
    """

    draft: BaseDraft

    @property
    def mark(self) -> str:
        return ""

    @property
    def bare(self) -> BaseDraft:
        """See `BaseDraft.bare`."""
        return self.draft.bare

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
    """The draft's keys and values for B rows, and `expand` over them; subclasses define the forward.

    Slots are numbered in the order of their expansion in a round ("entries"). Entry 0 is the root, whose forward is the
    last one over the prefix. An entry attends to the prefix, to its ancestors among the entries, and to itself.

    passes: for each row, its draft forwards in the current round, the one over the prefix included. vocabulary: tokens
    of `_logits`, None for all. entries: those of the current round. hidden: their states.
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
        """Run one draft forward after the cached tokens. Return hidden states, for `_logits` and as features of
        children; those of slots outside `rows` are ignored."""

    @abstractmethod
    def _logits(self, hidden: Float[Tensor, "B F H"]) -> Float[Tensor, "B F v"]: ...

    @abstractmethod
    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """See `c2t.protocols.Session.observe`."""

    def _observe(self, tokens: Tensor, features: Tensor, count: Tensor) -> None:
        """Run committed tokens through the draft; the last real one of each row becomes the root's entry."""
        self.cache.drop()
        parts = list(chunks(count, tokens, features))
        states = [self._read(*part) for part in parts]
        if len(parts) > 1:
            last = sum((counts > 0).long() for counts, *_ in parts) - 1  # chunk with a row's last token
            states = [torch.stack(states)[last, torch.arange(len(count), device=count.device)]]
        self._begin(states[0][:, None])

    def _read(
        self, count: Int[Tensor, " B"], tokens: Int[Tensor, "B n"], features: Float[Tensor, "B _ D"]
    ) -> Float[Tensor, "B H"]:
        """Run the next count[r] tokens of row r through the draft in one forward, and commit them. Return the last
        one's state; any for a row without tokens."""
        rows, steps = tokens.shape
        lengths = self.cache.lengths if self.cache.lengths is not None else torch.zeros_like(count)
        positions, sight, real = follow(lengths, self.cache.length, count, steps)
        if real == tokens.numel():
            packed = whole(rows, steps, tokens.device)  # cached if it is small
            step = packed.slot.view(rows, steps)
        else:
            step = torch.arange(steps, device=tokens.device).expand(rows, -1)
            packed = Ragged.of(step < count[:, None])
        last = self._last(tokens, features, positions, sight, packed)
        self.cache.keep(step, count)
        return last

    def _last(
        self,
        tokens: Int[Tensor, "B n"],
        features: Float[Tensor, "B _ D"],
        positions: Int[Tensor, "B n"],
        mask: Bool[Tensor, "B n t"],
        rows: Ragged,
    ) -> Float[Tensor, "B H"]:
        """Do `_forward`, and return the states of each row's last slot in `rows`; any for a row without slots."""
        hidden = self._forward(tokens, features, positions, mask, rows)
        if rows.full:
            return hidden[:, -1]
        ends = torch.tensor([max(span - 1, 0) for span in rows.spans], device=hidden.device)
        return hidden[torch.arange(len(ends), device=hidden.device), ends]

    def _begin(self, root: Float[Tensor, "B 1 H"]) -> None:
        """Start a new round, whose first entry will be the root."""
        rows, device = len(root), root.device
        self.hidden, self.entries = root, None
        self.passes = torch.zeros(rows, dtype=torch.long, device=device)
        self.expanded = False
        self.latest: NextTokenDistributions | None = None
        self.log_norms: list[Float[Tensor, "B F 1"]] = []

    def fork(self, back: Int[Tensor, " B"]) -> "DraftSession":
        """Return a session of B rows, where row r has observed the text of this session's only row without its last
        back[r] tokens. Where that is less than all of it, the fork must observe others before it expands a slot."""
        fork = copy.copy(self)
        fork.cache = self.cache.fork(self.cache.lengths - back)
        fork._begin(self.hidden[:, :1].expand(len(back), -1, -1))
        return fork

    def rewind(self, back: Int[Tensor, " B"]) -> None:
        """Discard the last back[r] tokens that row r has observed. It must observe others before it expands a slot."""
        self.cache.rewind(back)

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`."""
        if not self.expanded:
            assert slots.shape[1] == 1, "the root is expanded first, alone"
            self.expanded, used = True, slots >= 0
            self.entries = Entries(torch.zeros_like(slots), self.cache.visible()[:, None])
            self.passes = self.passes + (used & tree.alive[:, :1])[:, 0]
            return self._rows(self.hidden, computed(used))
        assert self.entries is not None, "a tree from a fused draft phase cannot be expanded further"
        earlier, columns = self.entries, Columns(tree.token, tree.parent, tree.depth, tree.alive)
        self.entries, level = descend(earlier, self.hidden, columns, slots, self.cache.lengths)
        self.passes = self.passes + level.asked
        rows = whole(*slots.shape, slots.device) if level.used == slots.numel() else computed(slots >= 0)
        sight = self.entries.sight[:, earlier.slots.shape[1] :]
        hidden = self._forward(level.tokens, level.features, level.positions, sight, rows)
        self.hidden = torch.cat([self.hidden, hidden], 1)
        return self._rows(hidden, rows)

    def grow_tree(self, plan: LevelPlan, root: Root, **inputs: Any) -> Grown | None:
        """Return the trees that a policy with this plan would grow by `expand`, from one fused draft phase.

        Return None, without any change, if the draft has no fused phase for this plan.

        inputs: of wrapper drafts and policies (see `c2t.kernels.draft_phase`). `ngram_input`: n-grams to mix in.
        `noise`: the target's Gumbel noise. `ask_after`: of constraints. `budget_input`: costs, by which a budget
        decides after every level."""
        return None

    def refuse_nan(self) -> None:
        """See `c2t.protocols.Session.refuse_nan`."""
        self._take_log_norms()
        if self.log_norms:
            refuse_nan(torch.cat(self.log_norms, 1).isnan().any())

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
        """Return the logits of states of these rows, and their tokens."""
        return self._logits(states[None])[0], self.vocabulary

    def _take_log_norms(self) -> None:
        """Store the log-norms of the latest distributions, which ranking has computed, and release their logits."""
        if self.latest is not None:
            self.log_norms.append(self.latest.log_norm)
            self.latest = None


DraftSession.register(WrappedSession)  # it wraps a session of any draft
DraftSession.register(StatelessSession)


def computed(used: Bool[Tensor, "B F"]) -> Ragged:
    """Return the slots of a level to compute: the used ones on a CPU, all of them on CUDA.

    On CUDA, reading which slots are used would wait for the device, and a few more tokens cost almost nothing.
    """
    return whole(*used.shape, used.device) if used.is_cuda else Ragged.of(used)


def refuse_nan(broken: Bool[Tensor, ""] | bool) -> None:
    """Raise InputError if `broken`, which says that a distribution of the draft was NaN."""
    if broken:
        raise InputError("the draft's logits contain NaN; check its checkpoint, or load it in a wider dtype")
