"""`model.generate(..., custom_generate=TreeDecoding(...))` against `model.generate(...)`: the same tokens at T = 0, the
same model afterwards, and one line for what it does not serve."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    LlamaConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StaticCache,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.streamers import BaseStreamer

from c2t import C2T, Eagle2, InputError, Plain
from c2t.hf import TreeDecoding
from c2t.kernels.decoder_layers import Kind, works
from c2t.kernels.native import kernels
from c2t.models.drafts.eagle3 import Eagle3Head
from c2t.models.loading.eagle_checkpoint import save_head
from c2t.models.loading.load import load_pair
from c2t.models.target.target import Target
from c2t.policies import Hierarchical, JointThreshold, MCSDPlus, SpecInfer
from c2t.sessions.coupled import NOISE_SCALE, scaled
from tests.eagle_reference import CONFIG, head_state, write_head
from tests.marks import slow_except
from tests.rounding import figure
from tests.toys import (
    FAMILIES,
    SIZES,
    VOCABULARY,
    language_model,
    perturbed,
    randomise,
    save_language_model,
    toy_classifier,
)

PAD, EOS = 0, [47, 12]
# Left padded, of lengths 4, 9, 1.
PROMPTS = torch.tensor([[PAD] * 5 + [1, 5, 9, 40], [2, 3, 4, 5, 6, 7, 8, 9, 10], [PAD] * 8 + [3]])
MASK = (torch.arange(9) >= torch.tensor([[5], [0], [8]])).long()
BATCH = {"inputs": PROMPTS, "attention_mask": MASK, "max_new_tokens": 20, "do_sample": False}
ONE = {"inputs": PROMPTS[1:2], "max_new_tokens": 20, "do_sample": False}
ENDING = {"eos_token_id": EOS, "pad_token_id": PAD}
TREE = Eagle2(K=4, levels=3, N=10)
PACKABLE = LlamaConfig(**{**SIZES, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2})


class Repeats(LogitsProcessor):
    """Adds to a token's score the times that it stands in the text, so the text decides at every position."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores - torch.stack([row.bincount(minlength=VOCABULARY) for row in input_ids]).to(scores)


class Sum(StoppingCriteria):
    """Ends a text when its last two tokens add up to a multiple of five."""

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        return input_ids[:, -2:].sum(1) % 5 == 0


def allowed(row: int, text: Tensor) -> list[int]:
    """Only tokens of the text's last token's half, and of the row's own class."""
    return [token for token in range(VOCABULARY) if (token + row) % 3 or token % 2 == int(text[-1]) % 2]


SETTINGS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "eos": lambda: ENDING,
    "repetition penalty": lambda: {"repetition_penalty": 1.3, **ENDING},
    "n-grams": lambda: {"no_repeat_ngram_size": 2, **ENDING},
    "bad words": lambda: {"bad_words_ids": [[3], [5, 6], [7, 8, 9]], **ENDING},
    "bias": lambda: {"sequence_bias": [[[3], 2.0], [[5, 6], -3.0]], **ENDING},
    "least length": lambda: {"min_new_tokens": 15, **ENDING},
    "forced end": lambda: {"forced_eos_token_id": 11, "eos_token_id": 11, "pad_token_id": PAD},
    "prefixes": lambda: {"prefix_allowed_tokens_fn": allowed, **ENDING},
    "a user's processor": lambda: {"logits_processor": LogitsProcessorList([Repeats()]), **ENDING},
    "a user's criterion": lambda: {"stopping_criteria": StoppingCriteriaList([Sum()]), **ENDING},
    "a criterion, no eos": lambda: {"stopping_criteria": StoppingCriteriaList([Sum()])},
    "decaying length": lambda: {"exponential_decay_length_penalty": (3, 1.3), **ENDING},
    "suppressed": lambda: {"suppress_tokens": [3, 9], "begin_suppress_tokens": [5], **ENDING},
}


# Settings act on logits, wherever these come from: the other families need not see all of them.
RUNS = [("llama", name) for name in SETTINGS]
RUNS += [(family, name) for family in FAMILIES if family != "llama" for name in ("plain", "eos", "prefixes")]


@pytest.fixture(scope="module")
def pairs() -> Callable[[str], tuple[PreTrainedModel, PreTrainedModel]]:
    """family -> a model, and one that often guesses what it writes."""
    made: dict[str, tuple] = {}

    def pair(family: str) -> tuple[PreTrainedModel, PreTrainedModel]:
        if family not in made:
            model = language_model(FAMILIES[family])
            made[family] = model, perturbed(Target(model)).model.model
        return made[family]

    return pair


