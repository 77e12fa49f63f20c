"""The law of sampled texts: chi-square of thousands of rows against the exact probabilities after generate's own
processors, for trees, for generate itself, and against the law of other settings, which it must tell apart."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, LlamaConfig, PreTrainedModel

from c2t import Eagle2
from c2t.hf import TreeDecoding
from c2t.models.target.target import Target
from c2t.policies import SpecInfer
from tests.marks import slow_except
from tests.test_law import chi_square, p_value
from tests.toys import FAMILIES, SIZES, language_model, perturbed

VOCABULARY, ROWS, NEW = 6, 4000, 3
PROMPT = torch.tensor([[3, 5, 1, 3]])
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"top_k": 0},
    "temperature": {"top_k": 0, "temperature": 0.6},
    "top-k": {"top_k": 3},
    "top-p": {"top_k": 0, "top_p": 0.8},
    "penalty": {"top_k": 0, "repetition_penalty": 1.8},
    "min-p": {"top_k": 0, "min_p": 0.25},
    "n-grams": {"top_k": 0, "no_repeat_ngram_size": 2},
    "typical": {"top_k": 0, "typical_p": 0.7},
    "all": {"top_k": 5, "top_p": 0.95, "temperature": 1.3, "repetition_penalty": 1.2, "min_p": 0.05},
}
POLICIES = {"ranked": Eagle2(K=3, levels=2, N=6), "sampled": SpecInfer((2, 1))}


@cache
def models(family: str = "llama") -> tuple[PreTrainedModel, PreTrainedModel]:
    """A model whose distributions are neither flat nor certain, and one that guesses it."""
    config = FAMILIES[family].to_dict() | {"vocab_size": VOCABULARY}
    model = language_model(AutoConfig.for_model(**config), spread=0.25)
    return model, perturbed(Target(model), noise=0.05).model.model


def sample(settings: str, decoding: TreeDecoding | None, family: str = "llama") -> Tensor:
    """How often each text of NEW tokens was written, (V,) * NEW."""
    torch.manual_seed(5)
    how = {"do_sample": True, "max_new_tokens": NEW, "num_return_sequences": ROWS, **SETTINGS[settings]}
    texts = models(family)[0].generate(PROMPT, **how, custom_generate=decoding)[:, PROMPT.shape[1] :]
    places = (texts * VOCABULARY ** torch.arange(NEW - 1, -1, -1)).sum(1)
    return torch.bincount(places, minlength=VOCABULARY**NEW).reshape([VOCABULARY] * NEW)


@cache
def law(settings: str, family: str = "llama") -> Tensor:
    """Exact probabilities of each text, by the processors that generate hands to a decoding method."""
    model, found = models(family)[0], []

    def capture(model: PreTrainedModel, input_ids: Tensor, logits_processor: Any, **_: Any) -> Tensor:
        found.append(logits_processor)
        return input_ids

    model.generate(PROMPT, do_sample=True, max_new_tokens=NEW, **SETTINGS[settings], custom_generate=capture)
    paths, probs = PROMPT, torch.ones(1, dtype=torch.float64)
    for _ in range(NEW):
        with torch.no_grad():
            logits = model(paths).logits[:, -1].float()
        probs = (probs[:, None] * found[0](paths, logits).double().softmax(-1)).flatten()
        new = torch.arange(VOCABULARY).repeat(len(paths))[:, None]
        paths = torch.cat([paths.repeat_interleave(VOCABULARY, 0), new], 1)
    return probs.reshape([VOCABULARY] * NEW)


@pytest.mark.parametrize("settings", slow_except(SETTINGS, "top-k"))
def test_sampled_texts_have_generates_law(settings: str) -> None:
    _, noisy = models()
    for policy in POLICIES.values():
        assert p_value(chi_square(sample(settings, TreeDecoding(noisy, policy=policy)), ROWS * law(settings))) > 1e-3
    assert p_value(chi_square(sample(settings, None), ROWS * law(settings))) > 1e-3, "or the law here is not generate's"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "gpt_oss"])  # the ones that differ most from Llama
def test_other_families_have_generates_law(family: str) -> None:
    decoding = TreeDecoding(models(family)[1], policy=POLICIES["ranked"])
    assert p_value(chi_square(sample("all", decoding, family), ROWS * law("all", family))) > 1e-3


@pytest.mark.slow
def test_the_laws_of_other_settings_are_told_apart() -> None:
    decoding = TreeDecoding(models()[1], policy=POLICIES["ranked"])
    observed = sample("plain", decoding)
    for name in set(SETTINGS) - {"plain"}:
        assert p_value(chi_square(observed, ROWS * law(name))) < 1e-6, name


@pytest.mark.slow
def test_the_silent_top_k_of_generate_is_kept() -> None:
    """`do_sample=True` alone brings top_k = 50."""
    model = language_model(LlamaConfig(**{**SIZES, "vocab_size": 200}), spread=0.05)  # nearly flat
    noisy = perturbed(Target(model), noise=0.01).model.model
    decoding = TreeDecoding(noisy, policy=POLICIES["ranked"], seed=1)
    how = {"do_sample": True, "max_new_tokens": 1, "num_return_sequences": 3000}
    first = model.generate(PROMPT, **how, custom_generate=decoding)[:, -1]
    allowed = model(PROMPT).logits[0, -1].topk(50).indices
    assert set(first.tolist()) == set(allowed.tolist())
