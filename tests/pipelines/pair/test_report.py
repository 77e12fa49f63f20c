"""The report's figures on models whose answer is known."""

import math

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from c2t.models.drafts.language_model import DraftLM
from c2t.models.loading.load import Pair
from c2t.models.target.target import Target
from c2t.sampling import Sampling
from c2t.study.evaluate import continuations
from pipelines.pair.recipes import PAIRS
from pipelines.pair.report import agreement, entropy, table
from tests.rounding import assert_within, entropy_bound

PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]


def lm(seed: int) -> Target:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return Target(LlamaForCausalLM(LlamaConfig(vocab_size=32, num_key_value_heads=1, **sizes)))


@torch.inference_mode()
def test_the_target_agrees_with_itself_and_a_stranger_does_not() -> None:
    target, tokenizer = lm(0), AutoTokenizer.from_pretrained(PAIRS["tiny"].out / "target")
    for draft, least, most in ((target, 1.0, 1.0), (lm(1), 0.0, 0.5)):
        pair = Pair("small", target, DraftLM(draft), tokenizer, "", {})
        texts = continuations(pair, PROMPTS, 24, 2, Sampling(0.8, seed=0))
        choices = [target.lm_head(text.features).argmax(-1) for text in texts]
        assert least <= agreement(pair, texts, choices) <= most


def test_entropy_of_even_and_of_sure_distributions() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [200.0, 0.0, 0.0, 0.0]])
    exact = torch.tensor([math.log(4), 0.0], dtype=torch.float64)
    assert_within(entropy(logits, 0.8), exact, entropy_bound(exact, logits[:1]))


def test_table_is_markdown() -> None:
    assert table([{"domain": "code", "tau": 2.5}]) == "| domain | tau |\n| --- | --- |\n| code | 2.50 |"
