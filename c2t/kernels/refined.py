"""An LM head in 4 bits, whose largest logits are computed from the weights as they are (refined.c).

Rounding to 4 bits seldom takes the most probable token out of the first few, but often from its first place. So 4 bits
find the few, which costs a third of bf16's reading, and these decide among themselves.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from c2t.kernels import llama_layer, own_tokens
from c2t.kernels.llama_layer import Kind, PackedMatrix
from c2t.kernels.native import kernels
from c2t.kernels.pointer import pointer, weights

ANEW = 8  # of a row; with 4 the chains of a rehearsal are accepted 0.2 % less far, with 16 as far


def serves(weight: Float[Tensor, "V H"]) -> bool:
    """Return True if an LM head with these weights can be in 4 bits, and its rows be read as they are."""
    return own_tokens.serves(weight) and llama_layer.rounds(weight.shape[1])


class RefinedMatrix(PackedMatrix):
    """LM head in 4 bits, whose ANEW largest logits of each row are computed anew; `serves` says of which weights.

    What is computed anew reads the weights themselves, of which only the 4 bits are a copy.
    """

    def __init__(self, weight: Float[Tensor, "V H"], bias: Float[Tensor, " V"] | None = None):
        super().__init__(weight, bias, Kind.NIBBLES)
        self._weight = weight.detach()

    def __call__(self, x: Float[Tensor, "*R H"]) -> Float[Tensor, "*R V"]:
        """Return the logits in float32."""
        x = x.float().contiguous()
        logits = super().__call__(x)
        count, hidden, real = min(ANEW, self.outputs), x.shape[-1], torch.float32
        given, bias = pointer(x, real), None if self._bias is None else pointer(self._bias, real)
        kernels().refine(
            *(pointer(logits, real, rows=True), x.numel() // hidden, self.struct.outputs, self.outputs, count),
            *(given, hidden, *weights(self._weight), bias),
            torch.get_num_threads(),
        )
        return logits