def same_text(model: PreTrainedModel, decoding: TreeDecoding, **settings: Any) -> list[list[int]]:
    """Return what generate writes by itself, and by trees too."""
    own = model.generate(**settings).tolist()
    assert model.generate(**settings, custom_generate=decoding).tolist() == own
    return own


@pytest.mark.parametrize(
    ("family", "name"), [run if run[0] == "llama" else pytest.param(*run, marks=pytest.mark.slow) for run in RUNS]
)
def test_greedy_text_is_generates_own(pairs, family: str, name: str) -> None:
    model, noisy = pairs(family)
    decoding, settings = TreeDecoding(noisy, policy=TREE), SETTINGS[name]()
    for call in (BATCH, ONE):
        same_text(model, decoding, **call, **settings)


def test_the_settings_change_the_text(pairs) -> None:
    """Or the test above would say nothing about them."""
    model, _ = pairs("llama")
    free = model.generate(**BATCH, **ENDING).tolist()
    alike = [name for name, make in SETTINGS.items() if model.generate(**BATCH, **make()).tolist() == free]
    assert alike == ["eos"]
    assert any(0 < row.index(end) < 19 for row in [text[9:] for text in free] for end in EOS if end in row)


def test_other_policies_write_the_same(pairs) -> None:
    model, noisy = pairs("llama")
    for decoding in (
        TreeDecoding(noisy, policy=SpecInfer((3, 2))),
        TreeDecoding(noisy, policy="threshold:threshold=0.1,K=4"),
        TreeDecoding(noisy, policy="c2t:beta=0.2,K=3", classifier=toy_classifier()),
        TreeDecoding(policy=Plain()),
        TreeDecoding(noisy, classifier=toy_classifier(), beta=0.2),
    ):
        same_text(model, decoding, **BATCH, **ENDING, repetition_penalty=1.2)


def test_float32_on_the_packed_kernels_writes_the_same() -> None:
    model = language_model(PACKABLE).float()
    decoding = TreeDecoding(perturbed(Target(language_model(PACKABLE))).model.model.float(), policy=TREE)
    same_text(model, decoding, **BATCH, **ENDING)
    assert (decoding._for(model).target.packed is None) == (kernels() is None)


def test_changed_weights_are_noticed() -> None:
    model = language_model(PACKABLE).float()
    decoding = TreeDecoding(policy=Plain())
    texts = [same_text(model, decoding, **BATCH)]
    for change in (
        lambda: randomise(model, seed=7),
        lambda: model.load_state_dict(language_model(PACKABLE, seed=8).float().state_dict()),
        lambda: model.set_output_embeddings(randomise(torch.nn.Linear(64, VOCABULARY, bias=False), seed=9)),
    ):
        change()
        texts.append(same_text(model, decoding, **BATCH))
        assert texts[-1] != texts[-2]


class Counts(LogitsProcessor):
    """A state of its own: adds to the score of a token how often it came last in the texts that were asked about."""

    def __init__(self):
        self.last = torch.zeros(VOCABULARY)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.last[input_ids[0, -1]] += 1
        return scores + self.last


@pytest.mark.parametrize("name", ["prefixes", "state", "top-k"])
def test_int4_rounds_are_not_seen_by_what_reads_texts(name: str) -> None:
    """They are taken back."""
    model = language_model(FAMILIES["llama"])
    decoding = TreeDecoding(perturbed(Target(model)).model.model, policy=Plain())
    loaded = decoding._for(model)
    vars(loaded.target)["quantized"] = perturbed(loaded.target, 0.03).model
    decoding.policy = Hierarchical(TREE, 3)
    make: Callable[[], dict[str, Any]] = {
        **SETTINGS,
        "state": lambda: {"logits_processor": LogitsProcessorList([Counts()])},
        "top-k": lambda: {"do_sample": True, "top_k": 5},
    }[name]
    decoding.seed = 3
    plain = TreeDecoding(policy=Plain(), seed=3)
    own = model.generate(**(ONE | make()), custom_generate=plain)
    assert model.generate(**(ONE | make()), custom_generate=decoding).equal(own)
    assert not model.generate(**ONE, custom_generate=plain).equal(own)


