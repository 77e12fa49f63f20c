"""A learned correction of a draft by the path: a small network reads the path's end, and its product with a vector of
each candidate is added to the score.

    q = U silu(W_h h + W_x e(x) + W_w e(w) + d_k) + u;   score(y | w x) = a_k log p(y) + q . v(y)

w, x: the last two tokens of the path, e: their rows of the target's embedding; h: the draft's state at depth k, from
which the marginal p is made. All tokens that are not scored together have the score b_k log p(others) + c_k. It is
Hydra's sequential head cut down to the candidates, so that it costs no LM head (Hydra, section 3.1).
"""

from pathlib import Path as File

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from c2t.errors import InputError, one_line
from c2t.models.drafts.session import BaseDraft
from c2t.models.loading.registry import ENDINGS, PATH, Ending
from c2t.models.target.offloaded import check_in_memory
from c2t.models.target.target import Target
from c2t.models.wrappers.reweighted import Path, ReweightedDraft
from c2t.storage.atomic import new_file

FIT = "+fit"  # end of a draft's name
FILE = "fit.safetensors"  # in the folder of a draft's weights
LEAST = 1e-6  # smallest probability that a difference from 1 gives in float32


def log_rest(log_probs: Float[Tensor, "*B C"]) -> Float[Tensor, "*B 1"]:
    """Return the log-probability of all other tokens together, at least LEAST."""
    return torch.log1p(-log_probs.exp().sum(-1, keepdim=True).clamp(max=1 - LEAST))


class PathCorrection(nn.Module):
    """Correction for a draft with a vocabulary of `tokens` (rising ids) at `depths` depths. embed_tokens: the target's,
    which is not learned and not stored."""

    tokens: Tensor

    def __init__(self, embed_tokens: nn.Embedding, tokens: Int[Tensor, " v"], depths: int, width: int, rank: int):
        super().__init__()
        size = embed_tokens.weight.shape[1]
        self.embed = [embed_tokens]  # in a list, so that it is no part of this module
        self.state, self.token, self.before = (nn.Linear(size, width, bias=False) for _ in range(3))
        self.depth = nn.Parameter(torch.zeros(depths, width))
        self.out = nn.Linear(width, rank)
        self.vectors = nn.Parameter(torch.zeros(len(tokens), rank))
        self.marginal, self.others = nn.Parameter(torch.ones(depths)), nn.Parameter(torch.ones(depths))
        self.bias = nn.Parameter(torch.zeros(depths))
        self.register_buffer("tokens", tokens, persistent=False)

    def query(self, path: Path) -> Float[Tensor, "*B R"]:
        """Return the vector of a path's end, whose product with a token's vector is that token's correction."""
        (embed,), depth = self.embed, self.clamped(path.depth)
        wide = self.state(path.hidden.to(self.depth)) + self.depth[depth]
        for layer, token in ((self.token, path.token), (self.before, path.before)):
            wide = wide + layer(embed(token).to(self.depth))
        return self.out(F.silu(wide))

    def clamped(self, depth: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
        """Return the depth; below the last one of the draft, that one."""
        return depth.clamp(max=len(self.depth) - 1)

    def forward(
        self, path: Path, tokens: Int[Tensor, "*B C"], log_probs: Float[Tensor, "*B C"]
    ) -> tuple[Float[Tensor, "*B C"], Float[Tensor, "*B 1"]]:
        """See `c2t.models.wrappers.reweighted.Correction`."""
        depth = self.clamped(path.depth)
        index = torch.searchsorted(self.tokens, tokens).clamp(max=len(self.tokens) - 1)
        has_vector = self.tokens[index] == tokens  # not so those outside of the draft's vocabulary, which get 0
        vectors = self.vectors[index] * has_vector[..., None]
        fit = (vectors @ self.query(path)[..., None])[..., 0]
        factor = (self.others[depth] - 1)[..., None] * log_rest(log_probs) + self.bias[depth][..., None]
        return self.marginal[depth][..., None] * log_probs + fit, factor

    def save(self, folder: File) -> None:
        """Write the weights in bf16 to the folder of a draft's."""
        state = {name: weight.detach().bfloat16().contiguous() for name, weight in self.state_dict().items()}
        with new_file(folder / FILE) as new:
            save_file(state, new)

    @classmethod
    def load(cls, folder: File, embed_tokens: nn.Embedding, tokens: Int[Tensor, " v"]) -> "PathCorrection":
        """Read a draft's fit; InputError if there is none, or one for another draft."""
        path = folder / FILE
        try:
            state = {name: weight.float() for name, weight in load_file(path).items()}
            (depths, width), (_, rank) = state["depth"].shape, state["vectors"].shape
            if not depths:
                raise ValueError("it has no depths")
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise InputError(f"{path}: no fit can be read ({one_line(error)}); leave +fit out") from error
        fit = cls(embed_tokens, tokens, depths, width, rank)
        wanted = {name: weight.shape for name, weight in fit.state_dict().items()}
        if {name: weight.shape for name, weight in state.items()} != wanted:
            raise InputError(f"{path}: not the fit of a draft with {len(tokens)} tokens on this target; train it again")
        if not all(weight.isfinite().all() for weight in state.values()):
            raise InputError(f"{path} holds weights that are not finite; copy the file again, or leave +fit out")
        fit.load_state_dict(state, assign=True)
        return fit.requires_grad_(False).to(embed_tokens.weight.device).eval()


def _with_fit(draft: BaseDraft, number: None, folder: File, target: Target) -> ReweightedDraft:
    embed_tokens = target.embed_tokens
    check_in_memory(embed_tokens, "embedding")
    if draft.hidden_size != embed_tokens.weight.shape[1]:
        raise InputError(f"{folder}: {FIT} reads states as wide as the target's; leave it out")
    if draft.vocabulary is not None:
        tokens = draft.vocabulary.tokens
    else:
        tokens = torch.arange(target.config.vocab_size, device=embed_tokens.weight.device)
    return ReweightedDraft(draft, PathCorrection.load(folder, embed_tokens, tokens))


ENDINGS[FIT] = Ending(_with_fit, PATH, FILE, summary="Condition a parallel draft on the path, by a small network.")
