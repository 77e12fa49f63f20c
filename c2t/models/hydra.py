"""Hydra-style sequential heads: a small autoregressive corrector behind the states of a Medusa-style head.

    u_k = silu(W_s s_{k-1} + W_h h_k + W_x e(x) + d_k);   s_k = h_k + W_o u_k;   logits of depth k = target.lm_head(s_k)

x: the path's last token, e: its row of the target's embedding, h_k: the Medusa-style head's state of depth k, which
is the same on every path, s_{k-1}: the state at the parent; s_0 = h_0. So each slot's distribution depends on the whole
path (Hydra, section 3.1), at the cost of the LM head in every level.
"""

from dataclasses import dataclass
from pathlib import Path as File

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from c2t.errors import InputError, one_line
from c2t.models.draft import DraftSession, WrappedSession, computed, refuse_nan
from c2t.models.medusa import MedusaDraft
from c2t.protocols import NextTokenDistributions
from c2t.storage.atomic import new_file
from c2t.tree import Tree

FILE = "hydra.safetensors"  # beside the weights of a Medusa-style head


class HydraHead(nn.Module):
    """Corrector for a Medusa-style head with `depths` depths. embed_tokens: the target's, which is not learned and not
    stored. It starts as no correction."""

    def __init__(self, embed_tokens: nn.Embedding, depths: int, width: int):
        super().__init__()
        size = embed_tokens.weight.shape[1]
        self.embed = [embed_tokens]  # in a list, so that it is no part of this module
        self.parent, self.state, self.token = (nn.Linear(size, width, bias=False) for _ in range(3))
        self.depth = nn.Parameter(torch.zeros(depths, width))
        self.out = nn.Linear(width, size, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(
        self,
        parent: Float[Tensor, "*B H"],
        state: Float[Tensor, "*B H"],
        token: Int[Tensor, "*B"],
        depth: Int[Tensor, "*B"],
    ) -> Float[Tensor, "*B H"]:
        """Return the states behind these tokens, from those at their parents and the Medusa-style head's. depth: of
        the tokens that follow; below the last one that the head knows, that one."""
        (embed,) = self.embed
        depth = depth.clamp(max=len(self.depth) - 1)
        read = self.parent(parent) + self.state(state) + self.token(embed(token).to(state)) + self.depth[depth]
        return state + self.out(F.silu(read))

    def save(self, folder: File) -> None:
        """Write the weights in bf16 beside a head's."""
        state = {name: weight.detach().bfloat16().contiguous() for name, weight in self.state_dict().items()}
        with new_file(folder / FILE) as new:
            save_file(state, new)

    @classmethod
    def load(cls, folder: File, embed_tokens: nn.Embedding) -> "HydraHead":
        """Read a head's corrector; InputError if there is none, or one for another target."""
        path = folder / FILE
        try:
            state = {name: weight.float() for name, weight in load_file(path).items()}
            depths, width = state["depth"].shape
            if not depths:
                raise ValueError("it has no depths")
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise InputError(
                f"{path}: no sequential heads can be read ({one_line(error)}); leave +hydra out"
            ) from error
        with torch.device("meta"):
            head = cls(embed_tokens, depths, width)
        wanted = {name: weight.shape for name, weight in head.state_dict().items()}
        if {name: weight.shape for name, weight in state.items()} != wanted:
            raise InputError(f"{path}: not the sequential heads of a draft on this target; train them again")
        if not all(weight.isfinite().all() for weight in state.values()):
            raise InputError(f"{path} holds weights that are not finite; copy the file again, or leave +hydra out")
        like = embed_tokens.weight
        head.load_state_dict(state, assign=True)
        return head.requires_grad_(False).to(like.device, like.dtype).eval()


@dataclass(frozen=True)
class HydraDraft:
    """Medusa-style draft whose states are corrected along the path, behind every slot but the root, whose token the
    draft itself has read."""

    draft: MedusaDraft
    hydra: HydraHead

    @property
    def hidden_size(self) -> int:
        return self.draft.hidden_size

    def session(self) -> "HydraSession":
        """Return a new session for one generation."""
        return HydraSession(self.draft.session(), self.hydra)


class HydraSession(WrappedSession):
    """Session of the Medusa-style draft that knows of the round's expanded slots (-1: none) their states. passes: the
    correctors of a level count as one forward."""

    def __init__(self, draft: DraftSession, hydra: HydraHead):
        super().__init__(draft)
        self.hydra = hydra
        self._begin()

    def _begin(self) -> None:
        self.entries: Int[Tensor, "B E"] | None = None
        self.states: Float[Tensor, "B E H"] | None = None
        self.corrected: Int[Tensor, " B"] | int = 0
        self.found: list[NextTokenDistributions] = []

    @property
    def passes(self) -> Int[Tensor, " B"]:
        return self.draft.passes + self.corrected

    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """See `DraftSession.observe`."""
        self.draft.observe(tokens, features, count)
        self._begin()

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`."""
        rows = self.draft.expand(tree, slots)
        if self.entries is None:
            self.entries, self.states = slots, rows.hidden
            return rows
        used, slots = slots >= 0, slots.clamp(min=0)
        self.corrected = self.corrected + (used & tree.alive.gather(1, slots)).any(1)
        entry = (tree.parent.gather(1, slots)[..., None] == self.entries[:, None]).int().argmax(-1)
        parent = self.states.gather(1, entry[..., None].expand(-1, -1, self.states.shape[2]))
        real, depth = computed(used), tree.depth.gather(1, slots) + 1
        token = tree.token.gather(1, slots)
        # a packed layer's states are in float32 whatever the heads' dtype
        read = (part.to(self.hydra.depth.dtype) for part in (parent, rows.hidden))
        states = self.hydra(*(real.take(part)[None] for part in (*read, token, depth))).to(rows.hidden)
        logits = self.draft._logits(states)[0]
        states = real.back(states[0])
        self.entries = torch.cat([self.entries, torch.where(used, slots, -1)], 1)
        self.states = torch.cat([self.states, states], 1)
        found = NextTokenDistributions(logits, states, self.draft.vocabulary, real)
        self.found.append(found)
        return found

    def fork(self, back: Int[Tensor, " B"]) -> "HydraSession":
        """See `DraftSession.fork`."""
        fork: HydraSession = super().fork(back)
        fork._begin()
        return fork

    def refuse_nan(self) -> None:
        """See `DraftSession.refuse_nan`."""
        self.draft.refuse_nan()
        if self.found:
            refuse_nan(torch.cat([found.log_norm for found in self.found], 1).isnan().any())

    def join(self, other: "HydraSession") -> None:
        """See `DraftSession.join`."""
        super().join(other)
        self._begin()
