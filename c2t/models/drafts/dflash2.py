"""DFlash2's additions to a block drafter: convolutions around the parts of a layer, and a selector among candidates.

    y = conv_1(part(conv_0(x)));  conv_s(z)_t = sum_j (base_{s,j} + delta_{s,j}(x_t)) z_{t-j}
    score(c | p) = u_c + sum_i pred[p]_i (W h)_i succ[c]_i,  u = cap tanh(scale logits / cap)

z before the root's slot is 0; delta has one number for each group of channels. The distribution after token p is the
softmax over the scores of the top_k candidates of u; all other tokens have probability 0.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F


class DFlash2Form(NamedTuple):
    """Sizes and scales of DFlash2's parts. taps, group: positions of a convolution, and channels with one delta. rank,
    top_k: of the selector. softcap: bound of u, None for none."""

    taps: int
    group: int
    rank: int
    top_k: int
    output_multiplier: float = 1.0
    softcap: float | None = None
    embedding_scale: float = 1.0

    def unary(self, logits: Float[Tensor, "*S v"]) -> Float[Tensor, "*S v"]:
        """Return u, in float32 at least."""
        scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) * self.output_multiplier
        return scaled if self.softcap is None else self.softcap * (scaled / self.softcap).tanh()


class BlockConvolution(nn.Module):
    """Two convolutions over the slots of a block, before and after a part of a layer, under DFlash2's names."""

    def __init__(self, hidden: int, form: DFlash2Form):
        super().__init__()
        self.taps, self.group = form.taps, form.group
        self.base_kernel = nn.Parameter(torch.zeros(2, form.taps, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * form.taps * hidden // form.group, bias=False)

    def forward(
        self, x: Float[Tensor, "B n H"], part: Callable[[Float[Tensor, "B n H"]], Float[Tensor, "B n H"]]
    ) -> Float[Tensor, "B n H"]:
        """Return the convolved outputs of a part of a layer for convolved inputs."""
        delta = self.kernel_projection(x).unflatten(-1, (2, self.taps, -1)).repeat_interleave(self.group, -1)
        first, second = (self.base_kernel + delta).unbind(2)
        return self._convolved(part(self._convolved(x, first)), second)

    def _convolved(self, x: Float[Tensor, "B n H"], kernel: Float[Tensor, "B n j H"]) -> Float[Tensor, "B n H"]:
        shifted = [F.pad(x, (0, 0, tap, 0))[:, : x.shape[1]] for tap in range(self.taps)]
        return (kernel * torch.stack(shifted, 2)).sum(2)


class CandidateSelector(nn.Module):
    """Scores of candidates by the token before, under DFlash2's names."""

    def __init__(self, vocab: int, hidden: int, rank: int):
        super().__init__()
        self.predecessor_codebook, self.successor_codebook = (nn.Parameter(torch.zeros(vocab, rank)) for _ in range(2))
        self.hidden_projection = nn.Linear(hidden, rank, bias=False)

    def forward(
        self, previous: Int[Tensor, "*S"], hidden: Float[Tensor, "*S H"], candidates: Int[Tensor, "*S c"]
    ) -> Float[Tensor, "*S c"]:
        """Return what candidates gain after these tokens, at slots with these states."""
        query = self.predecessor_codebook[previous] * self.hidden_projection(hidden)
        return (self.successor_codebook[candidates] @ query[..., None])[..., 0]
