"""TreeFlash's correction of a block drafter's states by the token before, in place of one more forward.

    u, g = W concat(norm(embed(p)), h_k) + b;  logits_k = lm_head(norm(x_k + D (silu(g) u))),  h_k = norm(x_k)

x_k: the backbone's state of slot k before its last norm; p: the token before the one that slot k speaks of. Upstream
corrects for the 16 most probable tokens of the slot before only; here it is done for the tokens of a tree, whichever.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaRMSNorm


class StateCorrection(nn.Module):
    """Correction of a slot's state by the token before, under TreeFlash's names."""

    def __init__(self, hidden: int, intermediate: int):
        super().__init__()
        self.norm = LlamaRMSNorm(hidden, eps=1e-6)
        self.ug = nn.Linear(2 * hidden, 2 * intermediate)
        self.d = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, embedded: Float[Tensor, "*S H"], hidden: Float[Tensor, "*S H"]) -> Float[Tensor, "*S H"]:
        """Return it from the embeddings of the tokens before and the slots' states after the last norm."""
        up, gate = self.ug(torch.cat([self.norm(embedded.to(hidden)), hidden], -1)).chunk(2, -1)
        return self.d(F.silu(gate) * up)
