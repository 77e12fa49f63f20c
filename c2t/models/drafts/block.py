"""A block drafter in the manner of DFlash: one forward over the root and K - 1 masks gives the tokens of all depths.

    c = norm(fc(concat(target's states)));  x_0 = embed(root, mask, ..., mask)
    a_i = x_i + attention(norm(x_i); keys and values of c and of norm(x_i));  x_{i+1} = a_i + mlp(norm(a_i))

Keys and values of the committed text are made of the target's states c alone, at the positions of its tokens; the block
follows them and sees all of itself, in both directions. logits of depth k = target.lm_head(norm(x)) at the k-th
mask. So a depth's distribution is the same on every path. Files are those of DFlash's checkpoints.
"""

import copy
import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, apply_rotary_pos_emb

from c2t.caches.padded import KVCache
from c2t.errors import InputError
from c2t.models.drafts.eagle import Head
from c2t.models.drafts.head_draft import draft_of, rows_of
from c2t.models.drafts.medusa import AtDepth, ByDepth
from c2t.models.drafts.session import BaseDraft, DraftSession, refuse_nan
from c2t.models.packing.projection import Projection
from c2t.protocols import DraftVocabulary
from c2t.storage.checked import CLOSED, from_json
from c2t.tree import Tree

KIND = "DFlashDraftModel"  # under `architectures` in config.json
MOST = 64  # largest number of positions of a block, and of states that it reads


class BlockAttention(nn.Module):
    """Attention with norms of queries and keys, as Qwen3's, over given keys and values."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.head_dim = config.head_dim
        queries, keys = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(config.hidden_size, keys, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self.q_norm, self.k_norm = (LlamaRMSNorm(self.head_dim, eps=config.rms_norm_eps) for _ in range(2))

    def keys_values(
        self, x: Float[Tensor, "B n H"], rotation: tuple[Tensor, Tensor]
    ) -> tuple[Float[Tensor, "B h n D"], Float[Tensor, "B h n D"]]:
        """Return the keys and values of these states."""
        keys, values = (project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.k_proj, self.v_proj))
        keys = self.k_norm(keys).transpose(1, 2)
        return apply_rotary_pos_emb(keys, keys, *rotation)[1], values.transpose(1, 2)

    def forward(
        self,
        x: Float[Tensor, "B n H"],
        rotation: tuple[Tensor, Tensor],
        keys: Float[Tensor, "B h t D"],
        values: Float[Tensor, "B h t D"],
        mask: Bool[Tensor, "B n t"],
    ) -> Float[Tensor, "B n H"]:
        """Return the states' attention to those that `mask` lets them see."""
        query = self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim))).transpose(1, 2)
        query = apply_rotary_pos_emb(query, query, *rotation)[0]
        seen = F.scaled_dot_product_attention(query, keys, values, mask[:, None], enable_gqa=True)
        return self.o_proj(seen.transpose(1, 2).flatten(2))


class BlockLayer(nn.Module):
    """A layer of the drafter."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.self_attn, self.mlp = BlockAttention(config), LlamaMLP(config)
        self.input_layernorm, self.post_attention_layernorm = (
            LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps) for _ in range(2)
        )

    def forward(
        self,
        hidden: Float[Tensor, "B n H"],
        rotation: tuple[Tensor, Tensor],
        number: int,
        mask: Bool[Tensor, "B n t"],
        cache: KVCache,
    ) -> Float[Tensor, "B n H"]:
        """Return this layer's outputs; it is the cache's layer `number`."""
        x = self.input_layernorm(hidden)
        keys, values = cache.update(*self.self_attn.keys_values(x, rotation), number)
        hidden = hidden + self.self_attn(x, rotation, keys, values, mask)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class BlockHead(Head):
    """Block drafter with DFlash's parameter names.

    size: positions of a block, K. mask_token: the token whose embedding stands at the masks. layer_ids: layers of the
    target whose outputs it reads.
    """

    def __init__(self, config: LlamaConfig, size: int, mask_token: int, layer_ids: tuple[int, ...]):
        super().__init__(config)
        self.size, self.mask_token, self.layer_ids = size, mask_token, layer_ids
        self.num_layers = config.num_hidden_layers
        self.fc = nn.Linear(len(layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm, self.norm = (LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps) for _ in range(2))
        self.layers = nn.ModuleList(BlockLayer(config) for _ in range(config.num_hidden_layers))

    def taps(self, target_layers: int) -> tuple[int, ...]:
        """See `Head.taps`; InputError for layers that the target does not have, and for its last one, whose output
        DFlash reads after the final norm."""
        rising = all(low < high for low, high in pairwise(self.layer_ids))
        if not rising or self.layer_ids[-1] > target_layers - 2:
            raise InputError(
                f"target_layer_ids = {list(self.layer_ids)} must rise, up to {target_layers - 2} for a target of "
                f"{target_layers} layers (the last one's output is not read)"
            )
        return tuple(layer + 1 for layer in self.layer_ids)

    def block(self, roots: Int[Tensor, " B"]) -> Int[Tensor, "B K"]:
        """Return the tokens of blocks that begin with these."""
        return F.pad(roots[:, None], (0, self.size - 1), value=self.mask_token)

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
        """Return the states of blocks that follow the cache; mask: what each of their tokens sees of it and of them."""
        hidden = self.embed_tokens(tokens).to(self.fc.weight.dtype)
        rotation = self.rotation(hidden, positions)
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden, rotation, number, mask, cache)
        return self.norm(hidden)


class BlockDraft(BaseDraft):
    """Draft made of a block drafter and the target's LM head, with one session per generation."""

    reads_path = False

    def __init__(self, head: BlockHead, lm_head: nn.Module):
        self.head, self.lm_head, self.vocabulary = head, Projection(lm_head), None
        if head.tokens is not None:
            self.lm_head = Projection(rows_of(lm_head, head.tokens))
            self.vocabulary = DraftVocabulary(head.tokens, head.config.vocab_size)

    @property
    def hidden_size(self) -> int:
        return self.head.config.hidden_size

    def session(self) -> "BlockSession":
        """Return a new session for one generation."""
        return BlockSession(self)


