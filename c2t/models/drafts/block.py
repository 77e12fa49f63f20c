"""A block drafter in the manner of DFlash and DSpark: one forward over the root and masks speaks of all depths.

    c = norm(fc(concat(target's states)));  x_0 = embed(root, mask, ..., mask)
    a_i = x_i + attention(norm(x_i); keys and values of c and of norm(x_i));  x_{i+1} = a_i + mlp(norm(a_i))

Keys and values of the committed text are made of the target's states c alone, at the positions of its tokens; the block
follows them and sees all of itself, in both directions, unless `BlockForm.layer_masks` says otherwise. base =
lm_head(norm(x)). In place (DFlash), slot k speaks of the token at its own position, and the root's slot of none. From
the anchor (DeepSpec), slot k speaks of the token after, and each of them does. Without a Markov head a depth's
distribution is base, the same on every path; with one it depends on the token before too (`c2t.models.drafts.markov`).
"""

import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from c2t.caches.padded import KVCache
from c2t.errors import InputError
from c2t.models.drafts.block_layers import BlockAttention, BlockLayer, LayerMask
from c2t.models.drafts.dflash2 import CandidateSelector, DFlash2Form
from c2t.models.drafts.domino import DominoHead, domino_layers
from c2t.models.drafts.eagle import Head, in_words
from c2t.models.drafts.head_draft import rows_of
from c2t.models.drafts.markov import ConfidenceHead, MarkovHead, SequentialHead
from c2t.models.drafts.treeflash import StateCorrection


@dataclass(frozen=True)
class BlockForm:
    """Form of a block drafter, in what published ones differ.

    size: slots of a block, that of the root included. mask_token: the token whose embedding stands in the others.
    layer_ids: layers of the target whose outputs are read, -1 for the embedding's. from_anchor: each slot speaks of the
    token after it. markov_rank: 0 for no Markov head. markov_kind: one of `c2t.models.drafts.markov.KINDS`. confidence:
    there is a confidence head; confidence_reads_token: it reads the Markov embedding of the token before. domino: sizes
    of a Domino head's state and output and its first depth, None for no such head. dflash2: None without its parts.
    treeflash: a path's last token corrects states.
    draft_vocab: size of the head's own vocabulary, None for the target's. own_lm_head: its LM head is not the target's.
    target_layers: of the target that it was trained for, None if that is not known. layer_masks: of each layer; empty:
    all layers see all. layout: of its config.json.
    """

    size: int
    mask_token: int
    layer_ids: tuple[int, ...]
    from_anchor: bool = False
    markov_rank: int = 0
    markov_kind: str = "vanilla"
    confidence: bool = False
    confidence_reads_token: bool = False
    domino: tuple[int, int, int] | None = None
    dflash2: DFlash2Form | None = None
    treeflash: bool = False
    draft_vocab: int | None = None
    own_lm_head: bool = False
    target_layers: int | None = None
    layer_masks: tuple[LayerMask, ...] = ()
    layout: str = field(default="flat", compare=False)