class Spy:
    """TREE, which tells the draft and the tree of every round."""

    proposal, exact, levels = TREE.proposal, True, TREE.levels

    def __init__(self, tell: Callable[[Any, Any], None]):
        self.tell = tell

    def __call__(self, draft: Any, root: Any) -> Any:
        tree = TREE(draft, root)
        self.tell(draft, tree)
        return tree


@pytest.mark.parametrize(("settings", "expected"), [({}, 1.0), ({"temperature": 0.6, "top_p": 0.9}, 0.6)], ids=str)
def test_trees_hear_the_noise_of_sampled_texts(pairs, settings: dict[str, float], expected: float) -> None:
    """At the temperature that generate's processors divide by."""
    model, noisy = pairs("llama")
    decoding, heard = TreeDecoding(noisy, policy=TREE, seed=2), []
    decoding.policy = Spy(lambda draft, _: heard.extend(scaled(draft.noise()).temperature.tolist()))
    how = {**ONE, "do_sample": True, **settings}
    plain = model.generate(**how, custom_generate=TreeDecoding(policy=Plain(), seed=2))
    assert model.generate(**how, custom_generate=decoding).tolist() == plain.tolist()
    assert heard == figure([NOISE_SCALE * expected] * len(heard), 2, torch.float32)
    assert 0 < len(heard) < 20


