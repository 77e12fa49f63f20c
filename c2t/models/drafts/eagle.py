"""The EAGLE-1/2 head: one decoder layer that predicts the target's next feature (EAGLE; EAGLE-2 uses the same weights).

    u = fc(concat(embed(x), f));  a = u + attention(u);  y = a + mlp(norm(a));  logits = target.lm_head(y)

y is the predicted next feature. Slot i of the prefix pairs feature f_i with token i + 1 and stands at position i.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from c2t.caches.padded import KVCache
from c2t.models.target.positions import within


class Head(nn.Module):
    """Parts that all draft heads share: the target's embedding, which is given after construction and stored only on
    request, and rotary positions.

    num_layers: number of attention layers, which the cache needs. tokens: ids of the target's tokens that the head can
    name, in rising order; None: all of them. They cost as much as their number in every level of a tree (FR-Spec).
    shares_lm_head: its LM head is made of the target's rows; False: it has one of its own, `lm_head`.
    """

    num_layers, shares_lm_head = 1, True
    tokens: Int[Tensor, " v"] | None = None

    def __init__(self, config: LlamaConfig | Qwen3Config):
        super().__init__()
        self.config = config
        config._attn_implementation = "sdpa"
        self.embed_tokens: nn.Embedding | None = None
        self.rotary = LlamaRotaryEmbedding(config)

    def _apply(self, *args, **kwargs):
        """Cast or move the head, but keep the rotary frequencies in float32: rounded to bf16 they turn far positions by
        radians."""
        super()._apply(*args, **kwargs)
        device = next(self.parameters()).device
        self.rotary = LlamaRotaryEmbedding(self.config).to(device)
        return self

    @property
    def summary(self) -> str:
        """Its kind, and the states that it reads, in one line."""
        return "EAGLE-1/2, reads the target's last state"

    def restrict(self, tokens: Int[Tensor, " v"]) -> None:
        """Draft only these tokens, given by rising ids."""
        self.tokens = tokens

    def taps(self, target_layers: int) -> tuple[int, ...]:
        """Return the indices of the target's layers whose inputs are the head's features; the number of layers stands
        for the last one's output before the final norm, an empty tuple for that after it."""
        return ()

    def read(self, features: Float[Tensor, "*B D"]) -> Float[Tensor, "*B H"]:
        """Return what `forward` takes in the place of its own outputs, from the target's features."""
        return features

    def rotation(
        self, hidden: Float[Tensor, "B n H"], positions: Int[Tensor, "B n"] | None
    ) -> tuple[Float[Tensor, "_ n D"], Float[Tensor, "_ n D"]]:
        """Return cosines and sines of the positions, which are 0..n-1 by default."""
        if positions is None:
            positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        return self.rotary(hidden, within(positions, self.config))

    def logits(self, hidden: Float[Tensor, "B n H"], lm_head: Callable[[Tensor], Tensor]) -> Float[Tensor, "B n V"]:
        """Return next-token logits from the head's outputs and the target's LM head."""
        return lm_head(hidden)

    def readable(self, hidden: Float[Tensor, "*B H"]) -> Float[Tensor, "*B H"]:
        """Return what the LM head reads of the head's outputs."""
        return hidden


class EagleHead(Head):
    """EAGLE-1/2 head with upstream's modules and parameter names. bias: fc has one. qkv_bias: q, k and v have one."""

    def __init__(self, config: LlamaConfig, bias: bool = True, qkv_bias: bool = False):
        super().__init__(config)
        self.bias, self.qkv_bias, self.num_layers = bias, qkv_bias, config.num_hidden_layers
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        self.layers = nn.ModuleList(_layer(config, index, qkv_bias) for index in range(config.num_hidden_layers))

    def forward(
        self,
        features: Float[Tensor, "B n H"],
        tokens: Int[Tensor, "B n"],
        positions: Int[Tensor, "B n"] | None = None,
        mask: Bool[Tensor, "B 1 n t"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "B n H"]:
        """Return predicted next features; tokens[:, j] is the token *after* the position whose feature is features[:,
        j].

        Without a mask attention is causal over the n positions; positions default to 0..n-1.
        """
        hidden = self.fc(torch.cat([self.embed_tokens(tokens).to(features.dtype), features], -1))
        rotation = self.rotation(hidden, positions)
        for layer in self.layers:
            hidden = layer(hidden, attention_mask=mask, position_embeddings=rotation, past_key_values=cache)
        return hidden


def in_words(windows: Sequence[int]) -> str:
    """Return what the windows of a head's layers are, 0 for none."""
    sizes = sorted({window for window in windows if window})
    if not sizes:
        return "no window"
    some = "" if all(windows) else f" in {sum(map(bool, windows))} of {len(windows)} layers"
    return f"window {', '.join(map(str, sizes))}{some}"


def _layer(config: LlamaConfig, index: int, qkv_bias: bool) -> LlamaDecoderLayer:
    """Return a Llama layer, without input norm if it is the first one, and without a bias on o_proj in any case."""
    layer = LlamaDecoderLayer(config, index)
    if index == 0:
        layer.input_layernorm = nn.Identity()
    if qkv_bias:
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(layer.self_attn, name)
            setattr(layer.self_attn, name, nn.Linear(old.in_features, old.out_features, bias=True))
    return layer
