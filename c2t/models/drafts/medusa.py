"""A Medusa-style parallel draft: one forward over the committed text gives the distributions of all depths.

    h_0 = EAGLE layer at the root;  h_k = h_0 + SiLU(W_k h_0 + b_k);  logits of depth k = target.lm_head(h_k)

Medusa's heads read the target's feature, which the root does not have before the target runs it. Here they read an
EAGLE layer's prediction of that feature, from the root's token and the earlier features. A depth's distribution is the
same on every path (a product of marginals), so expanding slots costs no forward. Below the last head it is uniform.
"""

from functools import cached_property

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig

from c2t.kernels.rows import rank
from c2t.models.drafts.eagle import EagleHead
from c2t.models.drafts.head_draft import EagleDraft, EagleSession
from c2t.models.drafts.session import BaseDraft
from c2t.protocols import DraftVocabulary, NextTokenDistributions
from c2t.tree import Tree


class MedusaHead(EagleHead):
    """EAGLE layer with `num_heads` residual blocks on top, each for one more token (Medusa's ResBlock).
    `forward` runs the layer only; blocks are initialised to the identity.

    layer_of: folder, next to the head's, of the EAGLE-1/2 head that has the layer; None: this head's folder.
    """

    def __init__(self, config: LlamaConfig, num_heads: int, layer_of: str | None = None):
        super().__init__(config)
        self.layer_of = layer_of
        self.heads = nn.ModuleList(nn.Linear(config.hidden_size, config.hidden_size) for _ in range(num_heads))
        for block in self.heads:
            nn.init.zeros_(block.weight)
            nn.init.zeros_(block.bias)

    @property
    def summary(self) -> str:
        """See `Head.summary`."""
        return f"Medusa-style, {len(self.heads)} heads on an EAGLE layer, reads the target's last state"

    def at(self, hidden: Float[Tensor, "*B H"], depth: int) -> Float[Tensor, "*B H"]:
        """Return the state of a depth from the layer's outputs, which are the state of depth 0."""
        return hidden + F.silu(self.heads[depth - 1](hidden)) if depth else hidden

    def states(self, hidden: Float[Tensor, "*B H"]) -> Float[Tensor, "*B D H"]:
        """Return the states of all depths, D = 1 + the number of heads, from the layer's outputs."""
        return torch.stack([self.at(hidden, depth) for depth in range(len(self.heads) + 1)], -2)


class MedusaDraft(BaseDraft):
    """Draft made of a Medusa-style head and the target's LM head, with one session per generation. rounded: see
    `EagleDraft`."""

    reads_path = False

    def __init__(self, head: MedusaHead, lm_head: nn.Module, rounded: bool = False):
        self.head, self.layer = head, EagleDraft(head, lm_head, rounded)
        self.vocabulary = self.layer.vocabulary

    @property
    def hidden_size(self) -> int:
        return self.head.config.hidden_size

    def session(self) -> "MedusaSession":
        """Return a new session for one generation."""
        return MedusaSession(self)


class MedusaSession(EagleSession):
    """Draft session that expands slots without a forward."""

    def __init__(self, draft: MedusaDraft):
        super().__init__(draft.layer)
        self.head = draft.head

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`; only the root has a forward."""
        if not self.expanded:
            self.expanded = True
            self.passes = self.passes + tree.alive[:, 0]
            # a packed layer's outputs are in float32 whatever the head's dtype
            states = self.head.states(self.hidden[:, 0].to(self.dtype)).to(self.hidden)
            # Below the last head: a zero state, for which the LM head's logits are zeros.
            states = F.pad(states, (0, 0, 0, 1))
            text = torch.arange(len(states), device=states.device).repeat_interleave(states.shape[1])
            logits, vocabulary = self._drafted(states.flatten(0, 1), text)
            self.by_depth = ByDepth(logits.unflatten(0, states.shape[:2]), states, vocabulary)
            self.log_norms.append(self.by_depth.log_norm)
        depth = tree.depth.gather(1, slots.clamp(min=0)) + 1
        return AtDepth(self.by_depth, depth.clamp(0, len(self.head.heads) + 1))


class ByDepth(NextTokenDistributions):
    """Distributions of all depths of a round, computed once; F is the number of depths."""

    def __init__(
        self, logits: Float[Tensor, "B D v"], hidden: Float[Tensor, "B D H"], vocabulary: DraftVocabulary | None
    ):
        super().__init__(logits, hidden, vocabulary)
        self._topk: dict[tuple[int, int | None], tuple[Tensor, Tensor, Tensor]] = {}

    def topk_entropy(self, k: int, m: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """See `NextTokenDistributions.topk_entropy`."""
        if (k, m) not in self._topk:
            self._topk[k, m] = super().topk_entropy(k, m)
        return self._topk[k, m]


class AtDepth(NextTokenDistributions):
    """Distributions after slots. Each slot shares its depth's distribution until `drafted` makes copies of the
    logits."""

    def __init__(self, by_depth: ByDepth, depth: Int[Tensor, "B F"]):
        self.by_depth, self.depth, self.vocabulary = by_depth, depth, by_depth.vocabulary
        self.hidden = self._at(by_depth.hidden)

    @cached_property
    def _drafted(self) -> Float[Tensor, "B F v"]:
        return self._at(self.by_depth._drafted)

    @property
    def _as_drafted(self) -> bool:
        """True while no caller has read `drafted`, whose logits may be changed in place."""
        return "drafted" not in vars(self)

    @cached_property
    def _norm(self) -> Float[Tensor, "B F"]:
        return self._at(self.by_depth.log_norm)[..., 0] if self._as_drafted else rank(self.drafted, 0, 0).log_norm

    def topk_entropy(self, k: int, m: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """See `NextTokenDistributions.topk_entropy`."""
        if not self._as_drafted:
            return super().topk_entropy(k, m)
        tokens, log_probs, entropy = self.by_depth.topk_entropy(k, m)
        return self._at(tokens), self._at(log_probs), self._at(entropy[..., None])[..., 0]

    def _at(self, values: Shaped[Tensor, "B D n"]) -> Shaped[Tensor, "B F n"]:
        return values.gather(1, self.depth[..., None].expand(-1, -1, values.shape[2]))
