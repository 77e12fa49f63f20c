"""RMS norm whose sum has the same order for every number of rows: on a GPU one program of a fixed shape a row,
elsewhere torch's operations, as transformers has them.
"""

from typing import NamedTuple, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor, nn

try:
    import triton
    import triton.language as tl
except ImportError:  # the torch twin needs none
    triton = None


class RMSNorm(NamedTuple):
    """A norm: x / sqrt(mean(x^2) + epsilon) (weight + offset), in float32. early: rounded to the dtype of x before the
    product with the weights, as well as after."""

    weight: Float[Tensor, " H"]
    epsilon: float
    offset: float
    early: bool

    @classmethod
    def of(cls, module: nn.Module) -> "RMSNorm | None":
        """Return what a module computes, as its outputs for random rows show, bit for bit; None if it is another
        norm."""
        weight = getattr(module, "weight", None)
        epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if not isinstance(weight, Tensor) or weight.ndim != 1 or not isinstance(epsilon, float):
            return None
        generator = torch.Generator("cpu").manual_seed(0)
        rows = torch.randn(1, 8, len(weight), generator=generator, device="cpu", dtype=torch.float32).to(weight)
        expected = module(rows)
        forms = (cls(weight, epsilon, offset, early) for offset, early in ((0.0, True), (0.0, False), (1.0, False)))
        return next((form for form in forms if torch_norm(rows, form).equal(expected)), None)

    def __call__(self, x: Float[Tensor, "... H"]) -> Float[Tensor, "... H"]:
        """Return the norm of each row."""
        # Weights of another dtype decide that of the result.
        if triton is not None and x.is_cuda and x.dtype == self.weight.dtype != torch.float64:
            return triton_norm(x, self)
        return torch_norm(x, self)


def torch_norm(x: Tensor, norm: RMSNorm) -> Tensor:
    """Compute a norm in torch."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.epsilon)
    if norm.early:
        return norm.weight * normed.to(x.dtype)
    return ((norm.offset + norm.weight.float()) * normed).to(x.dtype)


def triton_norm(x: Tensor, norm: RMSNorm) -> Tensor:
    """Compute a norm in Triton."""
    x = x.contiguous()
    out, width = torch.empty_like(x), x.shape[-1]
    _norm[(x.numel() // width,)](
        *(x, norm.weight, out, width, norm.epsilon, norm.offset),
        EARLY=norm.early,
        TILE=triton.next_power_of_2(width),
        num_warps=1 if width <= 256 else 8,
        enable_fp_fusion=False,
    )
    return out


if triton is not None:  # no_type_check keeps run-time checkers of annotations out of the kernel's source

    @triton.jit(do_not_specialize=["epsilon", "offset"])
    @no_type_check
    def _norm(x, weight, out, width, epsilon, offset, EARLY: tl.constexpr, TILE: tl.constexpr):
        row, column = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)
        there = column < width
        wide = tl.load(x + row * width + column, mask=there, other=0.0).to(tl.float32)
        normed = wide / tl.sqrt_rn(tl.sum(wide * wide, 0) / width + epsilon)
        scale = tl.load(weight + column, mask=there, other=0.0).to(tl.float32) + offset
        if EARLY:
            normed = normed.to(out.dtype.element_ty).to(tl.float32)
        tl.store(out + row * width + column, (normed * scale).to(out.dtype.element_ty), mask=there)
