"""EAGLE-3 heads in every published layout, against plain torch; the states that they read, and the text that they draft
for; what is not understood is refused by its name."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import LlamaConfig

from c2t.errors import InputError
from c2t.models.drafts.eagle3 import Eagle3Head, default_taps
from c2t.models.drafts.head_draft import EagleDraft
from c2t.models.loading.eagle_checkpoint import load_head, save_head
from c2t.models.loading.load import load_pair
from c2t.models.target.target import Target
from c2t.policies import Eagle2, Plain
from c2t.replay.lockstep import replay, write_continuations
from c2t.sampling import Sampling
from tests.eagle3_reference import (
    LAYOUTS,
    MIXED,
    QWEN3,
    REDUCED,
    SPECULATORS,
    WINDOWED,
    Math,
    deepspec,
    draft,
    file,
    flat,
    speculators,
    weights,
)
from tests.eagle_reference import CONFIG, head_state, write_head
from tests.rounding import assert_same_network
from tests.toys import (
    FAMILIES,
    PROMPTS,
    SIZES,
    VOCABULARY,
    language_model,
    path_of,
    randomise,
    root_of,
    run,
    save_language_model,
)

LAYERS, TEXT = 8, [3, 1, 4, 1, 5, 9, 2]


def deep_target() -> Target:
    return Target(language_model(LlamaConfig(**{**SIZES, "num_hidden_layers": LAYERS}), spread=0.2))


def embedding() -> nn.Embedding:
    table = torch.randn(VOCABULARY, 32, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return nn.Embedding.from_pretrained(table)


def write(folder: Path, config: dict, maths: Math, names: dict, **changes) -> Path:
    state = file(weights(maths), **names)
    return write_head(folder, config, {k: v for k, v in (state | changes).items() if v is not None})


def math_of(config: dict) -> tuple[Math, dict]:
    """What a head of three taps computes, and the names in its file."""
    if "ttt_length" in config:
        return Math(head_dim=12, query_norm=True, reduced=VOCABULARY), SPECULATORS
    return Math(), SPECULATORS if "speculators_model_type" in config else {}


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_drafts_are_those_of_the_published_code(layout: str, tmp_path: Path) -> None:
    """A session over a text and two levels of a tree; written and read again, the head is the same."""
    config, maths, names = LAYOUTS[layout]
    first = load_head(write(tmp_path / "published", config, maths, names), embedding())
    save_head(first, tmp_path / "written")
    width = maths.width * (maths.taps or 1)
    features = torch.randn(len(TEXT) - 1, width, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    again = load_head(tmp_path / "written", embedding())
    assert all(again.state_dict()[name].equal(tensor) for name, tensor in first.state_dict().items())
    for head in (first, again):
        assert head.taps(LAYERS) == first.taps(LAYERS)
        session = EagleDraft(head, nn.Linear(32, VOCABULARY, bias=False)).session()
        session.observe(torch.tensor([TEXT]), features[None], torch.tensor([len(TEXT) - 1]))
        tree = Eagle2(K=3, levels=2, N=None)(session, root_of(TEXT[-1]))
        slots = [4, 8, 12]
        found = session.expand(tree, torch.tensor([slots])).logits[0]
        state = weights(maths)
        kept = torch.arange(maths.reduced) + state.get("d2t", 0)
        for slot, logits in zip(slots, found, strict=True):
            path = path_of(tree, 0, slot)
            assert len(path) == 2
            wanted = draft(maths, state, embedding().weight, features, TEXT[1:], path)
            assert_same_network(logits[kept], wanted)
            assert logits.isfinite().sum() == maths.reduced


@torch.no_grad()
def test_a_head_narrower_than_its_target_brings_its_embedding(tmp_path: Path) -> None:
    maths, wide = Math(width=48), nn.Embedding(VOCABULARY, 48).double()
    config = flat(target_hidden_size=48)
    own = torch.randn(VOCABULARY, 32)
    head = load_head(write(tmp_path / "own", config, maths, {}, **{"embed_tokens.weight": own}), wide)
    features = torch.randn(len(TEXT), 3 * 48, dtype=torch.float64)
    hidden = head(head.read(features[None]), torch.tensor([TEXT]))
    wanted = draft(maths, weights(maths), own.double(), features, TEXT, [])
    assert_same_network(head.lm_head(head.readable(hidden))[0, -1], wanted)
    with pytest.raises(InputError, match=r"embed_tokens\.weight is missing, and the target's is of another width, 48"):
        load_head(write(tmp_path / "none", config, maths, {}), wide)


@torch.no_grad()
def test_a_head_may_bring_its_embedding(tmp_path: Path) -> None:
    """DeepSpec's do, and an LM head over all tokens; most are copies of the target's, but nothing says so."""
    config, maths, names = LAYOUTS["deepseek-ai"]
    own = torch.randn(VOCABULARY, 32)
    head = load_head(write(tmp_path, config, maths, names, **{"embed_tokens.weight": own}), embedding())
    features = torch.randn(len(TEXT), 5 * 32, dtype=torch.float64)
    hidden = head(head.read(features[None]), torch.tensor([TEXT]))
    wanted = draft(maths, weights(maths), own.double(), features, TEXT, [])
    assert_same_network(head.lm_head(head.readable(hidden))[0, -1], wanted)


@torch.no_grad()
def test_a_head_reads_the_embedding_as_it_is_stored(tmp_path: Path) -> None:
    """Gemma's embedding is multiplied in its own forward; engines give heads the table."""

    class Scaled(nn.Embedding):
        def forward(self, tokens):
            return 7 * super().forward(tokens)

    head = load_head(write(tmp_path, flat(), Math(), {}), Scaled.from_pretrained(embedding().weight))
    assert head.embed_tokens(torch.tensor([5])).equal(embedding()(torch.tensor([5])))


