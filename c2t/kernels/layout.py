"""Layout of a batch's real slots, in C where that can be compiled: it runs in every round, and after a forward the code
of every operation of torch or numpy is cold."""

import ctypes

import torch
from jaxtyping import Bool
from torch import Tensor

from c2t.kernels.native import kernels, structs
from c2t.kernels.pointer import pointer, pointers

Layout = tuple[Tensor, Tensor, Tensor, Tensor, list[int], list[int]]


def lay_out(real: Bool[Tensor, "B n"]) -> Layout:
    """Return the columns number, row, slot, packed_index, sizes and spans of `c2t.caches.ragged.Ragged`. The flags are
    on the CPU."""
    if kernels() is None:
        return _torch_lay_out(real)
    (rows, n), real = real.shape, real.contiguous()
    number, row, slot, index = (real.new_empty(rows * n, dtype=torch.int64) for _ in range(4))
    counts = (ctypes.c_long * rows)(), (ctypes.c_long * rows)()
    addresses = [*pointers((number, row, slot, index), [torch.int64] * 4), *map(ctypes.addressof, counts)]
    count = kernels().lay_out(pointer(real, torch.bool), rows, n, structs.layout(*addresses))
    return number[:count], row[:count], slot[:count], index.view(rows, n), list(counts[0]), list(counts[1])


def _torch_lay_out(real: Bool[Tensor, "B n"]) -> Layout:
    (row, slot), n = real.nonzero(as_tuple=True), real.shape[1]
    row, slot = row.contiguous(), slot.contiguous()  # kernels read them by their addresses
    index = (real.flatten().cumsum(0) - 1).clamp(min=0).view(real.shape)
    spans = (real * torch.arange(1, n + 1, device=real.device)).amax(1) if n else real.sum(1)
    return row * n + slot, row, slot, index, real.sum(1).tolist(), spans.tolist()