@pytest.mark.skipif(Kind.INT8 not in works(), reason="this processor has no products of bytes")
def test_a_model_with_int4_rounds_is_afterwards_as_it_was() -> None:
    sizes = {**SIZES, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
    model = language_model(LlamaConfig(**sizes), spread=0.3).float()
    model.model.layers[0].mlp.train()
    before = state_of(model)
    decoding = TreeDecoding(policy=Hierarchical(Plain(), 4))
    for _ in range(2):
        same_text(model, decoding, **BATCH)
        assert state_of(model) == before
    model.model.layers[0].mlp.register_forward_hook(lambda _, __, out: out + 1)
    with pytest.raises(InputError, match="its layers have hooks"):
        model.generate(**BATCH, custom_generate=decoding)


def test_several_sequences_and_a_dictionary(pairs) -> None:
    model, noisy = pairs("llama")
    decoding = TreeDecoding(noisy, policy=TREE, seed=3)
    settings = {**BATCH, **ENDING, "do_sample": True, "num_return_sequences": 3, "return_dict_in_generate": True}
    output = model.generate(**settings, custom_generate=decoding)
    assert isinstance(output, GenerateDecoderOnlyOutput)
    assert output.sequences.shape[0] == 9
    assert output.sequences[:, :9].equal(PROMPTS.repeat_interleave(3, 0))
    assert len({tuple(row) for row in output.sequences[:3].tolist()}) == 3, "each has a random stream of its own"
    assert not output.sequences.is_inference()
    again = model.generate(**settings, custom_generate=decoding)
    assert again.sequences.equal(output.sequences)


def test_without_a_seed_manual_seed_decides(pairs) -> None:
    model, noisy = pairs("llama")
    decoding = TreeDecoding(noisy, policy=TREE)

    def text() -> list[list[int]]:
        return model.generate(**{**ONE, "do_sample": True}, custom_generate=decoding).tolist()

    torch.manual_seed(1)
    first, second = text(), text()
    torch.manual_seed(1)
    assert first == text() != second


# Streaming


class Collector(list, BaseStreamer):
    def put(self, value: Tensor) -> None:
        self.append(value.tolist())

    def end(self) -> None:
        self.append("end")


@pytest.mark.parametrize("given_to", ["the object", "generate"])
def test_a_streamer_gets_what_generate_gives_it(pairs, given_to: str) -> None:
    model, noisy = pairs("llama")
    own, trees = Collector(), Collector()
    model.generate(**ONE, **ENDING, streamer=own)
    to_object, to_generate = ({"streamer": trees}, {}) if given_to == "the object" else ({}, {"streamer": trees})
    model.generate(**ONE, **ENDING, **to_generate, custom_generate=TreeDecoding(noisy, policy=TREE, **to_object))
    assert own == trees
    assert trees.count("end") == 1


# The caller's model


def state_of(model: PreTrainedModel) -> dict[str, Any]:
    """Everything about a model that decoding could leave changed."""
    modules = dict(model.named_modules())
    return {
        "training": {name: module.training for name, module in modules.items()},
        "hooks": {name: [*m._forward_hooks.values(), *m._forward_pre_hooks.values()] for name, m in modules.items()},
        "attributes": {name: sorted(vars(module)) for name, module in modules.items()},
        "attention": model.config._attn_implementation,
        "config": model.config.to_dict(),
        "generation": model.generation_config.to_dict(),
        "weights": {name: (weight.data_ptr(), weight._version) for name, weight in model.named_parameters()},
        "gradients": {name: weight.requires_grad for name, weight in model.named_parameters()},
    }


@pytest.fixture
def deep(tmp_path: Path) -> tuple[PreTrainedModel, Path]:
    """A target deep enough for an EAGLE-3 head, and such a head on disk."""
    model = language_model(LlamaConfig(**{**SIZES, "num_hidden_layers": 7}), spread=0.2)
    head = randomise(Eagle3Head(LlamaConfig(**{**SIZES, "num_hidden_layers": 1}), VOCABULARY), seed=5, spread=0.3)
    save_head(head, tmp_path / "head")
    return model, tmp_path / "head"


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_model_is_afterwards_as_it_was(deep, attention: str) -> None:
    model, head = deep
    model.set_attn_implementation(attention)
    model.model.layers[3].mlp.train()
    before = state_of(model)
    decoding = TreeDecoding(head, policy=TREE)
    for _ in range(2):
        same_text(model, decoding, **ONE)
        assert state_of(model) == before
    with pytest.raises(ZeroDivisionError):
        model.generate(**BATCH, custom_generate=decoding, stopping_criteria=StoppingCriteriaList([lambda *_: 1 / 0]))
    assert state_of(model) == before


def test_the_features_of_an_eagle3_head_are_tapped_in_every_call(deep) -> None:
    """A head without its taps would guess worse or not at all; its guesses are those of a fresh object."""
    model, head = deep
    guesses = []
    for decoding in (again := TreeDecoding(head, policy=TREE), again, TreeDecoding(head, policy=TREE)):
        seen = []
        decoding.policy = Spy(lambda _, tree, seen=seen: seen.append(tree.token.tolist()))
        model.generate(**BATCH, custom_generate=decoding)
        guesses.append(seen)
    assert guesses[0] == guesses[1] == guesses[2]


def test_a_model_that_is_gone_is_not_kept(tmp_path: Path) -> None:
    model = language_model(FAMILIES["llama"])
    save_head_of_toys(tmp_path)
    decoding = TreeDecoding(tmp_path, policy=TREE)
    model.generate(**ONE, custom_generate=decoding)
    assert len(decoding._loaded) == 1
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert len(decoding._loaded) == 0


def save_head_of_toys(folder: Path) -> None:
    write_head(folder, {**CONFIG, "vocab_size": VOCABULARY}, head_state({**CONFIG, "vocab_size": VOCABULARY}))


def test_hooks_inside_of_the_model_are_run() -> None:
    """Packed kernels would pass over them."""
    model, decoding = language_model(PACKABLE).float(), TreeDecoding(policy=Plain())
    free = model.generate(**BATCH, custom_generate=decoding)
    steer = model.model.layers[0].mlp.register_forward_hook(lambda _, __, out: out + 1)
    assert same_text(model, decoding, **BATCH) != free.tolist()
    steer.remove()
    assert model.generate(**BATCH, custom_generate=decoding).equal(free)
    model.register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match="LlamaForCausalLM has a forward hook"):
        model.generate(**BATCH, custom_generate=decoding)


def offloaded(model: PreTrainedModel, module: torch.nn.Module) -> None:
    """Keep a module's weights away from it but while it is called, as accelerate does for those on a disk. It hooks the
    whole model, too, whose forward is then no longer its class's own."""
    hooks = pytest.importorskip("accelerate.hooks")
    hooks.add_hook_to_module(module, hooks.AlignDevicesHook(execution_device="cpu", offload=True))
    hooks.add_hook_to_module(model, hooks.AlignDevicesHook(execution_device="cpu", io_same_device=True))
    assert module.weight.is_meta


