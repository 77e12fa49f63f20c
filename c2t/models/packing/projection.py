"""A linear layer for a handful of rows, which is how a draft calls the LM head at every level of a tree.

On a CPU, BLAS libraries read such a matrix at a fraction of the memory's speed. c2t's own kernel does not, and oneDNN,
where there is no compiler for the kernel, if the matrix is stored in the order that it chooses: 8192 x 256 in float32
and 15 rows took 0.7 ms instead of 2.1 (`python -m pipelines.bench draft` shows the effect on a draft phase).
"""

from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from c2t.kernels import rescored
from c2t.kernels.decoder_layers import Kind, NumbersMatrix, PackedMatrix, Stored, rounds
from c2t.kernels.native import kernels
from c2t.kernels.rescored import RescoredMatrix
from c2t.models.packing.versions import Version, Versions
from c2t.models.target.stock import LINEAR, is_stock_module

ROWS = 16  # oneDNN's order is chosen for so many rows; other numbers work as well

# Both are private to torch (its compiler uses them), so they may go.
ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


class OneDNNMatrix:
    """Linear layer in float32, stored in oneDNN's order."""

    def __init__(self, weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None):
        self._packed, self._bias = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS), bias

    def __call__(self, x: Float[Tensor, "*R I"]) -> Float[Tensor, "*R O"]:
        """Return x W' + b."""
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")


# (rounded, int4, whether numbers are stored) -> version of the weights, and their copy.
_Forms = dict[tuple[bool, bool, bool], tuple[Version, PackedMatrix | OneDNNMatrix]]
_COPIES: WeakKeyDictionary[nn.Module, _Forms] = WeakKeyDictionary()


class Projection:
    """Function that computes `linear`, for float32 rows on a CPU from a packed copy of its weights.

    The copy is made at the first call that can use it, once for all projections of a layer, and again when the weights
    have changed. Where gradients are recorded, on other devices and in other dtypes `linear` itself is called. rounded:
    c2t's own copy may be in 8 bits (`Kind.of`); int4: in 4 except for the largest outputs, where
    `c2t.kernels.rescored` serves the weights. stored: finds numbers that the weights came as; with it none is rounded.
    """

    def __init__(self, linear: nn.Module, rounded: bool = False, int4: bool = False, stored: Stored | None = None):
        self.linear, self.rounded = linear, rounded and rounds(linear.get_parameter("weight").shape[1])
        self.int4, self._stored = int4 and self.rounded, stored
        self._versions = Versions()

    def __call__(self, x: Float[Tensor, "*R F"]) -> Float[Tensor, "*R V"]:
        kind = packing_of(self.linear)
        if kind is None or x.is_cuda or x.dtype != torch.float32 or self._learns(x):
            return self.linear(x)
        return self.copy(kind)(x)

    def packed(self) -> PackedMatrix | None:
        """Return the copy for c2t's own kernel, None where a layer has none."""
        copy = self.copy(PackedMatrix) if packing_of(self.linear) is PackedMatrix else None
        return copy if isinstance(copy, PackedMatrix) else None

    def copy(self, kind: type[PackedMatrix] | type[OneDNNMatrix]) -> PackedMatrix | OneDNNMatrix:
        """Return the packed copy of the weights as they are now."""
        weight: Tensor = self.linear.weight
        version, copies = self._versions.of([weight]), _COPIES.setdefault(self.linear, {})
        form = self.rounded, self.int4, self._stored is not None
        copy = copies.get(form)
        if copy is None or copy[0] != version:
            copy = copies[form] = version, self._made(kind, weight)
        return copy[1]

    def _made(self, kind: type[PackedMatrix] | type[OneDNNMatrix], weight: Tensor) -> PackedMatrix | OneDNNMatrix:
        if kind is not PackedMatrix:
            return kind(weight, self.linear.bias)
        if self._stored:
            numbers = self._stored(weight)
            return NumbersMatrix([numbers], self.linear.bias) if numbers else PackedMatrix(weight, self.linear.bias)
        if self.int4 and rescored.serves(weight):
            return RescoredMatrix(weight, self.linear.bias)
        return PackedMatrix(weight, self.linear.bias, Kind.of(weight, self.rounded))

    def _learns(self, x: Tensor) -> bool:
        weight: Tensor = self.linear.weight
        return torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)


def packing_of(linear: nn.Module) -> type[PackedMatrix] | type[OneDNNMatrix] | None:
    """Return how a layer can be packed: None unless it is torch's own `nn.Linear` on a CPU with weights in float32, or
    in bf16 where c2t's kernel is there."""
    if not is_stock_module(linear, LINEAR) or linear.weight.device.type != "cpu":
        return None
    if linear.weight.dtype in (torch.float32, torch.bfloat16) and kernels() is not None:
        return PackedMatrix
    return OneDNNMatrix if ONEDNN and linear.weight.dtype == torch.float32 else None
