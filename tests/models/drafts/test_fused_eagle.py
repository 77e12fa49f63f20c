"""The fused head against the module that it stands in for."""

import pytest
import torch
from transformers import LlamaConfig

from c2t.kernels.tree_attention import grouped_attention
from c2t.models.drafts.eagle import EagleHead
from c2t.models.drafts.fused_eagle import FusedEagle
from c2t.models.drafts.head_draft import EagleDraft
from tests.rounding import assert_same_network
from tests.toys import VOCABULARY, toy_target

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "vocab_size": VOCABULARY}
VARIANTS = {
    "as published": {},
    "grouped heads": {"num_key_value_heads": 2},
    "two layers": {"num_hidden_layers": 2},
    "scaled positions": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
}


def head_of(variant: str, bias: bool = False) -> EagleHead:
    config = LlamaConfig(**{"num_hidden_layers": 1, **SHAPE, **VARIANTS[variant]})
    head = EagleHead(config, bias=bias, qkv_bias=bias).double().requires_grad_(False)
    head.embed_tokens = toy_target().embed_tokens
    return head


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_are_the_modules(variant: str, bias: bool) -> None:
    head = head_of(variant, bias)
    features, tokens = torch.randn(2, 7, 32, dtype=torch.float64), torch.randint(0, VOCABULARY, (2, 7))
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [1500, 3, 3, 4, 900, 5, 6]])
    mask = torch.rand(2, 7, 7) < 0.5
    mask |= torch.eye(7, dtype=torch.bool)
    fused = FusedEagle(head)
    fused.reach(1501)
    found = fused(features, tokens, positions, lambda layer, q, k, v: grouped_attention(q, k, v, mask))
    assert_same_network(found, head(features, tokens, positions, mask[:, None]))


def test_a_head_that_was_trained_on_is_fused_anew() -> None:
    head = head_of("as published")
    draft = EagleDraft(head, toy_target().lm_head)
    before = draft.fused
    assert draft.fused is before
    head.fc.weight.mul_(2)
    assert draft.fused is not before


def test_positions_that_depend_on_the_length_are_left_to_the_module() -> None:
    config = LlamaConfig(**SHAPE, rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0})
    assert EagleDraft(EagleHead(config), toy_target().lm_head).fused is None
