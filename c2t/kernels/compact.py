"""Key-value compaction: the accepted paths move to the ends of their rows, in all layers with one launch (Triton on a
GPU, C on a CPU, torch where these are not to be had)."""

import ctypes
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import no_type_check

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.kernels.compiled import library

try:
    import triton
    import triton.language as tl
except ImportError:  # the torch twin needs none
    triton = None

LONGEST = 64  # slots of a path that the kernel holds at once; a prompt has more, but hardly ever moves


def compact(
    buffers: Sequence[Float[Tensor, "2 B H T D"]],
    index: Int[Tensor, "B m"],
    count: Int[Tensor, " B"],
    lengths: Int[Tensor, " B"],
    start: int,
) -> None:
    """Copy, in every buffer, slots start + index[r, :count[r]] of row r to [lengths[r], lengths[r] + count[r]).

    The order is kept, and the result is as if all slots were read before one is written. The buffers may be on several
    devices.
    """
    first = buffers[0]
    alike = len({(buffer.device, buffer.shape) for buffer in buffers}) == 1 and all(map(Tensor.is_contiguous, buffers))
    if triton is not None and first.is_cuda and alike and index.shape[1] <= LONGEST:
        triton_compact(buffers, index, count, lengths, start)
    elif alike and not first.is_cuda and compiled() is not None:
        compiled_compact(buffers, index, count, lengths, start)
    else:
        torch_compact(buffers, index, count, lengths, start)


def torch_compact(buffers: Sequence[Tensor], index: Tensor, count: Tensor, lengths: Tensor, start: int) -> None:
    """Do `compact` in torch: a gather and a scatter in each layer."""
    steps = torch.arange(index.shape[1], device=index.device)
    target = lengths[:, None] + steps
    # Beyond a row's count a slot is copied onto itself.
    source = torch.where(steps < count[:, None], start + index, target)
    for buffer in buffers:
        shape = (*buffer.shape[:3], index.shape[1], buffer.shape[4])
        places = (slots.clamp(max=buffer.shape[3] - 1).to(buffer.device) for slots in (target, source))
        there, here = (slots[None, :, None, :, None].expand(shape) for slots in places)
        buffer.scatter_(3, there, buffer.gather(3, here))


@cache
def compiled() -> ctypes.CDLL | None:
    """Return the compiled function, None where it cannot be had."""
    found = library(Path(__file__).with_suffix(".c"))
    if found is not None:
        pointer, size = ctypes.c_void_p, ctypes.c_long
        found.compact.argtypes = (pointer, *[size] * 5, pointer, size, pointer, pointer, size)
    return found


def compiled_compact(buffers: Sequence[Tensor], index: Tensor, count: Tensor, lengths: Tensor, start: int) -> None:
    """Do `compact` in C, on a CPU."""
    _, rows, heads, capacity, dim = buffers[0].shape
    places = (ctypes.c_void_p * len(buffers))(*map(Tensor.data_ptr, buffers))
    slots = dim * buffers[0].element_size()
    index, count, lengths = index.contiguous(), count.contiguous(), lengths.contiguous()
    paths = (index.data_ptr(), index.shape[1], count.data_ptr(), lengths.data_ptr(), start)
    if compiled().compact(places, len(buffers), rows, heads, capacity, slots, *paths):
        raise MemoryError(f"no memory for a path of {index.shape[1]} slots")


def triton_compact(buffers: Sequence[Tensor], index: Tensor, count: Tensor, lengths: Tensor, start: int) -> None:
    """Do `compact` in one launch; a program moves one head's path in one row of one layer's keys or values."""
    first = buffers[0]
    _, rows, heads, capacity, dim = first.shape
    places = addresses(tuple(buffer.data_ptr() for buffer in buffers), first.device)
    _compact[(len(buffers), 2 * rows, heads)](
        *(first, places, index.contiguous(), count, lengths, rows, heads, capacity, index.shape[1], start, dim),
        PATH=triton.next_power_of_2(index.shape[1]),
        DIM=triton.next_power_of_2(dim),
    )


@lru_cache(maxsize=64)
def addresses(pointers: tuple[int, ...], device: torch.device) -> Int[Tensor, " L"]:
    """Return the addresses of the layers' buffers. Cached: they change only when the cache grows or loses a row."""
    return torch.tensor(pointers, dtype=torch.int64, device=device)


if triton is not None:  # no_type_check keeps run-time checkers of annotations out of the kernel's source

    @triton.jit(do_not_specialize=["capacity", "steps", "start"])
    @no_type_check
    def _compact(
        # `like` only gives the type that the addresses point to.
        like,
        addresses,
        index,
        count,
        lengths,
        rows,
        heads,
        capacity,
        steps,
        start,
        dim,
        PATH: tl.constexpr,
        DIM: tl.constexpr,
    ):
        part, head = tl.program_id(1), tl.program_id(2)  # keys of all rows, then values of all rows
        row = part % rows
        step, column = tl.arange(0, PATH), tl.arange(0, DIM)
        moved = step < tl.load(count + row)
        source = start + tl.load(index + row * steps + step, mask=moved, other=0)
        target = tl.load(lengths + row) + step
        buffer = tl.load(addresses + tl.program_id(0)).to(like.dtype)
        buffer += (part * heads + head).to(tl.int64) * capacity * dim
        mask = (moved & (source != target))[:, None] & (column < dim)
        kept = tl.load(buffer + source[:, None] * dim + column, mask=mask)
        tl.debug_barrier()  # a slot may be both read and written
        tl.store(buffer + target[:, None] * dim + column, kept, mask=mask)