class BlockHead(Head):
    """Block drafter with DFlash's and DSpark's parameter names.

    size: slots of a block. markov_head, confidence_head: None for none. lm_head: its own one, None where the target's
    is read. In training the embedding and the LM head are frozen, the target's; everything else learns.
    """

    markov_head: MarkovHead | None
    confidence_head: ConfidenceHead | None
    embed_proj: nn.Sequential  # of Domino's

    def __init__(self, config: LlamaConfig, form: BlockForm):
        super().__init__(config)
        self.form, self.size, self.num_layers = form, form.size, config.num_hidden_layers
        hidden, vocabulary = config.hidden_size, form.draft_vocab or config.vocab_size
        self.fc = nn.Linear(len(form.layer_ids) * hidden, hidden, bias=False)
        self.hidden_norm, self.norm = (LlamaRMSNorm(hidden, eps=config.rms_norm_eps) for _ in range(2))
        self.layers = nn.ModuleList(BlockLayer(config, form.dflash2) for _ in range(config.num_hidden_layers))
        self.candidate_selector: CandidateSelector | None = None
        if form.dflash2:
            self.candidate_selector = CandidateSelector(config.vocab_size, hidden, form.dflash2.rank)
        self.ar_approximation = StateCorrection(hidden, config.intermediate_size) if form.treeflash else None
        self.lm_head = nn.Linear(hidden, vocabulary, bias=False) if form.own_lm_head else None
        self.markov_head = self.confidence_head = None
        if form.markov_rank:
            self.markov_head = MarkovHead(config.vocab_size, vocabulary, form.markov_rank, hidden, form.markov_kind)
        if form.domino:
            for name, layer in domino_layers(hidden, *form.domino[:2], vocabulary).items():
                self.add_module(name, layer)
        if form.confidence:
            self.confidence_head = ConfidenceHead(hidden, form.markov_rank * form.confidence_reads_token)

    @property
    def drafts(self) -> int:
        """Slots that speak of a token, one for each depth."""
        return self.size if self.form.from_anchor else self.size - 1

    @property
    def summary(self) -> str:
        """See `Head.summary`."""
        form = self.form
        kind = "DSpark" if form.markov_rank or form.confidence else "DFlash2" if form.dflash2 else "DFlash"
        kind = "Domino" if form.domino else "TreeFlash" if form.treeflash else kind
        causal = sum(mask.causal for mask in form.layer_masks)
        some = "" if causal in (0, self.num_layers) else f" in {causal} of {self.num_layers} layers"
        said = [
            f"{kind} ({form.layout})",
            f"block of {form.size} {'from the anchor' if form.from_anchor else 'in place'}",
            f"reads the outputs of layers {', '.join(map(str, form.layer_ids))}",
            in_words([mask.window or 0 for mask in form.layer_masks]),
            f"causal{some}" if causal else "not causal",
        ]
        if form.markov_rank:
            said.append(f"{form.markov_kind} Markov head of rank {form.markov_rank}")
        return ", ".join(said + ["confidence head"] * form.confidence)

    def realigned(self) -> "BlockHead":
        """Return the head as it would be read in its other alignment, with the same weights."""
        other = copy.copy(self)
        other.form = replace(self.form, from_anchor=not self.form.from_anchor)
        return other

    @property
    def sequential(self) -> SequentialHead | None:
        """The head that makes distributions depend on the path; None if there is none."""
        return DominoHead(self, self.form.domino[2]) if self.form.domino else self.markov_head

    def taps(self, target_layers: int) -> tuple[int, ...]:
        """See `Head.taps`; InputError for a target of another depth, for layers that it does not have, and for its last
        one, whose output the formats read after the final norm."""
        ids, trained_for = self.form.layer_ids, self.form.target_layers
        if trained_for not in (None, target_layers):
            raise InputError(
                f"the draft head was trained for a target of {trained_for} layers (num_target_layers), this one has "
                f"{target_layers}; take the head of this target"
            )
        rising = all(low < high for low, high in pairwise(ids))
        if not rising or ids[-1] > target_layers - 2:
            raise InputError(
                f"the head reads the outputs of layers {list(ids)}, which must rise, up to {target_layers - 2} for a "
                f"target of {target_layers} layers (the last one's output is not read)"
            )
        return tuple(layer + 1 for layer in ids)

    def restrict(self, tokens: Int[Tensor, " v"]) -> None:
        """Draft only these tokens (rising ids): of rows for all of the target's, keep theirs."""
        self.tokens = tokens
        if self.form.draft_vocab is None:
            if self.lm_head is not None:
                self.lm_head = rows_of(self.lm_head, tokens)
            if self.markov_head is not None:
                self.markov_head.markov_w2 = rows_of(self.markov_head.markov_w2, tokens)
            if self.form.domino:
                self.embed_proj[2] = rows_of(self.embed_proj[2], tokens)

    def share(self, lm_head: nn.Module) -> None:
        """Read the target's LM head in place of a copy of it."""
        if self.lm_head is None or lm_head.weight.is_meta or lm_head.bias is not None:
            return
        rows, copied = lm_head.weight, self.lm_head.weight
        if rows.shape == copied.shape and copied.to(rows).equal(rows):
            self.lm_head = None

    def block(self, roots: Int[Tensor, " B"]) -> Int[Tensor, "B K"]:
        """Return the tokens of blocks that begin with these."""
        return F.pad(roots[:, None], (0, self.size - 1), value=self.form.mask_token)

    def remember(self, features: Float[Tensor, "B n D"], positions: Int[Tensor, "B n"], cache: KVCache) -> None:
        """Append the keys and values of committed tokens, made of the target's states, to the cache."""
        context = self.hidden_norm(self.fc(features))
        rotation = self.rotation(context, positions)
        for number, layer in enumerate(self.layers):
            attention: BlockAttention = layer.self_attn
            cache.update(*attention.keys_values(context, rotation), number)

    def forward(
        self,
        tokens: Int[Tensor, "B n"],
        positions: Int[Tensor, "B n"],
        mask: Bool[Tensor, "B n t"],
        cache: KVCache,
    ) -> Float[Tensor, "B n H"]:
        """Return the states of blocks that follow the cache, whose slots hold the tokens of positions 0, 1, ...; mask:
        what each of their tokens sees of it and of them in a layer that sees all."""
        return self.norm(self.unnormed(tokens, positions, mask, cache))

    def unnormed(
        self,
        tokens: Int[Tensor, "B n"],
        positions: Int[Tensor, "B n"],
        mask: Bool[Tensor, "B n t"],
        cache: KVCache,
    ) -> Float[Tensor, "B n H"]:
        """Return the states of `forward` before the last norm."""
        hidden = self.embed_tokens(tokens).to(self.fc.weight.dtype)
        if self.form.dflash2:
            hidden = hidden * self.form.dflash2.embedding_scale
        rotation = self.rotation(hidden, positions)
        masks = self._masks(mask, positions)
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden, rotation, number, masks[number], cache)
        return hidden

    def _masks(self, mask: Bool[Tensor, "B n t"], positions: Int[Tensor, "B n"]) -> list[Bool[Tensor, "B n t"]]:
        """Return what each layer lets slots at these positions see of the cache and of themselves."""
        if not self.form.layer_masks:
            return [mask] * len(self.layers)
        before = torch.arange(mask.shape[2] - positions.shape[1], device=positions.device)
        seen = torch.cat([before.expand(len(positions), -1), positions], 1)
        masks = {kind: kind.narrowed(mask, positions, seen) for kind in set(self.form.layer_masks)}
        return [masks[kind] for kind in self.form.layer_masks]
