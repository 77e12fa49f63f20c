"""The EAGLE-3 head: it reads three of the target's hidden states and has a reduced vocabulary of its own.

    g = fc(concat(h_low, h_mid, h_high));  a = g + attention(concat(norm(embed(x)), norm(g)));  y = a + mlp(norm(a))

Where the target's states are not known yet, y takes the place of g; logits = lm_head(norm(y)) over the draft's
vocabulary.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm

from c2t.errors import InputError
from c2t.kv_cache import KVCache
from c2t.models.eagle import Head


class Eagle3Head(Head):
    """EAGLE-3 head with upstream's modules and parameter names. target_width: size of one hidden state of the target.

    d2t: target token = draft token + d2t[draft token]; both maps are absent where the vocabularies are equal.
    target_rows: the LM head is made of the target's rows, which are not trained and not stored (`take_rows`); upstream
    has no such heads.
    """

    d2t: Tensor
    t2d: Tensor

    def __init__(
        self,
        config: LlamaConfig,
        draft_vocab_size: int,
        target_width: int | None = None,
        target_rows: bool = False,
    ):
        super().__init__(config)
        self.target_rows = target_rows
        hidden = config.hidden_size
        self.fc = nn.Linear(3 * (target_width or hidden), hidden, bias=False)
        self.midlayer = MidLayer(config)
        self.norm = LlamaRMSNorm(hidden, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, draft_vocab_size, bias=False)
        if draft_vocab_size != config.vocab_size:
            self.register_buffer("d2t", torch.zeros(draft_vocab_size, dtype=torch.long))
            self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))

    @property
    def tokens(self) -> Int[Tensor, " v"] | None:
        """See `Head`."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t if hasattr(self, "d2t") else None

    def take_rows(self, lm_head: nn.Module) -> None:
        """Set the rows of the LM head to the target's for the same tokens; they are not trained."""
        rows: Tensor = lm_head.weight
        self.lm_head.weight = nn.Parameter(
            rows.detach()[self.tokens.to(rows.device)] if self.tokens is not None else rows.detach(),
            requires_grad=False,
        )

    @staticmethod
    def taps(target_layers: int) -> tuple[int, ...]:
        """Return the indices of a low, a middle and a high layer; InputError for a target too shallow to have three."""
        taps = (2, target_layers // 2, target_layers - 3)
        if not taps[0] < taps[1] < taps[2]:
            raise InputError(f"EAGLE-3 reads three layers; a target of {target_layers} has too few (7 are enough)")
        return taps

    def forward(
        self,
        features: Float[Tensor, "B n D"],
        tokens: Int[Tensor, "B n"],
        positions: Int[Tensor, "B n"] | None = None,
        mask: Bool[Tensor, "B 1 n t"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "B n H"]:
        """See `EagleHead.forward`; features are the three concatenated states, or earlier outputs of the head."""
        state = features if features.shape[-1] == self.config.hidden_size else self.fc(features)
        embedded = self.embed_tokens(tokens).to(state.dtype)
        return self.midlayer(embedded, state, self.rotation(state, positions), mask, cache)

    def logits(self, hidden: Float[Tensor, "B n H"], lm_head: Callable[[Tensor], Tensor]) -> Float[Tensor, "B n V"]:
        """Return logits over the target's vocabulary, -inf for tokens that the draft does not have; `lm_head` is not
        used."""
        logits, tokens = self.drafted(hidden, lm_head), self.tokens
        if tokens is None:
            return logits
        full = logits.new_full((*logits.shape[:-1], self.config.vocab_size), float("-inf"))
        full[..., tokens] = logits
        return full

    def drafted(self, hidden: Float[Tensor, "B n H"], lm_head: Callable[[Tensor], Tensor]) -> Float[Tensor, "B n v"]:
        """See `Head.drafted`; `lm_head` is not used."""
        return self.lm_head(self.norm(hidden))


class MidLayer(nn.Module):
    """Llama layer whose attention reads the token and the state side by side, at twice the width."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        hidden = config.hidden_size
        self.self_attn = LlamaAttention(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(self.self_attn, name)
            setattr(self.self_attn, name, nn.Linear(2 * hidden, narrow.out_features, bias=False))
        self.mlp = LlamaMLP(config)
        self.hidden_norm, self.input_layernorm, self.post_attention_layernorm = (
            LlamaRMSNorm(hidden, eps=config.rms_norm_eps) for _ in range(3)
        )

    def forward(self, embedded: Tensor, state: Tensor, rotation, mask: Tensor | None, cache: KVCache | None) -> Tensor:
        """Return the next state (B, n, H) from the embedded token and the state before it."""
        read = torch.cat([self.input_layernorm(embedded), self.hidden_norm(state)], -1)
        attended, _ = self.self_attn(read, position_embeddings=rotation, attention_mask=mask, past_key_values=cache)
        hidden = state + attended
        return hidden + self.mlp(self.post_attention_layernorm(hidden))
