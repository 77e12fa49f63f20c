"""The batched sampler writes what the target would write alone."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pipelines.pair.target_texts import beginnings, write, write_texts


def small() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, num_key_value_heads=1, **sizes)).double().eval()


def test_greedy_text_is_that_of_generate() -> None:
    model, prompts = small(), torch.randint(32, (3, 4), generator=torch.Generator().manual_seed(1))
    text = write(model, prompts, 12, 0.0, torch.Generator())
    model.generation_config.eos_token_id = None
    expected = model.generate(prompts, do_sample=False, max_new_tokens=8)
    assert torch.equal(text, expected)


def test_beginnings_are_pieces_of_documents_behind_the_separator() -> None:
    documents = [list(range(0, 30)), [0, *range(40, 60)]]
    rows = beginnings(documents, 50, 6, 0, torch.Generator().manual_seed(0))
    assert rows.shape == (50, 6)
    assert (rows[:, 0] == 0).all()
    assert (rows[:, 2:] - rows[:, 1:-1] == 1).all()


def test_texts_repeat_with_the_seed() -> None:
    model, documents = small(), [[0, *([1, 2, 3] * 40)]]
    first = write_texts(model, documents, 0, rows=6, length=90, batch=4, seed=3)
    assert first.shape == (6, 90)
    assert torch.equal(first, write_texts(model, documents, 0, rows=6, length=90, batch=4, seed=3))
