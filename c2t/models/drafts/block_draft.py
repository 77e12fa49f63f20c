"""A draft made of a block drafter: its session runs the backbone once a round, and its sequential heads at every level
of a tree."""

import copy
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from c2t.caches.padded import KVCache
from c2t.models.drafts.block import BlockHead
from c2t.models.drafts.dflash2 import CandidateSelector
from c2t.models.drafts.head_draft import rows_of
from c2t.models.drafts.markov import SequentialHead
from c2t.models.drafts.medusa import AtDepth, ByDepth
from c2t.models.drafts.session import BaseDraft, DraftSession, computed, refuse_nan
from c2t.models.drafts.treeflash import StateCorrection
from c2t.models.packing.projection import Projection
from c2t.protocols import DraftVocabulary, NextTokenDistributions
from c2t.tree import Tree


class ExpandedPaths(NamedTuple):
    """States of the paths to the slots that a round has expanded; -1 stands for what is before the root."""

    slots: Int[Tensor, "B E"]
    states: Float[Tensor, "B E z"]

    @classmethod
    def of_roots(cls, rows: int, size: int, like: Tensor) -> "ExpandedPaths":
        """Return the states before the roots, zeros."""
        return cls(torch.full((rows, 1), -1, device=like.device), like.new_zeros(rows, 1, size))

    def states_at(self, slots: Int[Tensor, "B F"]) -> Float[Tensor, "B F z"]:
        """Return the states of the paths to these slots."""
        index = (slots[..., None] == self.slots[:, None]).int().argmax(-1)
        return self.states.gather(1, index[..., None].expand(-1, -1, self.states.shape[2]))

    def extended(self, slots: Int[Tensor, "B F"], states: Float[Tensor, "B F z"]) -> "ExpandedPaths":
        """Return these states in addition; of equal slots the first one counts, so padding changes nothing."""
        return ExpandedPaths(torch.cat([self.slots, slots], 1), torch.cat([self.states, states], 1))


class BlockDraft(BaseDraft):
    """Draft made of a block drafter and an LM head, its own or the target's, with one session per generation. It reads
    the path if it has a sequential head other than that for confidence, a selector or TreeFlash's correction.

    candidates: of each depth, how many tokens a sequential head has a bias for: those most probable without it. All
    others have probability 0. None: all tokens have one.
    """

    candidates: int | None = None

    def __init__(self, head: BlockHead, lm_head: nn.Module):
        self.head, self.sequential, self.vocabulary = head, head.sequential, None
        reading = (self.sequential, head.candidate_selector, head.ar_approximation)
        self.reads_path = any(part is not None for part in reading)
        if head.tokens is not None:
            self.vocabulary = DraftVocabulary(head.tokens, head.config.vocab_size)
        if head.lm_head is not None:
            lm_head = head.lm_head
        elif head.tokens is not None:
            lm_head = rows_of(lm_head, head.tokens)
        self.lm_head = Projection(lm_head)
        self.bias = Projection(self.sequential.out) if self.sequential else None

    @property
    def hidden_size(self) -> int:
        return self.head.config.hidden_size

    def realigned(self) -> "BlockDraft | None":
        """See `BaseDraft.realigned`; None also where no slot would then speak of a token."""
        if self.head.form.dflash2 or self.head.form.treeflash:  # formats with in place only
            return None
        other = copy.copy(self)
        other.head = self.head.realigned()
        return other if other.head.drafts else None

    def among(self, candidates: int) -> "BlockDraft | None":
        """See `BaseDraft.among`."""
        if self.sequential is None:
            return None
        other = copy.copy(self)
        other.candidates = candidates if candidates < self.sequential.out.weight.shape[0] else None
        return other

    def session(self) -> "BlockSession":
        """Return a new session for one generation."""
        return BlockSession(self)


