"""Addresses of tensors for functions in C, which trust the type and layout of their signature: another tensor they
would misread, or write past its end. They get no other addresses."""

from collections.abc import Iterable

import torch
from torch import Tensor


def pointer(tensor: Tensor, dtype: torch.dtype, rows: bool = False) -> int:
    """Return where a tensor begins, for a function in C that reads or writes it. rows: it gets their distance, so only
    each row has to be without gaps. TypeError for another dtype, gaps, or another device than the CPU."""
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
    is_bf16 = tensor.dtype is torch.bfloat16
    return pointer(tensor, torch.bfloat16 if is_bf16 else torch.float32), is_bf16
