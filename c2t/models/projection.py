"""A linear layer for a handful of rows, which is how a draft calls the LM head at every level of a tree.

On a CPU, BLAS libraries read such a matrix at a fraction of the memory's speed. oneDNN does not, if the matrix is
stored in the order that it chooses: 8192 x 256 in float32 and 15 rows took 0.7 ms instead of 2.1 (`python -m
pipelines.bench draft` shows the effect on a draft phase).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

ROWS = 16  # the order is chosen for so many rows; other numbers work as well


class Projection:
    """Function that computes `linear`, on a CPU in float32 from a copy of its weights in oneDNN's order.

    The copy is made at the first call that can use it, and again when the weights have changed. Where gradients are
    recorded, on other devices and in other dtypes `linear` itself is called.
    """

    def __init__(self, linear: nn.Module):
        self.linear = linear
        self._packed: Tensor | None = None
        self._version: tuple[int, int] | None = None

    def __call__(self, x: Float[Tensor, "*R F"]) -> Float[Tensor, "*R V"]:
        if x.is_cuda or x.dtype != torch.float32 or torch.is_grad_enabled() or not packable(self.linear):
            return self.linear(x)
        weight: Tensor = self.linear.weight
        if (version := version_of(weight)) != self._version:
            self._packed, self._version = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS), version
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.linear.bias, "none", [], "")


def version_of(weight: Tensor) -> tuple[int, int]:
    """Return a value that changes whenever the weight does. Changes of tensors made in inference mode, which nobody
    trains, are not seen."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


# Both are private to torch (its compiler uses them), so they may go.
AVAILABLE = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def packable(linear: nn.Module) -> bool:
    """Return True if oneDNN is there and takes the layer: a plain `nn.Linear` in float32 on a CPU."""
    if not AVAILABLE or type(linear) is not nn.Linear:
        return False
    return linear.weight.dtype == torch.float32 and linear.weight.device.type == "cpu"
