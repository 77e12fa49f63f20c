"""Layout of a batch's real slots. In C where that can be compiled: every round asks, and behind a forward every
operation of torch or numpy finds its code cold."""

import ctypes
from functools import cache

import torch
from jaxtyping import Bool
from torch import Tensor

from c2t.kernels.compiled import SOURCES, library
from c2t.kernels.pointer import pointer

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_long
NAMES = ("number", "row", "slot", "place", "sizes", "spans")  # columns of `c2t.ragged.Ragged`, which says what they are
Layout = tuple[Tensor, Tensor, Tensor, Tensor, list[int], list[int]]


class _Layout(ctypes.Structure):
    _fields_ = [(name, _POINTER) for name in NAMES]


@cache
def compiled() -> ctypes.CDLL | None:
    """Return the compiled function, None where it cannot be had."""
    found = library(SOURCES / "layout.c")
    if found is not None:
        found.lay_out.argtypes = _POINTER, _LONG, _LONG, ctypes.POINTER(_Layout)
        found.lay_out.restype = _LONG
    return found


def lay_out(real: Bool[Tensor, "B n"]) -> Layout:
    """Return where the real slots stand, as NAMES; the flags are on the CPU."""
    if compiled() is None:
        return _torch_lay_out(real)
    (rows, n), real = real.shape, real.contiguous()
    number, row, slot, place = (real.new_empty(rows * n, dtype=torch.int64) for _ in range(4))
    counts = (_LONG * rows)(), (_LONG * rows)()
    addresses = [pointer(each, torch.int64) for each in (number, row, slot, place)] + [*map(ctypes.addressof, counts)]
    count = compiled().lay_out(pointer(real, torch.bool), rows, n, _Layout(*addresses))
    return number[:count], row[:count], slot[:count], place.view(rows, n), list(counts[0]), list(counts[1])


def _torch_lay_out(real: Bool[Tensor, "B n"]) -> Layout:
    (row, slot), n = real.nonzero(as_tuple=True), real.shape[1]
    row, slot = row.contiguous(), slot.contiguous()  # kernels read them by their addresses
    place = (real.flatten().cumsum(0) - 1).clamp(min=0).view(real.shape)
    spans = (real * torch.arange(1, n + 1, device=real.device)).amax(1) if n else real.sum(1)
    return row * n + slot, row, slot, place, real.sum(1).tolist(), spans.tolist()
