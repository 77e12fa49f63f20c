"""The layers of a block drafter: those of Qwen3, which also see keys and values of the target's states."""

from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, apply_rotary_pos_emb

from c2t.caches.padded import KVCache
from c2t.models.drafts.dflash2 import BlockConvolution, DFlash2Form


class LayerMask(NamedTuple):
    """Attention mask of a layer. window: a slot sees so many tokens up to itself, None for all; causal: it sees no
    later slots of its block."""

    window: int | None
    causal: bool

    def narrowed(
        self, mask: Bool[Tensor, "B n t"], position: Int[Tensor, "B n"], positions: Int[Tensor, "B t"]
    ) -> Bool[Tensor, "B n t"]:
        """Return what is left of a mask, by the positions of those that see and of those that are seen."""
        ahead = positions[:, None] - position[..., None]
        if self.causal:
            mask = mask & (ahead <= 0)
        return mask if self.window is None else mask & (ahead > -self.window)


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
    """A layer of the drafter, with DFlash2's convolutions if it has any."""

    def __init__(self, config: LlamaConfig, dflash2: DFlash2Form | None = None):
        super().__init__()
        self.attention_conv, self.mlp_conv = (
            BlockConvolution(config.hidden_size, dflash2) if dflash2 else None for _ in range(2)
        )
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

        def attend(x: Float[Tensor, "B n H"]) -> Float[Tensor, "B n H"]:
            keys, values = cache.update(*self.self_attn.keys_values(x, rotation), number)
            return self.self_attn(x, rotation, keys, values, mask)

        for norm, convolution, part in (
            (self.input_layernorm, self.attention_conv, attend),
            (self.post_attention_layernorm, self.mlp_conv, self.mlp),
        ):
            x = norm(hidden)
            hidden = hidden + (part(x) if convolution is None else convolution(x, part))
        return hidden