IDS = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("config", "layers", "taps"),
    [
        (flat(), 36, (2, 18, 33)),
        (flat(**{IDS: [2, 18, 33]}), 36, (2, 18, 33)),  # SGLang's default, written down
        (flat(**{IDS: [33, 2, 18]}), 36, (2, 18, 33)),  # engines collect them in the order of the layers
        (flat(**{IDS: [1, 17, 33]}), 36, (2, 18, 34)),  # SpecForge: outputs
        (flat(eagle_config={IDS: [1, 17, 32]}), 36, (2, 18, 33)),  # ModelOpt's default
        (flat(**{IDS: [24, 30, 36]}), 36, (24, 30, 36)),  # nvidia/gpt-oss-120b-Eagle3-v3: the end of the last layer
        (flat(**{IDS: [1, 17, 35]}), 36, (2, 18, 36)),
        (speculators(**{IDS: None}), 36, (2, 18, 33)),
        (speculators(**{IDS: [1, 17, 33]}), 36, (1, 17, 33)),  # speculators counts inputs
        (speculators(**{IDS: [5, 9, 13]}), 36, (5, 9, 13)),
        (deepspec(target_layer_ids=[1, 17, 33], num_target_layers=36), 36, (2, 18, 34)),  # outputs, whatever they are
        (deepspec(target_layer_ids=[0, 2, 6]), 8, (1, 3, 7)),
    ],
    ids=lambda value: "" if isinstance(value, dict) else str(value),
)
def test_taps_are_those_of_the_config(config: dict, layers: int, taps: tuple, tmp_path: Path) -> None:
    assert load_head(write(tmp_path, config, *math_of(config)), embedding()).taps(layers) == taps


@pytest.mark.parametrize(
    ("config", "layers", "message"),
    [
        (flat(**{IDS: [5, 9, 13]}), 36, r"= 5,9,13 may count inputs \(vLLM\) or outputs of layers \(SGLang\)"),
        (flat(**{IDS: [1, 17, 33]}), 28, "taps = 2,18,34: a target of 28 layers has the states 0 to 28"),
        (speculators(**{IDS: [2, 18, 40]}), 36, "taps = 2,18,40: a target of 36 layers"),
        (flat(), 6, "a target of 6 has too few"),
        (
            deepspec(target_layer_ids=[1, 2, 6]),
            9,
            "num_target_layers = 8, and the target has 9 layers: take the head of",
        ),
    ],
)
def test_taps_that_the_target_lacks_are_refused(config: dict, layers: int, message: str, tmp_path: Path) -> None:
    head = load_head(write(tmp_path, config, *math_of(config)), embedding())
    with pytest.raises(InputError, match=message) as caught:
        head.taps(layers)
    assert "\n" not in str(caught.value)


