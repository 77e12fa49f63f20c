"""The types of a GGUF's tensors: blocks of small whole numbers with scales, and what weights they stand for.

What each type's bytes mean is said by ggml's `dequantize_row_...` (https://github.com/ggml-org/ggml, ggml-quants.c).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int8, UInt8
from torch import Tensor

SUPER = 256  # weights of a block of the K types, which has smaller groups with scales of their own


class BlockType(NamedTuple):
    """A type of tensor: so many weights in so many bytes. dtype: of one that holds plain numbers."""

    name: str
    weights: int
    bytes: int
    dtype: torch.dtype | None = None

    def bytes_of(self, weights: int) -> int:
        """Return the bytes of so many weights, a multiple of a block's."""
        return weights // self.weights * self.bytes


F32, F16 = BlockType("F32", 1, 4, torch.float32), BlockType("F16", 1, 2, torch.float16)
BF16 = BlockType("BF16", 1, 2, torch.bfloat16)
Q4_0, Q4_1 = BlockType("Q4_0", 32, 18), BlockType("Q4_1", 32, 20)
Q5_0, Q5_1 = BlockType("Q5_0", 32, 22), BlockType("Q5_1", 32, 24)
Q8_0 = BlockType("Q8_0", 32, 34)
Q4_K, Q5_K, Q6_K = BlockType("Q4_K", SUPER, 144), BlockType("Q5_K", SUPER, 176), BlockType("Q6_K", SUPER, 210)
# By their numbers in a file.
TYPES = {0: F32, 1: F16, 2: Q4_0, 3: Q4_1, 6: Q5_0, 7: Q5_1, 8: Q8_0, 12: Q4_K, 13: Q5_K, 14: Q6_K, 30: BF16}
NAMED = {kind.name: kind for kind in TYPES.values()}
OTHER_TYPES = {
    **{9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S"},
    **{20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"},
    **{29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4"},
}


class Groups(NamedTuple):
    """Content of n blocks: whole numbers, and for each group of them the scale and the offset: a weight is scale x
    number + offset. Without an offset it is scale x number."""

    numbers: Int8[Tensor, "n g w"]
    scale: Float[Tensor, "n g"]
    offset: Float[Tensor, "n g"] | None = None

    def weights(self) -> Float[Tensor, "n w"]:
        """Return the weights in float32."""
        weights = self.numbers.float() * self.scale[..., None]
        if self.offset is not None:
            weights += self.offset[..., None]
        return weights.flatten(1)


def halves(blocks: UInt8[Tensor, "n b"], at: int) -> Float[Tensor, "n 1"]:
    """Return the fp16 number that stands at a byte of each block."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16)


def split(packed: UInt8[Tensor, "n b"], bits: int, run: int) -> UInt8[Tensor, "n w"]:
    """Return the numbers of so many bits in bytes, of which each `run` hold first the numbers in their low bits."""
    runs = packed.view(len(packed), -1, run)
    return torch.stack([runs >> shift & 2**bits - 1 for shift in range(0, 8, bits)], 2).flatten(1)


def k_scales(blocks: UInt8[Tensor, "n b"]) -> tuple[UInt8[Tensor, "n 8"], UInt8[Tensor, "n 8"]]:
    """Return the 6-bit numbers of Q4_K and Q5_K: for each of 8 groups that of its scale, and that of its offset."""
    scale, least, high = blocks[:, 4:16].view(len(blocks), 3, 4).unbind(1)
    return (
        torch.cat([scale & 63, high & 15 | scale >> 2 & 48], 1),
        torch.cat([least & 63, high >> 4 | least >> 2 & 48], 1),
    )


def _grouped(numbers: UInt8[Tensor, "n b"], less: int = 0, groups: int = 1) -> Int8[Tensor, "n g w"]:
    return (numbers.view(torch.int8) - less).view(len(numbers), groups, -1)


def _fifth_bit(bits: UInt8[Tensor, "n 4"]) -> UInt8[Tensor, "n 32"]:
    """Return for each of 32 numbers its fifth bit, in place."""
    return torch.stack([bits >> shift & 1 for shift in range(8)], 2).flatten(1) << 4


def _q4_0(blocks: UInt8[Tensor, "n b"]) -> Groups:
    return Groups(_grouped(split(blocks[:, 2:], 4, 16), 8), halves(blocks, 0).float())


def _q4_1(blocks: UInt8[Tensor, "n b"]) -> Groups:
    return Groups(_grouped(split(blocks[:, 4:], 4, 16)), halves(blocks, 0).float(), halves(blocks, 2).float())


def _q5_0(blocks: UInt8[Tensor, "n b"]) -> Groups:
    numbers = split(blocks[:, 6:], 4, 16) | _fifth_bit(blocks[:, 2:6])
    return Groups(_grouped(numbers, 16), halves(blocks, 0).float())


def _q5_1(blocks: UInt8[Tensor, "n b"]) -> Groups:
    numbers = split(blocks[:, 8:], 4, 16) | _fifth_bit(blocks[:, 4:8])
    return Groups(_grouped(numbers), halves(blocks, 0).float(), halves(blocks, 2).float())


def _q8_0(blocks: UInt8[Tensor, "n b"]) -> Groups:
    return Groups(_grouped(blocks[:, 2:]), halves(blocks, 0).float())


def _of_k(numbers: UInt8[Tensor, "n w"], blocks: UInt8[Tensor, "n b"]) -> Groups:
    scale, least = k_scales(blocks)
    offset = halves(blocks, 2).float() * least.float()
    return Groups(_grouped(numbers, groups=8), halves(blocks, 0).float() * scale.float(), -offset)


def _q4_k(blocks: UInt8[Tensor, "n b"]) -> Groups:
    return _of_k(split(blocks[:, 16:], 4, 32), blocks)


def _q5_k(blocks: UInt8[Tensor, "n b"]) -> Groups:
    return _of_k(split(blocks[:, 48:], 4, 32) | split(blocks[:, 16:48], 1, 32) << 4, blocks)


def _q6_k(blocks: UInt8[Tensor, "n b"]) -> Groups:
    numbers = split(blocks[:, :128], 4, 64) | split(blocks[:, 128:192], 2, 32) << 4
    scale = halves(blocks, 208).float() * blocks[:, 192:208].view(torch.int8).float()
    return Groups(_grouped(numbers, 32, groups=16), scale)


_READ: dict[BlockType, Callable[[UInt8[Tensor, "n b"]], Groups]] = {
    **{Q4_0: _q4_0, Q4_1: _q4_1, Q5_0: _q5_0, Q5_1: _q5_1, Q8_0: _q8_0},
    **{Q4_K: _q4_k, Q5_K: _q5_k, Q6_K: _q6_k},
}


def groups_of(blocks: UInt8[Tensor, "n b"], kind: BlockType) -> Groups:
    """Return what blocks of a type hold."""
    return _READ[kind](blocks)


def dequantized(rows: UInt8[Tensor, "R b"], kind: BlockType) -> Float[Tensor, "R I"]:
    """Return the weights that rows of a tensor stand for: of blocks in float32, plain numbers as they are."""
    if kind.dtype is not None:
        return rows.view(kind.dtype)
    return groups_of(rows.reshape(-1, kind.bytes), kind).weights().view(len(rows), -1)
