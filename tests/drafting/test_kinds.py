"""Heads begin near what is there: an EAGLE-3 head near an EAGLE-1 head, a Medusa-style one on its layer."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, GPT2Config, GPT2LMHeadModel

from c2t.drafting import kinds, learner
from c2t.errors import InputError
from c2t.models.target.target import Target
from tests.drafting.targets import SIZES, given, small_target, some_texts, text_of
from tests.rounding import assert_same_sums


@pytest.fixture(scope="module")
def target() -> Target:
    return small_target()


def test_frequent_tokens_are_those_of_the_answers() -> None:
    assert learner.frequent([text_of([8, 8, 5, 5, 1, 7], 2), text_of([7, 7, 3, 0, 0], 0)], 9, 3).tolist() == [0, 5, 7]


def test_a_step_compares_frequent_tokens_its_own_and_some_others() -> None:
    batch = [text_of([3, 4, 9_000, 46, 47], 2), text_of([3, 9_001], 1)]
    torch.manual_seed(0)
    first, second = (learner.compared_tokens(torch.arange(100), batch, 10_000) for _ in range(2))
    for found in (first, second):
        assert found.equal(found.unique())
        assert {*range(100), 9_000, 9_001} < set(found.tolist())
        assert 100 + learner.SAMPLED // 2 < len(found) <= 102 + learner.SAMPLED
    assert set(first.tolist()) != set(second.tolist())


def test_eagle3_begins_with_what_eagle_knows(target: Target) -> None:
    """fc guesses the post-norm state, and the attention reads it and the token as EAGLE-1's does."""
    width, eagle = SIZES["hidden_size"], kinds.new_eagle(given(target, "eagle"))
    torch.manual_seed(1)
    known, unit = torch.randn(3 * width, width), partial(F.rms_norm, normalized_shape=(width,))
    texts = [text._replace(features=unit(text.inputs @ known)) for text in some_texts("eagle3") * 20]
    with torch.no_grad():
        eagle.embed_tokens.weight.copy_(unit(eagle.embed_tokens.weight))  # norms of the sizes that they are fitted to
        head = kinds.new_eagle3(given(target, "eagle3", eagle)._replace(texts=texts))
        taps, features = (torch.cat([getattr(text, name) for text in texts]) for name in ("inputs", "features"))
        assert F.mse_loss(head.fc(taps), features) < 0.2 * features.var()
        embedded, state = eagle.embed_tokens(torch.arange(5)), features[:5]
        ours = torch.cat([head.midlayer.input_layernorm(embedded), head.midlayer.hidden_norm(state)], -1)
        theirs = eagle.fc(torch.cat([embedded, state], -1))
        for name in ("q_proj", "k_proj", "v_proj"):
            found, wanted = (
                layer.self_attn.get_submodule(name)(read)
                for layer, read in ((head.midlayer, ours), (eagle.layers[0], theirs))
            )
            assert_same_sums(found, wanted)
        for part in ("mlp", "post_attention_layernorm", "self_attn.o_proj"):
            for name, weight in eagle.layers[0].get_submodule(part).named_parameters():
                assert head.midlayer.get_submodule(part).get_parameter(name).equal(weight), (part, name)
        assert_same_sums(head.readable(features), features)


def test_medusa_has_the_layer_of_eagle_and_leaves_it_alone(target: Target) -> None:
    eagle = kinds.new_eagle(given(target, "eagle"))
    medusa = kinds.new_medusa(given(target, "medusa", eagle))
    for name, tensor in eagle.state_dict().items():
        assert medusa.state_dict()[name].equal(tensor), name
    blocks = {f"heads.{block}.{part}" for block in range(kinds.MEDUSA_HEADS) for part in ("weight", "bias")}
    assert kinds.KINDS["medusa"].learned(medusa).keys() == blocks
    with pytest.raises(InputError, match="no EAGLE-1 head"):
        kinds.new_medusa(given(target, "medusa"))


def test_a_head_has_the_width_of_a_target_of_any_family() -> None:
    """Also of one whose attention heads are of another size, whose embedding is scaled, and of a large vocabulary."""
    config = Gemma3TextConfig(
        hidden_size=128, intermediate_size=1000, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1,
        head_dim=64, vocab_size=70_000,
    )  # fmt: skip
    layer = kinds.one_layer(Target(Gemma3ForCausalLM(config)))
    assert (layer.hidden_size, layer.vocab_size, layer.head_dim, layer.num_attention_heads) == (128, 70_000, 64, 2)
    assert layer.intermediate_size == 384
    config = GPT2Config(n_embd=96, n_layer=1, n_head=3, vocab_size=48)  # which names no such size
    layer = kinds.one_layer(Target(GPT2LMHeadModel(config)))
    assert (layer.hidden_size, layer.intermediate_size) == (96, 256)
