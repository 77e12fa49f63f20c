"""MTP-style heads: the forward written out."""

import torch

from tests.eagle_reference import attention, linear, mlp, norm
from tests.rounding import assert_same_network
from tests.toys import SIZES, deep_pairs


@torch.no_grad()
def test_forward_is_norm_join_block_norm() -> None:
    head = deep_pairs()["mtp"][1].head
    features, tokens = torch.randn(6, SIZES["hidden_size"], dtype=torch.float64), torch.tensor([2, 7, 1, 8, 2, 8])
    weight = {name.removeprefix("block."): tensor for name, tensor in head.state_dict().items()}
    config = {**SIZES, "rms_norm_eps": head.config.rms_norm_eps}
    embedded = norm(config, weight, "enorm", head.embed_tokens.weight[tokens])
    u = linear(weight, "eh_proj", torch.cat([embedded, norm(config, weight, "hnorm", features)], -1))
    a = u + attention(config, weight, norm(config, weight, "input_layernorm", u))
    y = norm(config, weight, "norm", a + mlp(weight, norm(config, weight, "post_attention_layernorm", a)))
    assert_same_network(head(features[None], tokens[None])[0], y)
