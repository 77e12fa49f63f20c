"""An LM head in 4 bits, whose largest logits are computed again from the exact weights (rescored.c).

Rounding to 4 bits seldom takes the most probable token out of the first few, but often from the first rank. So the 4
bits, a third of bf16's memory traffic, select the few candidates, and exact logits rank these.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from c2t.kernels import decoder_layers, oov_tokens
from c2t.kernels.decoder_layers import Kind, PackedMatrix
from c2t.kernels.native import kernels
from c2t.kernels.pointer import pointer, weights

TOP_RESCORED = 8  # logits of a row; with 4 the acceptance length of hierarchical chains is 0.2 % lower, with 16 equal


def serves(weight: Float[Tensor, "V H"]) -> bool:
    """Return True if an LM head with these weights can be stored in 4 bits, and C can read its exact rows."""
    return oov_tokens.serves(weight) and decoder_layers.rounds(weight.shape[1])


class RescoredMatrix(PackedMatrix):
    """LM head in 4 bits, whose TOP_RESCORED largest logits of each row are computed from the weights themselves, which
    are not copied. `serves` says for which weights."""

    def __init__(self, weight: Float[Tensor, "V H"], bias: Float[Tensor, " V"] | None = None):
        super().__init__(weight, bias, Kind.INT4)
        self._weight = weight.detach()

    def __call__(self, x: Float[Tensor, "*R H"]) -> Float[Tensor, "*R V"]:
        """Return the logits in float32."""
        x = x.float().contiguous()
        logits = super().__call__(x)
        count, hidden, real = min(TOP_RESCORED, self.outputs), x.shape[-1], torch.float32
        given, bias = pointer(x, real), None if self._bias is None else pointer(self._bias, real)
        kernels().rescore(
            *(pointer(logits, real, rows=True), x.numel() // hidden, self.struct.outputs, self.outputs, count),
            *(given, hidden, *weights(self._weight), bias),
            torch.get_num_threads(),
        )
        return logits