@torch.no_grad()
def test_states_are_tapped_up_to_the_end_of_the_last_layer() -> None:
    """The last one comes before the final norm; tapping again forgets what was tapped before."""
    target = deep_target()
    assert default_taps(LAYERS) == (2, 4, 5)
    target.tap(default_taps(LAYERS))
    target.tap((0, 3, LAYERS))
    tokens = torch.tensor([PROMPTS[1]])
    features = target.session().prefill(tokens, torch.tensor([tokens.shape[1]])).features
    states = target.model(tokens, output_hidden_states=True).hidden_states
    low, middle, high = features.chunk(3, -1)
    assert_same_network(low, states[0])
    assert_same_network(middle, states[3])
    assert_same_network(target.model.model.norm(high), states[-1])
    assert target.taps == (0, 3, LAYERS)
    target.tap(())
    assert not any(module._forward_pre_hooks for module in target.model.modules())
    assert_same_network(target.session().prefill(tokens, torch.tensor([tokens.shape[1]])).features, states[-1])


@pytest.mark.parametrize(
    ("layout", "temperature"),
    [
        ("several layers", 0.0),
        ("one tap", 0.0),
        ("speculators of 2026", 0.0),
        ("flat, windows in some layers", 0.0),
        ("SafeAILab", 0.0),
        ("SafeAILab", 0.8),
    ],
)
def test_text_is_the_targets_and_replay_is_live(layout: str, temperature: float, tmp_path: Path) -> None:
    target, sampling = deep_target(), Sampling(temperature, seed=3)
    head = load_head(write(tmp_path, *LAYOUTS[layout]), target.embed_tokens).requires_grad_(False)
    target.tap(head.taps(LAYERS))
    draft, policy = EagleDraft(head, target.lm_head), Eagle2(K=3, levels=3, N=10)
    plain, _ = run(target, None, Plain(), PROMPTS, new=12, sampling=sampling)
    texts, steps = run(target, draft, policy, PROMPTS, new=12, sampling=sampling)
    assert texts == plain
    written = write_continuations(target, PROMPTS, max_new_tokens=12, beyond=4, sampling=sampling)
    replayed = list(replay(draft, policy, written, seed=sampling.seed, temperature=temperature))
    assert [step.count.tolist() for step in replayed] == [step.count.tolist() for step in steps]


def test_maps_are_dropped_where_the_vocabularies_are_equal(tmp_path: Path) -> None:
    maps = {"d2t": torch.zeros(VOCABULARY, dtype=torch.long), "t2d": torch.ones(VOCABULARY, dtype=torch.bool)}
    config, maths, names = LAYOUTS["whole vocabulary"]
    head = load_head(write(tmp_path, config, maths, names, **maps), embedding())
    assert "d2t" not in head.state_dict()


