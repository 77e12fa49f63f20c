"""Key-value compaction: the accepted paths move to the ends of their rows, in all layers with one launch (Triton on a
GPU, C on a CPU, otherwise torch).
"""

from collections.abc import Sequence
from typing import no_type_check

import torch
from jaxtyping import Int
from torch import Tensor

from c2t.kernels.layer_buffers import LayerBuffers
from c2t.kernels.native import kernels
from c2t.kernels.pointer import pointers

try:
    import triton
    import triton.language as tl
except ImportError:  # the torch twin needs none
    triton = None

LONGEST = 64  # slots of a path that the kernel holds in registers; a prompt has more, but hardly ever moves


def compact(
    buffers: LayerBuffers,
    index: Int[Tensor, "B m"],
    count: Int[Tensor, " B"],
    source: Int[Tensor, " B"],
    target: Int[Tensor, " B"],
) -> None:
    """Copy, in every buffer, slots source[r] + index[r, :count[r]] to [target[r], target[r] + count[r]), in each head.

    Slots are counted from a buffer's first one, in its first head. The order stays, and the result is as if all slots
    were read before one is written. The buffers may be on several devices.
    """
    first, alike = buffers[0], buffers.alike
    if triton is not None and first.is_cuda and alike and index.shape[1] <= LONGEST:
        triton_compact(buffers, index, count, source, target)
    elif alike and first.device.type == "cpu" and kernels() is not None:
        compiled_compact(buffers, index, count, source, target)
    else:
        torch_compact(buffers, index, count, source, target)


def torch_compact(buffers: Sequence[Tensor], index: Tensor, count: Tensor, source: Tensor, target: Tensor) -> None:
    """Do `compact` in torch: a gather and a scatter in each layer."""
    steps = torch.arange(index.shape[1], device=index.device)
    real = steps < count[:, None]
    there = (target[:, None] + steps)[real]
    here = (source[:, None] + index)[real]
    for buffer in buffers:
        heads, size, dim = buffer.shape[-3:]
        of_heads = size * torch.arange(heads, device=buffer.device)[:, None]
        flat = buffer.view(2, -1, dim)
        flat[:, of_heads + there.to(buffer.device)] = flat[:, of_heads + here.to(buffer.device)]


def compiled_compact(buffers: LayerBuffers, index: Tensor, count: Tensor, source: Tensor, target: Tensor) -> None:
    """Do `compact` in C, on a CPU."""
    heads, size, dim = buffers[0].shape[-3:]
    half = buffers[0].stride(0) // dim
    shape = len(buffers), len(count), heads, half, size, dim * buffers[0].element_size()
    given = [column.contiguous() for column in (index, count, source, target)]
    at, *ends = pointers(given, [torch.int64] * 4)
    if kernels().compact(buffers.addresses, *shape, at, index.shape[1], *ends):
        raise MemoryError(f"no memory for a path of {index.shape[1]} slots")


def triton_compact(buffers: LayerBuffers, index: Tensor, count: Tensor, source: Tensor, target: Tensor) -> None:
    """Do `compact` in one launch; a program moves one head's path in one row of one layer's keys or values."""
    first = buffers[0]
    heads, size, dim = first.shape[-3:]
    _compact[(len(buffers), 2 * len(count), heads)](
        *(first, buffers.there, index.contiguous(), count, source, target, len(count), size, first.stride(0) // dim),
        *(index.shape[1], dim),
        PATH=triton.next_power_of_2(index.shape[1]),
        DIM=triton.next_power_of_2(dim),
    )


if triton is not None:  # no_type_check keeps run-time checkers of annotations out of the kernel's source

    @triton.jit(do_not_specialize=["size", "half", "steps"])
    @no_type_check
    def _compact(
        # `like` only gives the type that the addresses point to.
        like,
        addresses,
        index,
        count,
        source,
        target,
        rows,
        size,
        half,
        steps,
        dim,
        PATH: tl.constexpr,
        DIM: tl.constexpr,
    ):
        part, head = tl.program_id(1), tl.program_id(2)  # keys of all rows, then values of all rows
        row = part % rows
        step, column = tl.arange(0, PATH), tl.arange(0, DIM)
        moved = step < tl.load(count + row)
        here = tl.load(source + row) + tl.load(index + row * steps + step, mask=moved, other=0)
        there = tl.load(target + row) + step
        buffer = tl.load(addresses + tl.program_id(0)).to(like.dtype)
        buffer += ((part // rows).to(tl.int64) * half + head.to(tl.int64) * size) * dim
        mask = (moved & (here != there))[:, None] & (column < dim)
        values = tl.load(buffer + here.to(tl.int64)[:, None] * dim + column, mask=mask)
        tl.debug_barrier()  # a slot may be both read and written
        tl.store(buffer + there.to(tl.int64)[:, None] * dim + column, values, mask=mask)