draft_of.register(BlockHead, lambda head, lm_head, rounded: BlockDraft(head, lm_head))


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
        self.observed = tokens
        steps = torch.arange(features.shape[1], device=tokens.device)
        lengths = self.cache.lengths if self.cache.lengths is not None else torch.zeros_like(count)
        # a packed target's features are in float32 whatever its dtype
        self.head.remember(features.to(self.dtype), lengths[:, None] + steps, self.cache)
        self.cache.keep(steps.expand(len(tokens), -1), count)
        self._begin(tokens.gather(1, count[:, None])[:, 0])

    def _begin(self, roots: Int[Tensor, " B"]) -> None:
        self.roots, self.passes = roots, torch.zeros_like(roots)
        self.ahead: ByDepth | None = None

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> AtDepth:
        """See `c2t.protocols.Draft.expand`; all slots of a depth have the distribution of that depth's mask, and below
        the last mask all tokens are equal."""
        if self.ahead is None:
            self.passes = self.passes + tree.alive[:, 0]
            states = F.pad(self._forward()[:, 1:], (0, 0, 0, 1))
            logits = self.draft.lm_head(states).to(states.device)
            self.ahead = ByDepth(logits, states, self.draft.vocabulary)
        depth = tree.depth.gather(1, slots.clamp(min=0)) + 1
        return AtDepth(self.ahead, depth.clamp(max=self.head.size - 1))

    def _forward(self) -> Float[Tensor, "B K H"]:
        tokens = self.head.block(self.roots)
        positions = self.cache.lengths[:, None] + torch.arange(self.head.size, device=tokens.device)
        seen = F.pad(self.cache.visible(), (0, self.head.size), value=True)
        hidden = self.head(tokens, positions, seen[:, None].expand(-1, self.head.size, -1), self.cache)
        self.cache.drop()
        return hidden

    def rewind(self, back: Int[Tensor, " B"]) -> None:
        """See `DraftSession.rewind`."""
        self.cache.rewind(back)

    def fork(self, back: Int[Tensor, " B"]) -> "BlockSession":
        """See `DraftSession.fork`."""
        fork = copy.copy(self)
        fork.cache = self.cache.fork(self.cache.lengths - back)
        fork._begin(self.observed[0, fork.cache.lengths])
        return fork

    def refuse_nan(self) -> None:
        """See `DraftSession.refuse_nan`."""
        if self.ahead is not None:
            refuse_nan(self.ahead.log_norm.isnan().any())

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        self.cache.select(rows)

    def join(self, other: "BlockSession") -> None:
        """See `DraftSession.join`."""
        self.cache.join(other.cache)
        self._begin(torch.cat([self.roots, other.roots]))


@dataclass(frozen=True)
class _Block:
    """Entry `dflash_config` of config.json; others than these are refused by name."""

    __pydantic_config__ = CLOSED
    mask_token_id: Annotated[int, Field(ge=0)]
    target_layer_ids: Annotated[list[Annotated[int, Field(ge=0, le=1024)]], Field(min_length=1, max_length=MOST)]


Size = Annotated[int, Field(ge=2, le=MOST)]


def is_block(raw: dict[str, Any]) -> bool:
    """Return True for the config of a block drafter."""
    return raw.get("architectures") == [KIND]


def build_head(raw: dict[str, Any], config: LlamaConfig, path: Path) -> BlockHead:
    """Return the drafter of a config.json; InputError for what c2t does not compute."""
    entry: _Block = from_json(_Block, json.dumps(raw.get("dflash_config")), f"{path}: dflash_config")
    size: int = from_json(Size, json.dumps(raw.get("block_size")), f"{path}: block_size")
    if entry.mask_token_id >= config.vocab_size:
        raise InputError(f"{path}: mask_token_id = {entry.mask_token_id} must be one of {config.vocab_size} tokens")
    if raw.get("attention_bias") or raw.get("use_sliding_window") or "sliding_attention" in raw.get("layer_types", ()):
        raise InputError(f"{path}: attention with a bias or a sliding window is not computed in a block drafter")
    return BlockHead(config, size, entry.mask_token_id, tuple(entry.target_layer_ids))


def raw_of(head: BlockHead) -> dict[str, Any]:
    """Return the entries of config.json that only a block drafter has."""
    read = {"mask_token_id": head.mask_token, "target_layer_ids": list(head.layer_ids)}
    return {"model_type": "qwen3", "block_size": head.size, "dflash_config": read, "head_dim": head.config.head_dim}
