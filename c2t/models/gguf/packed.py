"""The blocks of a GGUF file as the kernels multiply them: the file's own numbers, of which none is rounded again.

Q4_0 and Q4_1 are INT4 as they are. Q4_K keeps its two fp16 numbers and the 6-bit multiples of them: the product of both
needs 17 bits, so that fp16 would round it, and float32 would cost 1.4 bits of memory a weight more. Q5_0 and Q8_0 are
bytes with a scale for each 32, Q6_K bytes with a multiple of one scale for each 16. Q5_1 and Q5_K have no such form.
"""

import torch
from jaxtyping import UInt8
from torch import Tensor

from c2t.kernels.decoder_layers import ZERO, Kind, Numbers
from c2t.models.gguf.blocks import Q4_0, Q4_1, Q4_K, Q5_0, Q6_K, Q8_0, BlockType, groups_of, halves, k_scales

KINDS = {
    **{Q4_0: Kind.INT4, Q4_1: Kind.INT4, Q4_K: Kind.INT4_K},
    **{Q5_0: Kind.INT8_GROUPS, Q8_0: Kind.INT8_GROUPS, Q6_K: Kind.INT8_K},
}


def numbers_of(rows: UInt8[Tensor, "O b"], kind: BlockType) -> Numbers | None:
    """Return the numbers in the rows of a matrix in blocks; None where they have no packed form: for types that are not
    in KINDS, for inputs that are no multiple of the form's, and for an offset of Q4_0 beyond fp16."""
    inputs = rows.shape[1] // kind.bytes * kind.weights
    if kind not in KINDS or inputs % KINDS[kind].inputs:
        return None
    blocks, outputs = rows.reshape(-1, kind.bytes), len(rows)
    numbers = groups_of(blocks, kind).numbers.view(outputs, inputs)
    scale = halves(blocks, 208 if kind == Q6_K else 0).view(outputs, -1)
    if kind == Q4_0:
        offset = scale * -8  # exact, unless it is infinite
        if not bool(offset.isfinite().all()):
            return None
        return Numbers(Kind.INT4, (numbers + 8).view(torch.uint8), (), (scale, offset))
    if kind == Q4_1:
        return Numbers(Kind.INT4, numbers.view(torch.uint8), (), (scale, halves(blocks, 2).view(outputs, -1)))
    if kind == Q4_K:
        multiples = tuple(column.reshape(outputs, -1) for column in k_scales(blocks))
        return Numbers(Kind.INT4_K, numbers.view(torch.uint8), (scale, halves(blocks, 2).view(outputs, -1)), multiples)
    whole = numbers.view(torch.uint8) ^ ZERO
    if kind == Q6_K:
        return Numbers(Kind.INT8_K, whole, (scale, blocks[:, 192:208].reshape(outputs, -1)), ())
    return Numbers(Kind.INT8_GROUPS, whole, (), (scale,))
