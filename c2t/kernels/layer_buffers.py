"""A cache's buffers of all layers, and what kernels need to know of them, computed once for each set of buffers.

To ask thirty layers for their shapes and addresses costs more than to move a path in all of them.
"""

import ctypes
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from c2t.kernels.pointer import pointer


class LayerBuffers(list[Tensor | None]):
    """Keys and values of each layer, (2, *B, heads, slots, dim); None before there are any."""

    def __setitem__(self, layer: Any, buffer: Any) -> None:
        super().__setitem__(layer, buffer)
        vars(self).clear()  # what is cached

    @cached_property
    def complete(self) -> bool:
        """Return True if every layer has its buffer."""
        return not any(buffer is None for buffer in self)

    @cached_property
    def alike(self) -> bool:
        """Return True if all are contiguous, of one shape and type, and on one device."""
        kinds = {(buffer.device, buffer.dtype, buffer.shape) for buffer in self}
        return len(kinds) == 1 and all(map(Tensor.is_contiguous, self))

    @cached_property
    def addresses(self) -> ctypes.Array:
        """Return where the buffers begin."""
        return (ctypes.c_void_p * len(self))(*(pointer(buffer, buffer.dtype) for buffer in self))

    @cached_property
    def there(self) -> Int[Tensor, " L"]:
        """The addresses on the buffers' device, which live as long as the buffers: a CUDA graph may hold them."""
        return torch.tensor([buffer.data_ptr() for buffer in self], dtype=torch.int64, device=self[0].device)