@DraftSession.register  # its only forward in a round is the block's
class BlockSession:
    """Draft session that holds keys and values of the committed text and each row's root. passes: as in
    `DraftSession`."""

    def __init__(self, draft: BlockDraft):
        self.draft, self.head, self.cache = draft, draft.head, KVCache(draft.head.num_layers)
        self.dtype = draft.head.fc.weight.dtype
        self.passes: Int[Tensor, " B"] | None = None

    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 D"], count: Int[Tensor, " B"]) -> None:
        """See `DraftSession.observe`."""
        steps = torch.arange(features.shape[1], device=tokens.device)
        lengths = self.cache.lengths if self.cache.lengths is not None else torch.zeros_like(count)
        # a packed target's features are in float32 whatever its dtype
        self.head.remember(features.to(self.dtype), lengths[:, None] + steps, self.cache)
        self.cache.keep(steps.expand(len(tokens), -1), count)
        self._begin(tokens.gather(1, count[:, None])[:, 0])

    def _begin(self, roots: Int[Tensor, " B"]) -> None:
        self.roots, self.passes = roots, torch.zeros_like(roots)
        self.ahead: ByDepth | None = None
        self.latest: NextTokenDistributions | None = None
        self.log_norms: list[Float[Tensor, "B F 1"]] = []
        self.paths: ExpandedPaths | None = None

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`. Slots of a depth share its logits, to which a sequential head adds what
        their paths say; below the last depth of a block all tokens are equal."""
        if self.ahead is None:
            self.passes = self.passes + tree.alive[:, 0]
            # Below the last depth: a zero state, for which the LM head's logits are zeros.
            self.unnormed = F.pad(self._forward()[:, -self.head.drafts :], (0, 0, 0, 1))
            states = self.head.norm(self.unnormed)
            logits, dflash2 = self.draft.lm_head(states).to(states.device), self.head.form.dflash2
            self.ahead = ByDepth(dflash2.unary(logits) if dflash2 else logits, states, self.draft.vocabulary)
        self._take_log_norms()
        columns = tree.token, tree.depth, tree.parent
        token, depth, parent = (column.gather(1, slots.clamp(min=0)) for column in columns)
        depth = (depth + 1).clamp(max=self.head.drafts)
        rows: NextTokenDistributions = AtDepth(self.ahead, depth)
        if self.draft.sequential is not None:
            rows = self.latest = self._after(self.draft.sequential, rows, token, depth, parent, slots)
        if self.head.ar_approximation is not None:
            rows = self.latest = self._corrected(self.head.ar_approximation, rows.hidden, token, depth, slots)
        if self.head.candidate_selector is not None:
            rows = self.latest = self._selected(self.head.candidate_selector, rows, token, depth)
        rows.confidence = self._confidence(rows.hidden, token, depth)
        return rows

    def _after(
        self,
        head: SequentialHead,
        rows: NextTokenDistributions,
        token: Int[Tensor, "B F"],
        depth: Int[Tensor, "B F"],
        parent: Int[Tensor, "B F"],
        slots: Int[Tensor, "B F"],
    ) -> NextTokenDistributions:
        """Return the distributions after the paths to these slots, of those of their depths; for slots >= 0 only."""
        real, hidden = computed(slots >= 0), rows.hidden
        before = hidden[..., :0]
        if head.state_size:
            self.paths = self.paths or ExpandedPaths.of_roots(len(slots), head.state_size, hidden)
            before = self.paths.states_at(parent)
        read, states = head.step(head.embedded(token), hidden, before)
        if head.state_size:
            self.paths = self.paths.extended(slots, states)
        has_bias = (depth >= head.first_depth) & (depth < self.head.drafts)
        read = read * has_bias[..., None]  # of zeros the bias is 0
        if self.draft.candidates is not None:
            tokens, log_probs = rows.top(self.draft.candidates)
            index = _indices(rows, tokens)
            bias = (head.out.weight[index] @ read[..., None])[..., 0]
            return self._among(rows, index, log_probs + bias, depth)
        bias = self.draft.bias(real.take(read))
        logits = self.ahead.drafted[real.row, real.take(depth)] + bias
        return NextTokenDistributions(logits, hidden, self.draft.vocabulary, real)

    def _corrected(
        self,
        correction: StateCorrection,
        hidden: Float[Tensor, "B F H"],
        token: Int[Tensor, "B F"],
        depth: Int[Tensor, "B F"],
        slots: Int[Tensor, "B F"],
    ) -> NextTokenDistributions:
        """Return the distributions of states that are corrected by these tokens; for slots >= 0 only."""
        real = computed(slots >= 0)
        gain = correction(self.head.embed_tokens(real.take(token)), real.take(hidden))
        states = self.head.norm(self.unnormed[real.row, real.take(depth)] + gain)
        inside = (real.take(depth) < self.head.drafts)[:, None]
        logits = self.draft.lm_head(states * inside).to(states.device)
        return NextTokenDistributions(logits, hidden, self.draft.vocabulary, real)

    def _selected(
        self,
        selector: CandidateSelector,
        rows: NextTokenDistributions,
        token: Int[Tensor, "B F"],
        depth: Int[Tensor, "B F"],
    ) -> NextTokenDistributions:
        """Return the distributions over each depth's candidates after these tokens."""
        candidates, log_probs = rows.top(min(self.head.form.dflash2.top_k, rows.size))
        scores = log_probs + selector(token, rows.hidden, candidates)
        return self._among(rows, _indices(rows, candidates), scores, depth)

    def _among(
        self,
        rows: NextTokenDistributions,
        index: Int[Tensor, "B F c"],
        scores: Float[Tensor, "B F c"],
        depth: Int[Tensor, "B F"],
    ) -> NextTokenDistributions:
        """Return the distributions over some logits' tokens with these scores; below the last depth over all."""
        shape = (*depth.shape, rows.size)
        logits = scores.new_full(shape, float("-inf")).scatter_(-1, index, scores)
        return rows.with_logits(logits.masked_fill_((depth == self.head.drafts)[..., None], 0.0), None)

    def _confidence(
        self, hidden: Float[Tensor, "B F H"], token: Int[Tensor, "B F"], depth: Int[Tensor, "B F"]
    ) -> Float[Tensor, "B F"] | None:
        head = self.head
        if head.confidence_head is None:
            return None
        embedded = head.markov_head.embedded(token) if head.confidence_head.rank else None
        return head.confidence_head(hidden, embedded).sigmoid() * (depth < head.drafts)

    def _forward(self) -> Float[Tensor, "B K H"]:
        tokens = self.head.block(self.roots)
        positions = self.cache.lengths[:, None] + torch.arange(self.head.size, device=tokens.device)
        seen = F.pad(self.cache.visible(), (0, self.head.size), value=True)
        hidden = self.head.unnormed(tokens, positions, seen[:, None].expand(-1, self.head.size, -1), self.cache)
        self.cache.drop()
        return hidden

    def rewind(self, back: Int[Tensor, " B"]) -> None:
        """See `DraftSession.rewind`."""
        self.cache.rewind(back)

    def fork(self, back: Int[Tensor, " B"]) -> "BlockSession":
        """See `DraftSession.fork`."""
        fork = copy.copy(self)
        fork.cache = self.cache.fork(self.cache.lengths - back)
        fork._begin(self.roots.expand(len(back)))
        return fork

    def refuse_nan(self) -> None:
        """See `DraftSession.refuse_nan`."""
        self._take_log_norms()
        if self.ahead is not None:
            refuse_nan(torch.cat(self.log_norms or [self.ahead.log_norm], 1).isnan().any())

    def _take_log_norms(self) -> None:
        """Store the log-norms of the latest distributions, which ranking has computed, and release their logits."""
        if self.latest is not None:
            self.log_norms.append(self.latest.log_norm)
            self.latest = None

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        self.cache.select(rows)

    def join(self, other: "BlockSession") -> None:
        """See `DraftSession.join`."""
        self.cache.join(other.cache)
        self._begin(torch.cat([self.roots, other.roots]))


def _indices(rows: NextTokenDistributions, tokens: Int[Tensor, "B F c"]) -> Int[Tensor, "B F c"]:
    """Return where the logits of these tokens stand."""
    return tokens if rows.vocabulary is None else rows.vocabulary.indices(tokens, None)
