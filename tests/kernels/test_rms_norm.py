"""Norms by the kernel, in Triton's interpreter where there is no GPU, and by the twin, against transformers' own."""

import pytest
import torch
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from c2t.kernels.rms_norm import RMSNorm, torch_norm, triton, triton_norm
from tests.rounding import assert_within, growth

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORMS = {LlamaRMSNorm: (0.0, True), Olmo2RMSNorm: (0.0, False), Gemma3RMSNorm: (1.0, False)}


def module_of(kind: type[nn.Module], width: int = 200) -> nn.Module:
    module = kind(width, eps=1e-5).to(DEVICE, torch.bfloat16).requires_grad_(False)
    module.weight.copy_(torch.randn(width))
    return module


@pytest.mark.parametrize("kind", FORMS, ids=lambda kind: kind.__name__)
def test_a_module_is_understood_by_its_outputs(kind: type[nn.Module]) -> None:
    module = module_of(kind)
    norm = RMSNorm.of(module)
    assert norm[1:] == (1e-5, *FORMS[kind])
    rows = 3 * torch.randn(2, 7, 200, device=DEVICE).bfloat16()
    assert torch_norm(rows, norm).equal(module(rows))


def test_another_norm_is_not_understood() -> None:
    class Other(LlamaRMSNorm):
        def forward(self, x):
            return super().forward(x) + 1

    for module in (module_of(Other), nn.LayerNorm(200), nn.Linear(3, 200)):
        assert RMSNorm.of(module) is None


@pytest.mark.skipif(triton is None, reason="needs Triton")
@pytest.mark.parametrize("kind", FORMS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("width", [16, 200, 576])
def test_the_kernel_is_exact_up_to_rounding_and_knows_no_other_row(width: int, kind: type[nn.Module]) -> None:
    module = module_of(kind, width)
    norm = RMSNorm.of(module)
    rows = 3 * torch.randn(9, 2, width, device=DEVICE).bfloat16()
    found = triton_norm(rows, norm)
    wide = rows.double()
    exact = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.epsilon)
    exact = exact * (norm.weight.double() + norm.offset)
    # Rounded to bfloat16 twice, which the interpreter does by truncation: two units each.
    assert_within(found, exact, growth(5, torch.bfloat16) * exact.abs())
    assert triton_norm(rows[4:5], norm).equal(found[4:5])
