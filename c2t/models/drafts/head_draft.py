"""A draft made of a head of any kind and an LM head, and its session for one generation."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from c2t.caches.ragged import Ragged
from c2t.kernels.draft_phase import BudgetInput, DraftPhase, NgramInput, PhaseHead, RootStates, serves
from c2t.kernels.level_plan import LevelPlan
from c2t.kernels.masks import AskAfter
from c2t.kernels.noise import Noise
from c2t.kernels.oov_tokens import add_oov_tokens
from c2t.kernels.tree_attention import grouped_attention
from c2t.models.drafts.eagle import Head
from c2t.models.drafts.fused_eagle import FusedEagle
from c2t.models.drafts.oov_tokens import OutOfVocabulary
from c2t.models.drafts.packed_heads import PackedHead, packed
from c2t.models.drafts.session import BaseDraft, DraftSession, refuse_nan
from c2t.models.drafts.stock_heads import decoder_layers
from c2t.models.packing.projection import Projection
from c2t.models.packing.versions import Version, Versions
from c2t.models.target.offloaded import check_in_memory
from c2t.protocols import DraftVocabulary, Grown, Root
from c2t.tree import Tree


class EagleDraft(BaseDraft):
    """Draft made of a head and an LM head, its own or the target's, with one session per generation. EAGLE heads of
    Llama's layers run in their packed form on a CPU, those of EAGLE-1/2 in their fused form elsewhere, others as the
    modules they are.

    rounded: the packed form rounds weights and inputs to 8 bits, where the processor has products of bytes: its guesses
    are almost the same, and all of them are verified.
    """

    has_graphs = True

    def __init__(self, head: Head, lm_head: nn.Module, rounded: bool = False):
        self.head, self.rounded, self.vocabulary = head, rounded, None
        head_rows = getattr(head, "lm_head", None)  # even where it is made of the target's rows
        self.all_rows: Float[Tensor, "V H"] | None = None  # of the LM head, where it has some that the draft lacks
        if head.tokens is not None:
            self.vocabulary = DraftVocabulary(head.tokens, head.config.vocab_size)
            self.token_set = frozenset(head.tokens.tolist())
            if head.shares_lm_head or head_rows is None:
                check_in_memory(lm_head, "LM head")
            weight: Tensor = lm_head.weight
            self.all_rows = weight.detach() if head.shares_lm_head else None
            head_rows = rows_of(lm_head, head.tokens) if head_rows is None else head_rows
        self.lm_head = Projection(lm_head if head_rows is None else head_rows, rounded)
        self._versions = Versions()
        self._forms: dict[str, tuple[Version, Any]] = {}

    @property
    def hidden_size(self) -> int:
        return self.head.config.hidden_size

    def session(self) -> "EagleSession":
        """Return a new session for one generation."""
        return EagleSession(self)

    @property
    def packed(self) -> PackedHead | None:
        """The head's packed form; None if it has none."""
        return self._form("packed", lambda: packed(self.head, self.rounded)) if decoder_layers(self.head) else None

    @property
    def fused(self) -> FusedEagle | None:
        """The head's fused form; None if it has none."""
        return self._form("fused", lambda: FusedEagle(self.head)) if FusedEagle.serves(self.head) else None

    def _form(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the head in a form for decoding, made again when its weights have changed."""
        head = self.head
        version = self._versions.of((*head.parameters(), head.rotary.inv_freq), head.config.rms_norm_eps)
        if self._forms.get(name, (None,))[0] != version:
            self._forms[name] = version, make()
        return self._forms[name][1]


class EagleSession(DraftSession):
    """Draft session whose prefix holds keys and values of the target's true features only; those of predicted features
    are dropped when the round ends."""

    def __init__(self, draft: EagleDraft):
        super().__init__(draft.head.num_layers, draft.vocabulary)
        self.draft, self.packed = draft, draft.packed
        self._head: Head | PackedHead = draft.head if self.packed is None else self.packed
        self.fused = None if self.packed else draft.fused
        self.dtype = next(draft.head.parameters()).dtype
        self._lm_head = None if self.packed is None else draft.lm_head.packed()  # its weights are checked once a text
        self._phase: DraftPhase | None = None
        self.oov: OutOfVocabulary | None = None
        if draft.all_rows is not None:
            self.oov = OutOfVocabulary(draft.token_set, draft.vocabulary.tokens.device)

    def grow_tree(
        self,
        plan: LevelPlan,
        root: Root,
        *,
        ngram_input: NgramInput | None = None,
        noise: Noise | None = None,
        ask_after: AskAfter | None = None,
        budget_input: BudgetInput | None = None,
    ) -> Grown | None:
        """See `DraftSession.grow_tree`: fused where the head is packed."""
        phase = self._phase_of(plan)
        if phase is None:
            return None
        rows, layers = len(root.token), self.packed.decoder.layers
        self.cache.drop()
        for number in range(len(layers)):  # slots of the trees
            self.cache.append(number, self.hidden, rows, layers.kv_heads, phase.entries, layers.dim)
        rotations = self.packed.decoder.rotations[0].below(self.cache.length + plan.levels + 1)
        oov_ids = root.token.new_empty(rows, 0) if self.oov is None else self.oov.ids
        cache = self.cache
        text = RootStates(
            root.token, self.hidden[:, 0], cache.lengths, cache.buffers, cache.length, cache.step, rotations, oov_ids
        )
        inputs = ngram_input, noise, ask_after, budget_input
        grown = phase(text, *inputs, lambda: refuse_nan(root.token.new_ones((), dtype=torch.bool)))
        self.expanded, self.passes = True, grown.passes
        return Grown(Tree.of(grown.blocks, capped=grown.capped), grown.slots)

    def _phase_of(self, plan: LevelPlan) -> DraftPhase | None:
        """Return the phase of this plan, None where there is none: it is made again for another plan."""
        if type(self) is not EagleSession or self.packed is None or torch.is_grad_enabled():
            return None
        if self._phase is None or self._phase.plan != plan:
            lm_head, tokens = self._lm_head, self.vocabulary and self.vocabulary.tokens
            head = lm_head and PhaseHead(self.packed.parts, lm_head, tokens, self.draft.all_rows)
            fits = head is not None and serves(head, plan) and lm_head.outputs >= plan.K
            self._phase = DraftPhase(head, plan) if fits else None
        return self._phase

    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """See `DraftSession.observe`; each feature is paired with the token after it, so the prompt's first token is
        not read."""
        if self.oov is not None:
            self.oov.observe(tokens, count)
        self._observe(tokens[:, 1:], self._head.read(features), count)

    def rewind(self, back: Int[Tensor, " B"]) -> None:
        """See `DraftSession.rewind`."""
        super().rewind(back)
        if self.oov is not None:
            self.oov.rewind(back)

    def fork(self, back: Int[Tensor, " B"]) -> "EagleSession":
        """See `DraftSession.fork`."""
        fork: EagleSession = super().fork(back)
        fork.oov = self.oov and self.oov.fork(back)
        return fork

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """See `DraftSession.select`."""
        super().select(rows)
        if self.oov is not None:
            self.oov.select(rows)

    def join(self, other: "EagleSession") -> None:
        """See `DraftSession.join`."""
        super().join(other)
        if self.oov is not None:
            self.oov.join(other.oov)

    def _forward(
        self,
        tokens: Int[Tensor, "B F"],
        features: Float[Tensor, "B F D"],
        positions: Int[Tensor, "B F"],
        mask: Bool[Tensor, "B F t"],
        rows: Ragged,
    ) -> Float[Tensor, "B F H"]:
        if self.packed is not None:
            return rows.back(self.packed(features, tokens, positions, mask, self.cache, rows))
        features = features.to(self.dtype)  # a packed target's are in float32 whatever its dtype
        if self.fused is None:
            return self.draft.head(features, tokens, positions, mask[:, None], self.cache)

        self.fused.reach(self.cache.get_seq_length() + tokens.shape[1] + 1)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return grouped_attention(query, *self.cache.update(key, value, layer), mask)

        return self.fused(features, tokens, positions, attend)

    def _last(self, tokens: Tensor, features: Tensor, positions: Tensor, mask: Tensor, rows: Ragged) -> Tensor:
        if self.packed is None:
            return super()._last(tokens, features, positions, mask, rows)
        filled = [row for row, size in enumerate(rows.sizes) if size]  # the rest: a longer row's padding
        ends = [end - 1 for size, end in zip(rows.sizes, accumulate(rows.sizes), strict=True) if size]
        wanted = torch.tensor(ends, dtype=torch.long, device=tokens.device)
        hidden = self.packed(features, tokens, positions, mask, self.cache, rows, wanted)
        if len(filled) == len(rows.sizes):
            return hidden
        every = hidden.new_zeros(len(rows.sizes), hidden.shape[1])
        every[filled] = hidden
        return every

    def _logits(self, hidden: Tensor) -> Tensor:
        return self._read_out(self._head.readable(hidden))

    def _read_out(self, read: Tensor) -> Tensor:
        if self._lm_head is not None and read.dtype == torch.float32 and not torch.is_grad_enabled():
            return self._lm_head(read)
        return self.draft.lm_head(read).to(read.device)  # of a target on several devices

    def _drafted(
        self, states: Float[Tensor, "S H"], row: Int[Tensor, " S"]
    ) -> tuple[Float[Tensor, "S w"], DraftVocabulary | None]:
        if self.oov is None or not self.oov.ids.shape[1]:
            return super()._drafted(states, row)
        read = self._head.readable(states)
        logits = add_oov_tokens(self._read_out(read), read, row, self.oov.ids, self.draft.all_rows)
        return logits, self.vocabulary._replace(oov_ids=self.oov.ids)


def rows_of(linear: nn.Linear, rows: Int[Tensor, " v"]) -> nn.Linear:
    """Return a copy of some rows of a layer without bias."""
    weight = linear.weight.detach()[rows.to(linear.weight.device)]
    part = nn.Linear(weight.shape[1], len(weight), bias=False, device="meta")
    part.weight = nn.Parameter(weight, requires_grad=False)
    return part