@pytest.mark.parametrize("config", [FAMILIES["qwen2"], PACKABLE], ids=["transformers' layers", "packed kernels"])
def test_an_embedding_on_disk_is_read_when_it_is_called(config: LlamaConfig, tmp_path: Path) -> None:
    model = language_model(config).float()
    noisy, own = perturbed(Target(language_model(config))).model.model.float(), model.generate(**BATCH)
    for each in (model, noisy):
        offloaded(each, each.get_input_embeddings())
    for draft in ("lookup", noisy):
        assert model.generate(**BATCH, custom_generate=TreeDecoding(draft, policy=TREE)).equal(own)
    save_head_of_toys(tmp_path)
    with pytest.raises(InputError, match=r"the target's embedding is offloaded, .* give it a device in device_map"):
        model.generate(**BATCH, custom_generate=TreeDecoding(tmp_path, policy=TREE))


def test_an_lm_head_on_disk_serves_heads_that_do_not_take_rows_of_it(tmp_path: Path) -> None:
    model = language_model(FAMILIES["llama"])
    own = model.generate(**BATCH)
    offloaded(model, model.lm_head)
    save_head_of_toys(tmp_path)
    assert model.generate(**BATCH, custom_generate=TreeDecoding(tmp_path, policy=TREE)).equal(own)
    save_file({"tokens": torch.tensor([1, 5, 9, 30, 40])}, tmp_path / "tokens.safetensors")
    with pytest.raises(InputError, match="the target's LM head is offloaded"):
        model.generate(**BATCH, custom_generate=TreeDecoding(tmp_path, policy=TREE))


# Refusals


class Stateful(LogitsProcessor):
    __module__ = "transformers.generation.logits_process"

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 2}, "ask generate for beam_search"),
    "lookup": ({"prompt_lookup_num_tokens": 2}, "ask generate for assisted_generation"),
    "scores": (
        {"return_dict_in_generate": True, "output_scores": True},
        "output_scores: tree decoding returns sequences only",
    ),
    "static cache": ({"cache_implementation": "static"}, "a StaticCache cannot hold trees"),
    "own static cache": (
        {"past_key_values": lambda model: StaticCache(model.config, 64)},
        "a StaticCache cannot hold trees",
    ),
    "filled cache": (
        {"past_key_values": lambda model: model(PROMPTS[:, :4], use_cache=True).past_key_values},
        "c2t has a cache of its own",
    ),
    "padding on the right": ({"attention_mask": MASK.flip(1)}, "attention_mask has zeros after ones"),
    "positions": ({"position_ids": torch.arange(9).expand(3, -1) + 3}, "position_ids"),
    "guidance": ({"guidance_scale": 2.0}, "UnbatchedClassifierFreeGuidanceLogitsProcessor cannot be applied to trees"),
    "unknown processor": (
        {"logits_processor": LogitsProcessorList([Stateful()])},
        "Stateful cannot be applied to trees",
    ),
    "hot": ({"do_sample": True, "temperature": 1e39}, r"temperature = 1e\+39: must be 0"),
    "nothing left": ({"suppress_tokens": list(range(VOCABULARY))}, "the logits processors exclude every token"),
    "long": ({"max_new_tokens": 1000}, "1000 new ones exceed the target's 256 positions"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_served_is_refused_in_one_line(pairs, name: str) -> None:
    model, noisy = pairs("llama")
    settings, message = REFUSED[name]
    settings = {key: value(model) if key == "past_key_values" else value for key, value in settings.items()}
    with pytest.raises(InputError, match=message) as raised:
        model.generate(**{**BATCH, **settings}, custom_generate=TreeDecoding(noisy, policy=TREE))
    assert len(str(raised.value).splitlines()) == 1


def test_texts_may_end_with_the_models_last_position(pairs) -> None:
    """The last trees reach past it, where gpt2 has no embedding."""
    for family in ("gpt2", "llama"):
        model, noisy = pairs(family)
        prompt = torch.arange(240)[None] % VOCABULARY
        settings = {"inputs": prompt, "max_new_tokens": 16, "do_sample": False}
        [text] = same_text(model, TreeDecoding(noisy, policy=TREE), **settings)
        assert len(text) == 256


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_attention_that_takes_no_tree_comes_back_afterwards(pairs, family: str) -> None:
    model, noisy = pairs(family)
    attention, own = model.config._attn_implementation, model.generate(**ONE)
    model.set_attn_implementation("flex_attention")
    try:
        assert model.generate(**ONE, custom_generate=TreeDecoding(noisy, policy=TREE)).equal(own)
        assert model.config._attn_implementation == "flex_attention"
    finally:
        model.set_attn_implementation(attention)


def test_token_types_and_several_streamed_texts_are_refused(pairs) -> None:
    model, noisy = pairs("gpt2")
    decoding = TreeDecoding(noisy, policy=TREE)
    with pytest.raises(InputError, match="token_type_ids: tree decoding reads"):
        model.generate(**BATCH, token_type_ids=torch.zeros_like(PROMPTS), custom_generate=decoding)
    with pytest.raises(InputError, match="a streamer shows one text, not 3"):
        model.generate(**BATCH, streamer=Collector(), custom_generate=decoding)


NO_TYPES = {"a policy's class", "seed"}  # which checks of types would catch
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no draft": ({"policy": TREE}, "draft: give a folder"),
    "no pair of this name": ({"draft": "nobody"}, "no draft is called 'nobody'"),
    "policy and beta": ({"draft": "tiny", "policy": TREE, "beta": 0.5}, "leave out classifier and beta"),
    "a classifier that nothing reads": (
        {"draft": "tiny", "policy": "threshold", "classifier": "nowhere"},
        "policy = 'threshold' reads no classifier: leave 'nowhere' out",
    ),
    "text without classifier": ({"draft": None, "policy": "c2t"}, "policy = 'c2t' reads a classifier: give it with"),
    "text and beta": ({"draft": "tiny", "policy": "c2t", "beta": 0.5}, "leave out classifier and beta"),
    "beta alone": ({"draft": "a/b", "beta": 0.5}, "give the classifier too"),
    "not exact": ({"draft": "tiny", "policy": MCSDPlus(W=2, D=2)}, "MCSDPlus is not exact"),
    "a policy's class": ({"draft": "tiny", "policy": Eagle2}, "is a class"),
    "a policy's name": ({"draft": "tiny", "policy": "eagle"}, "no policy is called 'eagle'"),
    "another's classifier": ({"draft": "lookup", "policy": "c2t"}, "no classifier is called 'lookup'"),
    "seed": ({"draft": "tiny", "seed": 0.5}, "seed = 0.5"),
}


