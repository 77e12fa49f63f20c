"""The one door through which functions in C get a tensor: they take its numbers for what their signature says, and what
is something else they would read and write past its end."""

from collections.abc import Iterable

import torch
from torch import Tensor


def pointer(tensor: Tensor, dtype: torch.dtype, rows: bool = False) -> int:
    """Return where a tensor begins, for a function in C that reads or writes it. rows: it is told their distance, so
    only each row has to be without gaps. TypeError for another dtype, gaps, or another device than the CPU."""
    whole = tensor.is_contiguous() or (rows and tensor.stride(-1) == 1)
    if whole and tensor.dtype is dtype and tensor.is_cpu:
        return tensor.data_ptr()
    raise TypeError(
        f"C takes {dtype} on a CPU without gaps, not {tensor.dtype} on {tensor.device} with strides {tensor.stride()}"
    )


def pointers(tensors: Iterable[Tensor], dtypes: Iterable[torch.dtype]) -> tuple[int, ...]:
    """Return where several tensors begin, each of its dtype."""
    return tuple(pointer(tensor, dtype) for tensor, dtype in zip(tensors, dtypes, strict=True))


def weights(tensor: Tensor) -> tuple[int, bool]:
    """Return where weights begin that C reads in bf16 or in float32, and whether it is bf16."""
    halves = tensor.dtype is torch.bfloat16
    return pointer(tensor, torch.bfloat16 if halves else torch.float32), halves
