"""Which data type a language model is loaded in, where nobody chooses one."""

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM, PreTrainedConfig, Qwen3Config

from c2t.kernels.native import kernels
from c2t.models.loading import load_target
from c2t.models.loading.load import load_pair
from c2t.models.target import default_dtype
from tests.tiny_heads import saved
from tests.toys import language_model

needs_compiler = pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")
LLAMA = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("config", "stored", "pays", "wanted"),
    [
        (LlamaConfig(**LLAMA, vocab_size=61), torch.bfloat16, True, torch.bfloat16),
        (Qwen3Config(**LLAMA, vocab_size=61), torch.bfloat16, True, torch.bfloat16),
        (LlamaConfig(**LLAMA, vocab_size=61), torch.bfloat16, False, torch.float32),
        (LlamaConfig(**LLAMA, vocab_size=61), torch.float32, True, torch.float32),
        (GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=61), torch.bfloat16, True, torch.float32),
    ],
)
def test_bf16_where_it_is_stored_and_pays(
    config: PreTrainedConfig, stored: torch.dtype, pays: bool, wanted: torch.dtype, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(default_dtype, "bf16_is_faster", lambda: pays)
    language_model(config).to(stored).save_pretrained(tmp_path)
    assert default_dtype.default_dtype(str(tmp_path)) == wanted


def test_a_quantised_model_is_loaded_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_dtype, "bf16_is_faster", lambda: True)
    config = LlamaConfig(**LLAMA, vocab_size=61, dtype=torch.bfloat16, quantization_config={"quant_method": "fp8"})
    config.save_pretrained(tmp_path)
    assert default_dtype.default_dtype(str(tmp_path)) == torch.float32

    def refuse(model: torch.nn.Module) -> None:
        raise ValueError("`.float()` is not supported for quantized models")

    monkeypatch.setattr(load_target, "default_dtype", lambda *_: torch.float32)
    monkeypatch.setattr(load_target.PackedModel, "serves", lambda model: False)
    monkeypatch.setattr(LlamaForCausalLM, "float", refuse)
    assert load_pair("tiny").target.model.dtype == torch.float32


@pytest.mark.parametrize("served", [pytest.param(True, marks=needs_compiler), False])
def test_a_model_is_in_bf16_where_the_kernels_run_it(served: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_dtype, "bf16_is_faster", lambda: True)
    if not served:
        monkeypatch.setattr(load_target.PackedModel, "serves", lambda model: False)
        assert load_pair("tiny", dtype=torch.bfloat16).target.model.dtype == torch.bfloat16
    assert load_pair("tiny").target.model.dtype == (torch.bfloat16 if served else torch.float32)


@pytest.mark.parametrize(("draft", "stored"), [("eagle", True), ("eagle3", True), ("mtp", False), ("lm", True)])
def test_a_draft_that_the_kernels_do_not_run_keeps_its_pair_in_float32(
    draft: str, stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_dtype, "bf16_is_faster", lambda: True)
    monkeypatch.setattr(load_target.PackedModel, "serves", lambda model: True)
    place = saved(draft, tmp_path) if draft in ("eagle3", "mtp") else draft
    assert load_pair("tiny", draft=place).target.model.dtype == (torch.bfloat16 if stored else torch.float32)