@torch.no_grad()
def test_a_head_may_leave_its_rows_to_the_target(tmp_path: Path) -> None:
    """The file has the ids only; logits are those of the target's LM head at the draft's tokens."""
    target, config = deep_target(), LlamaConfig(**{**SIZES, "num_hidden_layers": 1})
    made = randomise(Eagle3Head(config, draft_vocab_size=REDUCED, target_rows=True), seed=3)
    tokens = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(0))[:REDUCED].sort().values
    made.d2t.copy_(tokens - torch.arange(REDUCED))
    made.t2d[tokens] = True
    save_head(made, tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    head = load_head(tmp_path, target.embed_tokens, target.lm_head)
    hidden = torch.randn(1, 5, SIZES["hidden_size"], dtype=torch.float64)
    wanted = target.lm_head(head.norm(hidden))
    logits = head.logits(hidden, target.lm_head)
    assert_same_network(logits[..., tokens], wanted[..., tokens])
    assert logits.isfinite().sum() == 5 * REDUCED
    with pytest.raises(InputError, match="stores no LM head"):
        load_head(tmp_path, target.embed_tokens)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (flat(hidden_size=64), "hidden_size 64, the target 32"),
        (flat(target_hidden_size=64), "target_hidden_size 64, the target 32"),
        (flat(vocab_size=100), "vocab_size 100, the target 48"),
        (flat(new_gate=0.5), "new_gate = 0.5 is not known to c2t"),
        (flat(eagle_config={"new_gate": 0.5}), "new_gate = 0.5 is not known to c2t"),
        (flat(logit_scale=0.5), "logit_scale = 0.5 is not supported, only 1"),
        (flat(partial_rotary_factor=0.5), "partial_rotary_factor = 0.5 is not supported"),
        (flat(is_neox_style=False), "is_neox_style = False is not"),
        (flat(quantization_config={"bits": 4}), "quantization_config = .* is not known"),
        (flat(layer_types=["chunked_attention"]), "layer_types = 'chunked_attention' is not supported"),
        (flat(layer_types=3), "layer_types = 3"),
        (flat(layer_types=["sliding_attention"]), "sliding_attention needs sliding_window"),
        (flat(**WINDOWED | {"sliding_window": 0}), "sliding_attention needs sliding_window"),
        (flat(**WINDOWED | {"sliding_window": -4}), "sliding_window = -4 must be at least 0"),
        (flat(**WINDOWED | {"layer_types": 4 * ["sliding_attention"]}), "layer_types one entry for each of num_hidden"),
        (flat(**WINDOWED | {"use_sliding_window": False}), "use_sliding_window is false, and layer_types has some"),
        (flat(**WINDOWED | {"layer_types": None}), "use_sliding_window is true, and layer_types has no sliding"),
        (
            speculators(QWEN3 | MIXED | {"use_sliding_window": None}),
            "use_sliding_window is false, and layer_types has some",
        ),
        (flat(eagle_config={"use_mtp_layernorm": True}), "use_mtp_layernorm = True is not supported"),
        (flat(eagle_config={"draft_vocab_size": 9}), "draft_vocab_size is there twice"),
        (speculators() | {"num_attention_heads": 8}, "num_attention_heads is there twice, with different values"),
        (flat(eagle_config=[1]), "eagle_config must be objects"),
        (flat(model_type="granite", architectures=["GraniteForCausalLM"]), "layers of the type 'granite'"),
        (
            flat(original_max_position_embeddings=64, rope_scaling={"type": "yarn"}),
            "original_max_position_embeddings = 64",
        ),
        (speculators({"model_type": "gemma2"}), "layers of the type 'gemma2'"),
        (speculators(speculators_model_type="hydra"), "a speculators head of the kind 'hydra'"),
        (speculators(norm_before_residual="left out"), "norm_before_residual is missing, which speculators takes"),
        (flat(norm_before_residual="yes"), "norm_before_residual = 'yes'"),
        (flat(fc_norm=True, norm_before_fc=True), "exclude each other"),
        (flat(num_aux_hidden_states=4), f"4 states are read, but {IDS} does not say which"),
        (flat(num_aux_hidden_states=4, **{IDS: [1, 2, 3]}), "has 3 layers, num_aux_hidden_states is 4"),
        (flat(**{IDS: [1, 2, 3, 4, 5, 6]}), IDS),
        (flat(**{IDS: [1, -2, 3]}), IDS),
        (flat(rope_scaling={"rope_type": "spiral", "factor": 2.0}), "RoPE of the type 'spiral'"),
        (flat(rope_scaling={"mrope_section": [1, 1, 2]}), "mrope_section is not supported in RoPE of the type default"),
        (flat(rope_scaling={"type": "linear", "factor": 2.0, "mscale": 1.0}), "mscale is not supported in RoPE of the"),
        (flat(rope_parameters={"partial_rotary_factor": 0.5}), "partial_rotary_factor is not supported in RoPE"),
        (flat(rope_scaling={"rope_type": ["yarn"]}), r"RoPE of the type \['yarn'\]"),
        (flat(rope_scaling={"rope_type": "llama3", "factor": 2.0}), "no head can be built"),
        (flat(eagle_config={"use_aux_hidden_state": False}, fc_norm=True), "there is no fc for norms"),
        (flat(architectures=3, draft_vocab_size={}), "draft_vocab_size = {} must be"),
        (flat(target_layer_ids=[1, 2, 3]), r"target_layer_ids = \[1, 2, 3\] is not known"),
        (deepspec(num_hidden_layers=2), "num_hidden_layers = 2: Qwen3Eagle3Model is supported with one layer only"),
        (deepspec(draft_num_hidden_layers=2), "draft_num_hidden_layers = 2: Qwen3Eagle3Model"),
        (deepspec(num_target_layers="left out"), "num_target_layers: .* must be a whole number"),
        (deepspec(target_layer_ids="left out"), "target_layer_ids: .* must be a list"),
        (deepspec(target_layer_ids=[-1, 2, 3]), "target_layer_ids.* at least 0"),
        (deepspec(target_layer_ids=[3, 2, 1]), r"target_layer_ids = \[3, 2, 1\] must rise, up to 6"),
        (deepspec(target_layer_ids=[1, 2, 7]), "output would be read after the final norm"),
        (deepspec(is_causal=False), "is_causal = False is not supported"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_understood_is_refused_by_name(config: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_head(write(tmp_path, config, *math_of(config)), embedding())
    assert "\n" not in str(caught.value)


MAP = torch.arange(REDUCED) - torch.arange(REDUCED)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d2t": MAP + VOCABULARY}, "d2t does not name rising tokens of the target's 48"),
        ({"d2t": -torch.arange(REDUCED)}, "d2t does not name rising tokens"),
        ({"t2d": torch.zeros(VOCABULARY, dtype=torch.bool)}, "d2t and t2d name different tokens"),
        ({"d2t": None, "t2d": None}, r"missing weights \['d2t', 't2d'\]"),
        ({"fc.weight": torch.zeros(32, 64)}, r"fc.weight is \(32, 64\), the config says \(32, 96\)"),
        ({"layers.0.hidden_norm.weight": torch.ones(32)}, "hidden_norm.weight is there twice"),
        ({"input_norm.weight": torch.ones(96)}, r"unexpected weights \['input_norm.weight'\]"),
        ({"embed_tokens.weight": torch.zeros(VOCABULARY, 48)}, r"its embedding is \(48, 48\), not \(48, 32\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_weights_that_do_not_fit_are_refused(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        load_head(write(tmp_path, flat(), Math(), {}, **changes), embedding())


def test_tensors_that_no_forward_reads_are_left_out(tmp_path: Path) -> None:
    more = {"verifier_norm.weight": torch.ones(32), "verifier_lm_head.weight": torch.ones(REDUCED, 32), "t2d": None}
    more["midlayer.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    plain, head = (
        load_head(write(tmp_path / name, flat(), Math(), {}, **changes), embedding())
        for name, changes in (("plain", {}), ("more", more))
    )
    assert plain.state_dict().keys() == head.state_dict().keys()
    assert all(head.state_dict()[name].equal(tensor) for name, tensor in plain.state_dict().items())
    assert int(head.t2d.sum()) == REDUCED


def test_taps_may_be_named_behind_the_draft(tmp_path: Path) -> None:
    """As inputs of layers, where a config does not say what it counts; what the draft was is kept with the pair."""
    target = save_language_model(tmp_path / "target", language_model(LlamaConfig(**{**SIZES, "num_hidden_layers": 16})))
    head = write(tmp_path / "head", flat(**{IDS: [5, 9, 13]}), Math(), {})
    with pytest.raises(InputError, match=r"after the draft, as \+taps=5,9,13 or with each one more"):
        load_pair(target=target, draft=head)
    pair = load_pair(target=target, draft=f"{head}+taps=6,10,14")
    assert pair.target.taps == (6, 10, 14)
    place, version = pair.sources["draft"]
    assert (place, version.partition("+")[2]) == (f"{head}+taps=6,10,14", "taps=6,10,14")
    mixed = load_pair(target=target, draft=f"{head}+taps=5,9,13+ngrams=2")
    assert mixed.target.taps == (5, 9, 13)
    assert mixed.sources["draft"][0] == f"{head}+taps=5,9,13+ngrams=2"


@pytest.mark.parametrize(
    ("taps", "message"),
    [
        ("", "with the numbers of layers between commas"),
        ("2,x", "with the numbers of layers between commas"),
        ("2,-4,5", "with the numbers of layers between commas"),
        ("2,4", "taps = 2,4: the head reads 3 states"),
        ("5,4,2", "taps = 5,4,2: a target of 8 layers has the states 0 to 8"),
        ("2,4,9", "taps = 2,4,9: a target of 8 layers"),
    ],
)
def test_taps_of_no_sense_are_refused(taps: str, message: str, tmp_path: Path) -> None:
    target = save_language_model(tmp_path / "target", deep_target().model)
    with pytest.raises(InputError, match=message) as caught:
        load_pair(target=target, draft=f"{write(tmp_path / 'head', flat(), Math(), {})}+taps={taps}")
    assert "\n" not in str(caught.value)


def test_only_eagle3_heads_have_taps(tmp_path: Path) -> None:
    target = save_language_model(tmp_path / "target", deep_target().model)
    other = write_head(tmp_path / "head", CONFIG, head_state(CONFIG))
    with pytest.raises(InputError, match="no EAGLE-3 head, so it reads no layers"):
        load_pair(target=target, draft=f"{other}+taps=2,4,5")
    with pytest.raises(InputError, match="a language model drafts without taps"):
        load_pair(target=target, draft=f"{target}+taps=2,4,5")
    gpt2 = save_language_model(tmp_path / "gpt2", language_model(FAMILIES["gpt2"]))
    with pytest.raises(InputError, match="too few"):
        load_pair(target=gpt2, draft=write(tmp_path / "eagle3", flat(), Math(), {}))
    with pytest.raises(InputError, match="gpt2 has no layers that an EAGLE-3 head could read"):
        load_pair(target=gpt2, draft=f"{tmp_path / 'eagle3'}+taps=0,1,2")
