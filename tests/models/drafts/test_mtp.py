"""MTP-style heads: the forward written out, files, and exact decoding."""

from pathlib import Path

import torch
from transformers import LlamaConfig

from c2t.models.drafts.head_draft import EagleDraft
from c2t.models.drafts.mtp import MTPHead
from c2t.models.loading.eagle_checkpoint import load_head, save_head
from c2t.policies import Eagle2, Plain
from tests.eagle_reference import attention, linear, mlp, norm
from tests.rounding import assert_same_network
from tests.toys import PROMPTS, SIZES, randomise, run, toy_target


def head() -> MTPHead:
    made = randomise(MTPHead(LlamaConfig(**{**SIZES, "num_hidden_layers": 1})).double(), seed=4)
    made.embed_tokens = toy_target().embed_tokens
    return made.requires_grad_(False).eval()


def test_forward_is_norm_join_block_norm() -> None:
    features, tokens = torch.randn(6, SIZES["hidden_size"], dtype=torch.float64), torch.tensor([2, 7, 1, 8, 2, 8])
    weight = {name.removeprefix("block."): tensor for name, tensor in head().state_dict().items()}
    config = {**SIZES, "rms_norm_eps": head().config.rms_norm_eps}
    embedded = norm(config, weight, "enorm", toy_target().embed_tokens.weight[tokens])
    u = linear(weight, "eh_proj", torch.cat([embedded, norm(config, weight, "hnorm", features)], -1))
    a = u + attention(config, weight, norm(config, weight, "input_layernorm", u))
    y = norm(config, weight, "norm", a + mlp(weight, norm(config, weight, "post_attention_layernorm", a)))
    assert_same_network(head()(features[None], tokens[None])[0], y)


def test_written_as_read(tmp_path: Path) -> None:
    save_head(head(), tmp_path)
    again = load_head(tmp_path, toy_target().embed_tokens)
    assert isinstance(again, MTPHead)
    assert all(again.state_dict()[name].float().equal(tensor.float()) for name, tensor in head().state_dict().items())


def test_greedy_text_is_the_targets() -> None:
    target = toy_target()
    plain, _ = run(target, None, Plain(), PROMPTS, new=12)
    texts, _ = run(target, EagleDraft(head(), target.lm_head), Eagle2(K=3, levels=3, N=10), PROMPTS, new=12)
    assert texts == plain