@pytest.mark.parametrize("name", slow_except(WRONG, *(set(WRONG) - NO_TYPES)))
def test_wrong_settings_are_refused_where_the_object_is_made(name: str) -> None:
    settings, message = WRONG[name]
    with pytest.raises(InputError, match=message):
        TreeDecoding(**settings)


def test_a_draft_of_another_target_is_refused(pairs, tmp_path: Path) -> None:
    model, _ = pairs("llama")
    with pytest.raises(InputError, match="the draft head has hidden_size 256, the target 32"):
        model.generate(**ONE, custom_generate=TreeDecoding("tiny"))
    other = language_model(LlamaConfig(**{**SIZES, "vocab_size": 50}))
    with pytest.raises(InputError, match="LlamaForCausalLM: the draft has 50 tokens, the target 48"):
        model.generate(**ONE, custom_generate=TreeDecoding(other, policy=TREE))


@pytest.mark.parametrize("sizes", [(400, 403), (403, 400)])
def test_a_draft_may_be_padded_otherwise(sizes: tuple[int, int], tmp_path: Path) -> None:
    """Loaded, or from a folder."""
    model, draft = (language_model(LlamaConfig(**{**SIZES, "vocab_size": size})) for size in sizes)
    for given in (draft, save_language_model(tmp_path / "draft", draft)):
        same_text(model, TreeDecoding(given, policy=TREE), **ONE)


def test_the_usual_policy() -> None:
    named = TreeDecoding("tiny").policy
    assert isinstance(named, C2T)
    assert named.beta == named.classifier.config.beta
    assert TreeDecoding("tiny", beta=0.25).policy.beta == 0.25
    assert TreeDecoding("yuhuili/EAGLE-llama2-chat-7B").policy == JointThreshold(0.1)
    for draft in ("smollm2", "smollm2+ngrams"):
        assert TreeDecoding(draft).policy == JointThreshold(0.05, K=6, W=6, levels=3)
    assert isinstance(TreeDecoding("tiny+ngrams").policy, C2T)


@pytest.mark.parametrize("draft", slow_except(["tiny", "tiny+ngrams"], "tiny"))
def test_the_embedded_pair_by_name(draft: str) -> None:
    pair = load_pair("tiny")
    inputs = pair.tokenizer("def add(a, b):", return_tensors="pt")
    same_text(pair.target.model, TreeDecoding(draft), **inputs, max_new_tokens=32, do_sample=False)
