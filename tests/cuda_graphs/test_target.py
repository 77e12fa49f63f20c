"""Verification of fixed shapes writes plain decoding's text."""

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, PreTrainedConfig, Qwen3Config

from c2t.cuda_graphs import target as static_target
from c2t.cuda_graphs.draft import StaticDraft, StaticPolicy
from c2t.cuda_graphs.target import StaticTarget, check_device, replace_norms
from c2t.errors import InputError
from c2t.kernels.rms_norm import RMSNorm, triton_norm
from c2t.kernels.tree_attention import triton
from c2t.kernels.tree_mask import TreeMask
from c2t.models.target.target import Target
from c2t.policies import C2T, Eagle2, Plain, Sequoia
from c2t.sampling import Sampling
from c2t.study.parity.run import parity
from pipelines.gpu.exact import as_on_a_gpu, compute_rows_alone
from tests.marks import slow_except
from tests.toys import PROMPTS, SIZES, WINDOW, language_model, random_eagle, run, toy_classifier

WIDE = {**SIZES, "head_dim": 16}  # which the kernel has blocks for
FAMILIES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**WIDE),
    "qwen3": Qwen3Config(**WIDE),
    "mistral": MistralConfig(**WIDE, sliding_window=WINDOW),
}
EOS = frozenset({11, 30})


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, top_k=20, repetition_penalty=1.1, seed=3)], ids=str)
@pytest.mark.parametrize("family", slow_except(FAMILIES, "llama"))
def test_text_is_plain_decodings(family: str, sampling: Sampling) -> None:
    """With graphs on both sides and on one; rows end at different times, which moves the others."""
    target = Target(language_model(FAMILIES[family]))
    expected, _ = run(target, None, Plain(), PROMPTS, sampling, new=14, eos=EOS)
    assert len({len(text) for text in expected}) > 1
    draft = random_eagle(target)
    static = StaticTarget(target, rows=5, capacity=64)
    c2t = C2T(toy_classifier(), beta=0.4, K=4, W=5, levels=4)
    found = {
        "both": run(static, StaticDraft(draft, c2t, 5, 64), StaticPolicy(c2t), PROMPTS, sampling, new=14, eos=EOS),
        "target": run(static, draft, Eagle2(K=3, levels=3, N=12), PROMPTS, sampling, new=14, eos=EOS),
        "plain": run(static, None, Plain(), PROMPTS, sampling, new=14, eos=EOS),
    }
    for texts, _ in found.values():
        assert texts == expected
    assert sum(int(step.tree.alive.sum()) for step in found["both"][1][1:]) > 2 * len(found["both"][1])


def test_sampled_trees_under_the_residual_rule_keep_their_text() -> None:
    target = Target(language_model(FAMILIES["llama"]))
    draft, policy = random_eagle(target), Sequoia(acceptance=(0.5, 0.2), N=8, levels=3)
    expected, _ = run(target, draft, policy, PROMPTS, Sampling(0.9, seed=1), new=10)
    found, _ = run(StaticTarget(target, 4, 64), draft, policy, PROMPTS, Sampling(0.9, seed=1), new=10)
    assert found == expected


def test_what_does_not_fit_is_refused() -> None:
    target = Target(language_model(FAMILIES["llama"]))
    static = StaticTarget(target, rows=1, capacity=64)
    with pytest.raises(InputError, match="4 prompts are more than the 1 rows of the graphs"):
        run(static, None, Plain(), PROMPTS)
    with pytest.raises(InputError, match="a tree of 91 tokens is larger than the 64 that graphs have room for"):
        run(static, random_eagle(target), Eagle2(K=9, levels=2, N=None), PROMPTS[:1])
    dynamic = LlamaConfig(**WIDE, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
    with pytest.raises(InputError, match="graphs cannot record dynamic RoPE"):
        StaticTarget(Target(language_model(dynamic)), rows=1, capacity=64)
    with pytest.raises(InputError, match="float32, bfloat16 and float16: choose another --dtype than float64"):
        check_device(torch.float64)
    narrow = Target(language_model(LlamaConfig(**SIZES)))
    with pytest.raises(InputError, match="tree attention needs heads of 16"):
        StaticTarget(narrow, rows=1, capacity=64)


def test_what_does_not_fit_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(language_model(FAMILIES["llama"]))

    def full(*_, **__) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(TreeMask, "of", full)
    with pytest.raises(InputError, match="no memory to record a graph: choose fewer tokens and prompts, or no graphs"):
        run(StaticTarget(target, rows=1, capacity=64), None, Plain(), PROMPTS[:1])


@torch.no_grad()
def test_kept_features_outlive_the_next_round() -> None:
    target = Target(language_model(FAMILIES["llama"]))
    _, steps = run(StaticTarget(target, 1, 64), None, Plain(), PROMPTS[:1], new=6)
    assert [int(step.position[0]) for step in steps[1:]] == list(range(4, 9))


def test_larger_trees_are_verified_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8 tokens, whose parents may stand in another part; rows of different sizes."""
    monkeypatch.setattr(static_target, "SLOTS", 8)
    target = Target(language_model(FAMILIES["llama"]))
    draft, policy = random_eagle(target), Eagle2(K=4, levels=4, N=27)
    expected, _ = run(target, draft, policy, PROMPTS, new=14, eos=EOS)
    static = StaticTarget(target, rows=4, capacity=64, room=28)
    assert static.room == 32
    assert run(static, draft, policy, PROMPTS, new=14, eos=EOS)[0] == expected


@pytest.mark.skipif(triton is None or torch.cuda.is_available(), reason="needs Triton's interpreter")
@pytest.mark.parametrize("shape", slow_except(["tree", "chain"], "tree"))
def test_a_trees_logits_have_plain_decodings_bits(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16, by the kernels of a GPU and products of a fixed shape: those of every machine whose rows do not
    depend on each other, one after the other here."""
    normed: list[torch.Tensor] = []
    monkeypatch.setattr(RMSNorm, "__call__", lambda norm, x: normed.append(x) or triton_norm(x, norm))
    model = language_model(LlamaConfig(**WIDE)).to(torch.bfloat16)
    compute_rows_alone(model)
    monkeypatch.setattr(static_target, "SLOTS", 8)
    static = StaticTarget(Target(model), rows=1, capacity=80, room=16)
    prompt = torch.randint(0, SIZES["vocab_size"], (45,)).tolist()
    with as_on_a_gpu():
        result = parity(static, [prompt], [1, 3, 16], chain=shape == "chain")
    assert [row.differing for row in result.rows] == [0, 0, 0]
    assert result.rows[-1].nodes == 16
    assert normed


@torch.no_grad()
def test_norms_that_are_understood_run_row_by_row() -> None:
    model = language_model(FAMILIES["qwen3"]).bfloat16()
    tokens = torch.tensor([PROMPTS[1]])
    expected = model(tokens).logits
    replace_norms(model)
    replaced = [module for module in model.modules() if isinstance(getattr(module.forward, "__self__", None), RMSNorm)]
    assert len(replaced) == 2 * 4 + 1  # two norms of a layer and two of its heads
    assert model(tokens).logits.equal(expected)
