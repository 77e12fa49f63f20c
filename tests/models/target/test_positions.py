"""Models whose frequencies or table end with their positions: trees reach past the last one, and nothing changes."""

import copy
from functools import cache

import pytest
import torch
from transformers import Gemma3TextConfig, GPT2Config, LlamaConfig, Phi3Config, PreTrainedConfig, PreTrainedModel

from c2t.batching import BatchDecoder
from c2t.hf import TreeDecoding
from c2t.models.drafts.eagle import EagleHead
from c2t.models.drafts.head_draft import EagleDraft
from c2t.models.drafts.language_model import DraftLM
from c2t.models.loading.load import Pair
from c2t.models.target.positions import positions_of, within
from c2t.models.target.target import Target
from c2t.policies import Chain, Eagle2
from c2t.protocols import Policy
from c2t.replay.lockstep import write_continuations
from c2t.sampling import Sampling
from tests.rounding import assert_same_network
from tests.toys import (
    KINDS,
    LONG,
    NO_TOKENS,
    SIZES,
    language_model,
    perturbed,
    randomise,
    run,
    toy_target,
    toy_tokenizer,
)

END = 24
SMALL = {**SIZES, "max_position_embeddings": END}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 40.0}
OF_LAYERS = {"full_attention": {**DYNAMIC}, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
MODELS: dict[str, PreTrainedConfig] = {
    "longrope": Phi3Config(**SIZES, original_max_position_embeddings=END, rope_parameters={**LONG}),
    "dynamic": LlamaConfig(**SMALL, rope_parameters={**DYNAMIC}),
    "dynamic in some layers": Gemma3TextConfig(
        **SMALL, **KINDS, head_dim=12, query_pre_attn_scalar=10, rope_parameters=OF_LAYERS
    ),
    "table": GPT2Config(vocab_size=48, n_embd=32, n_layer=2, n_head=4, n_positions=END, **NO_TOKENS),
}
POLICIES: dict[str, Policy] = {"eagle2": Eagle2(K=3, levels=6, N=16), "chain": Chain(6)}
LONG_TEXT, SHORT_TEXT = [(7 * n + 3) % 48 for n in range(END - 10)], [5, 9]


@cache
@torch.inference_mode(False)
def model_of(name: str) -> PreTrainedModel:
    return language_model(copy.deepcopy(MODELS[name]), spread=0.3)


def plain(model: PreTrainedModel, prompt: list[int], new: int) -> list[int]:
    return model.generate(torch.tensor([prompt]), max_new_tokens=new, do_sample=False)[0, len(prompt) :].tolist()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_long_rows_and_those_beside_them_are_what_generate_writes(name: str, policy: str) -> None:
    model = model_of(name)
    assert positions_of(model.config) == END
    trees = TreeDecoding(perturbed(Target(model), noise=0.01).model.model, policy=POLICIES[policy])
    padded = torch.tensor([LONG_TEXT, [0] * (len(LONG_TEXT) - 2) + SHORT_TEXT])
    mask = torch.ones_like(padded)
    mask[1, :-2] = 0
    if name != "table":
        plain(model, LONG_TEXT, 20)  # the caller may go further, which leaves other frequencies behind
    found = model.generate(padded, attention_mask=mask, max_new_tokens=10, do_sample=False, custom_generate=trees)
    assert found[:, len(LONG_TEXT) :].tolist() == [plain(model, text, 10) for text in (LONG_TEXT, SHORT_TEXT)]


@pytest.mark.parametrize("name", ["longrope", "dynamic"])
def test_rows_that_join_change_nothing(name: str) -> None:
    model = model_of(name)
    target = Target(model)
    pair = Pair(name, target, perturbed(target, noise=0.01), toy_tokenizer(), "", {})
    decoder = BatchDecoder(pair, POLICIES["eagle2"])
    short = decoder.submit(SHORT_TEXT, END - 2)
    decoder.step()
    long = decoder.submit(LONG_TEXT, 10)
    while decoder.running or decoder.waiting:
        decoder.step()
    assert short.tokens == plain(model, SHORT_TEXT, END - 2)
    assert long.tokens == plain(model, LONG_TEXT, 10)


def heads() -> dict[str, DraftLM | EagleDraft]:
    """Drafts of a target with more positions than theirs."""
    target = toy_target()
    config = LlamaConfig(**{**SMALL, "num_hidden_layers": 1}, rope_parameters={**DYNAMIC})
    head = randomise(EagleHead(config).double(), 1, spread=0.3).eval()
    head.embed_tokens = target.embed_tokens
    return {"lm": DraftLM(Target(model_of("dynamic"))), "eagle": EagleDraft(head, target.lm_head)}


@pytest.mark.parametrize("name", ["lm", "eagle"])
def test_guesses_for_a_row_do_not_hang_on_longer_rows(name: str) -> None:
    draft, policy = heads()[name], Eagle2(K=3, levels=3, N=8)
    longer = [text % 48 for text in range(END + 5)]
    _, beside = run(toy_target(), draft, policy, [SHORT_TEXT, longer], new=12)
    _, alone = run(toy_target(), draft, policy, [SHORT_TEXT], new=12)
    for one, both in zip(alone[1:], beside[1:], strict=False):
        assert one.tree.token[0].tolist() == both.tree.token[0].tolist()
        assert_same_network(one.tree.log_joint[0], both.tree.log_joint[0])


@torch.no_grad()
def test_what_lies_behind_the_end_leaves_a_texts_features_alone() -> None:
    """Texts of a replay are written further than they are cut."""
    model = model_of("dynamic")
    (text,) = write_continuations(Target(model), [LONG_TEXT], max_new_tokens=10, beyond=7, sampling=Sampling())
    assert text.end == END < len(text.tokens)
    own = model(text.tokens[None, : END - 1], output_hidden_states=True).hidden_states[-1][0]
    assert_same_network(text.features[: END - 1], own)
    assert text.tokens[len(LONG_TEXT) : END].tolist() == plain(model, LONG_TEXT, 10)


def test_frequencies_that_depend_on_nothing_have_no_end() -> None:
    far = torch.tensor([[3, END - 1, END, 999]])
    assert within(far, LlamaConfig(**SMALL)).equal(far)
    assert within(far, Gemma3TextConfig(**SMALL, **KINDS)).equal(far)
    for config in MODELS.values():
        assert within(far, config).tolist() == [[3, END - 1, END - 1, END - 1]]
