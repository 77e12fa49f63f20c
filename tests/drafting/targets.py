"""A small target of random weights, and texts of it."""

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from c2t.drafting import kinds
from c2t.drafting.library import Text, WrittenText
from c2t.models.drafts.eagle import EagleHead, Head
from c2t.models.target.target import Target

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
END = 2


def small_target() -> Target:
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, vocab_size=48, num_hidden_layers=7, eos_token_id=END, initializer_range=0.3)
    loaded = Target(LlamaForCausalLM(config).double().requires_grad_(False))
    loaded.tap((2, 3, 4))
    return loaded


def text_of(ids: list[int], question: int, source: str = "code", width: int = SIZES["hidden_size"]) -> WrittenText:
    states, inputs = torch.randn(len(ids) - 1, SIZES["hidden_size"]), torch.randn(len(ids) - 1, width)
    answer = torch.tensor(ids[question:], dtype=torch.int32)
    number = torch.tensor(ids, dtype=torch.int32)
    return WrittenText(number, question, answer, states, inputs, "asked", source, 0.0, True)


def some_texts(kind: str) -> list[Text]:
    """Texts whose inputs are the features, or for kinds that read them tapped states."""
    width = 3 * SIZES["hidden_size"]
    texts = [
        text_of(ids, question, width=width)
        for ids, question in (([3, 4, 5, 6, 7, 8, 9], 3), ([9, 8, 7, 6], 2), ([1, 3, 3, 4, 5, 7, 5, 9], 2))
    ]
    return texts if kinds.KINDS[kind].taps else [text._replace(inputs=text.features) for text in texts]


def in_float32(target: Target) -> LlamaForCausalLM:
    """A copy of the target, as training has it."""
    model = LlamaForCausalLM(target.model.config).requires_grad_(False)
    model.load_state_dict(target.model.state_dict())
    return model


def given(target: Target, kind: str, eagle: EagleHead | None = None) -> kinds.Given:
    model = in_float32(target)
    embedding = nn.Embedding.from_pretrained(model.model.embed_tokens.weight)
    return kinds.Given(Target(model), embedding, torch.arange(40), some_texts(kind), eagle)


def new_head(kind: str, target: Target) -> Head:
    eagle = kinds.new_eagle(given(target, "eagle")) if kind == "medusa" else None
    return kinds.KINDS[kind].make(given(target, kind, eagle))
