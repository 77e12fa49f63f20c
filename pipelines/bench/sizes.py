"""Bytes of weights that a decoding step reads, of c2t's targets and of GGUF files."""

from math import prod
from pathlib import Path
from typing import NamedTuple

from torch import nn

from c2t.models.gguf.reader import read_header
from c2t.models.target.target import Target

EMBEDDING, HEAD = "token_embd.weight", "output.weight"  # a GGUF file's names


class Size(NamedTuple):
    """Matrices that every step reads whole: their bytes, scales included, and their weights. Norms are left out."""

    bytes: int
    weights: int

    @property
    def bits(self) -> float:
        """Bits that a weight takes."""
        return 8 * self.bytes / self.weights


def size_of_target(target: Target) -> Size:
    """Return the size of a target's layers and LM head, as the packed form stores them where there is one."""
    head = target.lm_head.weight
    linears = [part for part in target.model.base_model.layers.modules() if isinstance(part, nn.Linear)]
    weights = sum(linear.weight.numel() for linear in linears) + head.numel()
    packed, packed_head = target.packed, target.packed_lm_head
    layers = packed.decoder.layers.nbytes if packed else sum(linear.weight.nbytes for linear in linears)
    return Size(layers + (packed_head.nbytes if packed_head else head.nbytes), weights)


def size_of_file(path: Path) -> Size:
    """Return the size of a GGUF file's matrices. The embedding counts only where it is the LM head as well, because a
    step reads one row of it otherwise. InputError for a file that c2t does not read."""
    tensors = read_header(path).tensors
    unread = {EMBEDDING} if HEAD in tensors else set()
    matrices = [tensor for name, tensor in tensors.items() if len(tensor.shape) > 1 and name not in unread]
    return Size(sum(tensor.size for tensor in matrices), sum(prod(tensor.shape) for tensor in matrices))
