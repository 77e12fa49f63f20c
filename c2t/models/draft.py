"""The draft side of one generation: the committed prefix, the slots expanded in this round, and their ancestors."""

import copy
from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.errors import InputError
from c2t.kv_cache import KVCache
from c2t.protocols import DraftVocabulary, NextTokenDistributions
from c2t.tree import Tree


class DraftSession(ABC):
    """Keys and values of the draft for B rows, and `expand` over them; subclasses bring the forward.

    Slots expanded in a round are numbered in that order ("entries"). Entry 0 is the root, whose forward is the last one
    over the prefix. An entry sees the prefix, its ancestors among the entries, and itself.

    passes: for each row, the draft forwards of the current round that it took part in, the one over the prefix
    included. vocabulary: tokens that `_logits` gives, None for all.
    """

    def __init__(self, layers: int, vocabulary: DraftVocabulary | None = None):
        self.cache, self.vocabulary = KVCache(layers), vocabulary
        self.passes: Int[Tensor, " B"] | None = None

    @abstractmethod
    def _forward(
        self,
        tokens: Int[Tensor, "B F"],
        features: Float[Tensor, "B F H"],
        positions: Int[Tensor, "B F"],
        mask: Bool[Tensor, "B F t"],
    ) -> Float[Tensor, "B F H"]:
        """Run one draft forward behind the cache; return hidden states, which `_logits` reads and children take as
        features."""

    @abstractmethod
    def _logits(self, hidden: Float[Tensor, "B F H"]) -> Float[Tensor, "B F v"]: ...

    @abstractmethod
    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """Take in committed text, rows padded on the right.

        tokens: the previous root (in the first call the prompt's first token) and the count[r] < n tokens after it, the
        last of which is the new root. features: the target's features of all these tokens but the new root.
        """

    def _observe(self, tokens: Tensor, features: Tensor, count: Tensor) -> None:
        """Run committed tokens through the draft and make the last real one of each row the root's entry."""
        self.cache.drop()
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        lengths = self.cache.lengths if self.cache.lengths is not None else torch.zeros_like(count)
        causal = (steps[:, None] >= steps).expand(len(tokens), -1, -1)
        hidden = self._forward(tokens, features, lengths[:, None] + steps, self._mask(causal))
        self.cache.keep(steps.expand_as(tokens), count)
        self.observed = hidden
        self._begin(hidden.gather(1, (count - 1)[:, None, None].expand(-1, 1, hidden.shape[2])))

    def _begin(self, root: Float[Tensor, "B 1 H"]) -> None:
        """Start a new round, in which the root is the only entry."""
        rows, device = len(root), root.device
        self.entries = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.hidden = root
        self.lineage = torch.ones(rows, 1, 1, dtype=torch.bool, device=device)
        self.passes = torch.zeros(rows, dtype=torch.long, device=device)
        self.expanded = False
        self.broken = torch.zeros((), dtype=torch.bool, device=device)

    def fork(self, back: Int[Tensor, " B"]) -> "DraftSession":
        """Return a session of B rows, where row r is in the state of a session that has observed the text without its
        last back[r] tokens. This session must have observed the text in one call, as its only row."""
        fork = copy.copy(self)
        fork.cache = self.cache.fork(self.cache.lengths - back)
        fork._begin(self.observed[0, fork.cache.lengths - 1][:, None])
        return fork

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`."""
        first = not self.expanded
        self.expanded = True
        used = slots >= 0
        slots = slots.clamp(min=0)
        self.passes = self.passes + (used & tree.alive.gather(1, slots)).any(1)
        if first:
            assert slots.shape[1] == 1, "the root is expanded first, alone"
            return self._rows(self.hidden)
        parent = (tree.parent.gather(1, slots)[..., None] == self.entries[:, None]).int().argmax(-1)  # (B, F)
        known = self.lineage.gather(1, parent[..., None].expand(-1, -1, self.lineage.shape[2]))
        itself = torch.eye(slots.shape[1], dtype=torch.bool, device=slots.device).expand(len(slots), -1, -1)
        lineage = torch.cat([known, itself], 2)  # (B, F, entries + F)
        features = self.hidden.gather(1, parent[..., None].expand(-1, -1, self.hidden.shape[2]))
        positions = self._position_of_root()[:, None] + tree.depth.gather(1, slots) + 1
        hidden = self._forward(tree.token.gather(1, slots), features, positions, self._mask(lineage[..., 1:]))
        self.entries = torch.cat([self.entries, torch.where(used, slots, -1)], 1)
        self.hidden = torch.cat([self.hidden, hidden], 1)
        older = torch.nn.functional.pad(self.lineage, (0, slots.shape[1]))
        self.lineage = torch.cat([older, lineage], 1)
        return self._rows(hidden)

    def refuse_nan(self) -> None:
        """Raise InputError if a distribution of this round was NaN. Called once a round, because it waits for the
        device."""
        refuse_nan(self.broken)

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        self.cache.select(rows)

    def _rows(self, hidden: Float[Tensor, "B F H"]) -> NextTokenDistributions:
        rows = NextTokenDistributions(self._logits(hidden), hidden, self.vocabulary)
        self.broken = self.broken | rows.log_norm.isnan().any()
        return rows

    def _position_of_root(self) -> Int[Tensor, " B"]:
        return self.cache.lengths - 1

    def _mask(self, pending: Bool[Tensor, "B F e"]) -> Bool[Tensor, "B F t"]:
        """Return the attention mask of F queries: each sees its row's prefix, and those of the e pending slots that
        `pending` marks."""
        if self.cache.lengths is None:
            return pending
        prefix = self.cache.visible()[:, None].expand(-1, pending.shape[1], -1)
        return torch.cat([prefix, pending], 2)


def refuse_nan(broken: Bool[Tensor, ""]) -> None:
    """Raise InputError if `broken` is True: one of the draft's distributions was NaN."""
    if broken:
        raise InputError("the draft's logits contain NaN; check its checkpoint, or load it in a wider dtype")


class NoDraft:
    """Stand-in for a draft where nothing is drafted, so that plain decoding is the same loop."""

    passes: Int[Tensor, " B"]

    def observe(self, tokens: Tensor, features: Tensor, count: Int[Tensor, " B"]) -> None:
        """Set the draft forwards of the new round to 0."""
        self.passes = torch.zeros_like(count)

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """Raise InputError: without a draft no policy but the plain one can run."""
        raise InputError("only the plain policy decodes without a draft")

    def refuse_nan(self) -> None: ...

    def select(self, rows: Tensor) -> None: ...
