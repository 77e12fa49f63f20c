"""An MTP-style draft layer (C2T, appendix F; DeepSeek-V3): normalise embedding and hidden state, join, one block.

    u = eh_proj(concat(norm(embed(x)), norm(f)));  y = norm(block(u));  logits = target.lm_head(y)

The final norm makes y a feature like the target's own (post-norm), so it can be fed back [choice: the paper names only
the first three steps].
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

from c2t.caches.padded import KVCache
from c2t.models.drafts.eagle import Head


class MTPHead(Head):
    """MTP draft layer; parameter names follow DeepSeek's: enorm, hnorm, eh_proj, block, norm."""

    def __init__(self, config: LlamaConfig):
        super().__init__(config)
        self.enorm, self.hnorm, self.norm = (
            LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps) for _ in range(3)
        )
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.block = LlamaDecoderLayer(config, 0)

    @property
    def summary(self) -> str:
        """See `Head.summary`."""
        return "MTP layer, reads the target's last state"

    def forward(
        self,
        features: Float[Tensor, "B n H"],
        tokens: Int[Tensor, "B n"],
        positions: Int[Tensor, "B n"] | None = None,
        mask: Bool[Tensor, "B 1 n t"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "B n H"]:
        """See `EagleHead.forward`."""
        embedded = self.enorm(self.embed_tokens(tokens).to(features.dtype))
        joined = self.eh_proj(torch.cat([embedded, self.hnorm(features)], -1))
        rotation = self.rotation(joined, positions)
        hidden = self.block(joined, attention_mask=mask, position_embeddings=rotation, past_key_values=cache)
        return self.norm(hidden)
