"""Upstream's head files: every published variant is read and written, every misfit is one clear line."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from c2t.errors import InputError
from c2t.models.loading.eagle_checkpoint import load_head, save_head
from tests.eagle_reference import CONFIG, head_state, write_head
from tests.rounding import assert_within, growth
from tests.toys import VOCABULARY, deep_pairs


@pytest.fixture
def embedding() -> nn.Embedding:
    return nn.Embedding(VOCABULARY, 32)


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_are_read_from_both_files_in_every_dtype(
    pickled: bool, dtype: torch.dtype, tmp_path, embedding
) -> None:
    state = {name: tensor.to(dtype) for name, tensor in head_state(CONFIG).items()}
    head = load_head(write_head(tmp_path, CONFIG, state, pickled), embedding)
    own = {name: tensor for name, tensor in head.state_dict().items() if name != "embed_tokens.weight"}
    assert own.keys() == state.keys()
    for name, tensor in own.items():
        assert tensor.dtype == torch.float32
        assert tensor.equal(state[name].float())


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp", "medusa"])
def test_every_head_is_written_as_read(kind: str, tmp_path: Path) -> None:
    target, draft = deep_pairs()[kind]
    save_head(draft.head, tmp_path)
    again = load_head(tmp_path, target.embed_tokens)
    assert type(again) is type(draft.head)
    assert all(again.state_dict()[name].float().equal(w.float()) for name, w in draft.head.state_dict().items())


def test_pickled_code_is_not_run(tmp_path, embedding) -> None:
    class Touch:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    write_head(tmp_path, CONFIG, {"fc.weight": Touch()}, pickled=True)
    with pytest.raises(InputError, match="cannot be read"):
        load_head(tmp_path, embedding)
    assert not (tmp_path / "ran").exists()


def test_missing_embedding_is_the_targets_and_a_stored_one_overrides(tmp_path, embedding) -> None:
    state = head_state(CONFIG)
    assert load_head(write_head(tmp_path / "none", CONFIG, state), embedding).embed_tokens is embedding
    same = {**state, "embed_tokens.weight": embedding.weight.detach().clone()}
    assert load_head(write_head(tmp_path / "same", CONFIG, same), embedding).embed_tokens is embedding
    other = {**state, "embed_tokens.weight": torch.randn(VOCABULARY, 32)}
    head = load_head(write_head(tmp_path / "other", CONFIG, other), embedding)
    assert head.embed_tokens.weight.equal(other["embed_tokens.weight"])
    assert not head.embed_tokens.weight.requires_grad


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({}, "rope_theta", 10000.0),
        ({"rope_theta": 500000.0}, "rope_theta", 500000.0),
        ({"num_key_value_heads": None}, "num_key_value_heads", 4),
        ({"num_key_value_heads": 1}, "num_key_value_heads", 1),
        ({"max_position_embeddings": None}, "max_position_embeddings", 2048),
        ({"max_position_embeddings": None, "max_sequence_length": 512}, "max_position_embeddings", 512),
        ({"rms_norm_eps": None}, "rms_norm_eps", 1e-6),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "factor", 4.0),
        ({}, "rope_type", "default"),
        ({"rope_scaling": "null"}, "rope_type", "default"),
    ],
    ids=str,
)
def test_config_defaults_are_upstreams(changes: dict, name: str, value, tmp_path, embedding) -> None:
    config = {key: None if v == "null" else v for key, v in {**CONFIG, **changes}.items() if v is not None}
    head = load_head(write_head(tmp_path, config, head_state(config)), embedding)
    found = head.config.rope_parameters[name] if name.startswith(("rope", "factor")) else getattr(head.config, name)
    assert found == value


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bias": False},
        {"qkv_bias": True},
        {"rope_theta": 500000.0, "num_key_value_heads": 4},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
    ],
    ids=str,
)
@pytest.mark.parametrize("with_embedding", [False, True])
def test_what_is_written_is_upstreams_format(changes: dict, with_embedding: bool, tmp_path, embedding) -> None:
    config = {**CONFIG, **changes}
    state = head_state(config)
    head = load_head(write_head(tmp_path / "in", config, state), embedding)
    save_head(head, tmp_path / "out", embed_tokens=with_embedding)
    written = load_file(tmp_path / "out" / "model.safetensors")
    if with_embedding:
        assert written.pop("embed_tokens.weight").equal(embedding.weight)
    assert written.keys() == state.keys()
    assert all(written[name].equal(state[name]) for name in state)
    raw = json.loads((tmp_path / "out" / "config.json").read_text())
    fixed = {key: value for key, value in config.items() if key != "torch_dtype"}
    assert {key: raw.get(key) for key in fixed} == fixed
    assert raw["bias"] == config.get("bias", True)
    again = load_head(tmp_path / "out", embedding)
    features, tokens = torch.randn(1, 9, 32), torch.randint(0, VOCABULARY, (1, 9))
    assert again(features, tokens).equal(head(features, tokens))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rotation_keeps_its_precision_in_a_half_precision_head(dtype: torch.dtype, tmp_path) -> None:
    """Frequencies rounded to bf16 would turn far positions by whole radians."""
    config = {**CONFIG, "max_position_embeddings": 4096}
    embedding = nn.Embedding(VOCABULARY, 32).to(dtype)
    head = load_head(write_head(tmp_path, config, head_state(config)), embedding)
    assert head.fc.weight.dtype == dtype
    frequency = 10000.0 ** (-torch.arange(0, 8, 2) / 8)
    far = torch.tensor([[3000]])
    cosine, sine = head.rotary(torch.zeros(1, 1, 32, dtype=torch.float32), far)
    bound = 3000 * growth(6) * frequency.double() + growth(4)  # of the angle: a power, its inverse, a product; twice
    assert_within(cosine[0, 0, :4], (3000 * frequency.double()).cos(), bound)
    assert_within(sine[0, 0, :4], (3000 * frequency.double()).sin(), bound)


def eagle3(state: dict) -> dict:
    return {**state, "d2t": torch.zeros(4, dtype=torch.long), "midlayer.hidden_norm.weight": torch.ones(32)}


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        ({"hidden_size": 64}, None, "hidden_size 64, the target 32"),
        ({"vocab_size": 100}, None, "vocab_size 100, the target 48"),
        ({}, eagle3, "EAGLE-3"),
        ({}, lambda state: {**state, "lm_head.weight": torch.ones(48, 32)}, "unexpected weights .*lm_head"),
        ({}, lambda state: {n: t for n, t in state.items() if n != "fc.bias"}, "missing weights .*fc.bias"),
        ({"bias": False}, None, "unexpected weights .*fc.bias"),
        ({}, lambda state: {**state, "fc.weight": torch.ones(32, 32)}, r"fc.weight is \(32, 32\)"),
        ({"intermediate_size": None}, None, "intermediate_size missing"),
    ],
    ids=["hidden size", "vocabulary", "EAGLE-3", "surplus", "missing", "bias", "shape", "config"],
)
def test_misfits_are_one_clear_line(config: dict, change, message: str, tmp_path, embedding) -> None:
    state = head_state(CONFIG)
    changed = {key: value for key, value in {**CONFIG, **config}.items() if value is not None}
    write_head(tmp_path, changed, change(state) if change else state)
    with pytest.raises(InputError, match=message) as caught:
        load_head(tmp_path, embedding)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 500000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
    ],
)
def test_a_rope_that_is_there_twice_is_refused_unless_both_are_equal(changes: dict, tmp_path, embedding) -> None:
    with pytest.raises(InputError, match="rope_theta, rope_scaling and rope_parameters contradict each other"):
        load_head(write_head(tmp_path, CONFIG | changes, head_state(CONFIG)), embedding)
    same = {"rope_theta": 5e5, "rope_scaling": {"type": "default"}, "rope_parameters": {"rope_theta": 5e5}}
    assert load_head(write_head(tmp_path, CONFIG | same, head_state(CONFIG)), embedding).config.rope_parameters == {
        "rope_type": "default",
        "rope_theta": 5e5,
    }


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize(
    "damage", [cut_in_half, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"no")]
)
def test_damaged_weights_are_refused(pickled: bool, damage, tmp_path, embedding) -> None:
    write_head(tmp_path, CONFIG, head_state(CONFIG), pickled)
    damage(tmp_path / ("pytorch_model.bin" if pickled else "model.safetensors"))
    with pytest.raises(InputError, match="cannot be read"):
        load_head(tmp_path, embedding)


def test_a_pickle_of_something_else_is_refused(tmp_path, embedding) -> None:
    write_head(tmp_path, CONFIG, [torch.ones(2)], pickled=True)
    with pytest.raises(InputError, match="not a table of tensors"):
        load_head(tmp_path, embedding)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"fc.weight": 1}))
    with pytest.raises(InputError):
        load_head(tmp_path, embedding)


@pytest.mark.parametrize(
    "change",
    [lambda whole: whole.to("meta"), lambda whole: whole.to_sparse(), lambda whole: torch.ones(1).expand_as(whole)],
    ids=["without data", "sparse", "one number for many"],
)
def test_a_pickled_tensor_without_its_own_numbers_is_refused(change, tmp_path, embedding) -> None:
    state = head_state(CONFIG)
    write_head(tmp_path, CONFIG, state | {"fc.weight": change(state["fc.weight"])}, pickled=True)
    with pytest.raises(InputError, match="not a table of tensors"):
        load_head(tmp_path, embedding)


@pytest.mark.parametrize("config", ["{", "[1]", ""])
def test_a_damaged_config_is_refused(config: str, tmp_path, embedding) -> None:
    write_head(tmp_path, CONFIG, head_state(CONFIG))
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(InputError, match=r"config\.json"):
        load_head(tmp_path, embedding)


def test_missing_files_are_named(tmp_path, embedding) -> None:
    with pytest.raises(InputError, match="neither a folder nor a Hub"):
        load_head(tmp_path / "nowhere", embedding)
    with pytest.raises(InputError, match=r"no config\.json"):
        load_head(tmp_path, embedding)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(InputError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        load_head(tmp_path, embedding)


def in_shards(folder: Path, state: dict, pickled: bool = False) -> Path:
    """Store a head's weights as two files and an index, as transformers names them."""
    name = "pytorch_model.bin" if pickled else "model.safetensors"
    (write_head(folder, CONFIG, state, pickled) / name).unlink()
    (stem, suffix), names, places = name.split("."), sorted(state), {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        shard = f"{stem}-{number:05}-of-00002.{suffix}"
        (torch.save if pickled else save_file)({each: state[each] for each in part}, folder / shard)
        places |= dict.fromkeys(part, shard)
    (folder / f"{name}.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return folder


@pytest.mark.parametrize("pickled", [False, True])
def test_shards_are_read(pickled: bool, tmp_path: Path, embedding: nn.Embedding) -> None:
    state = head_state(CONFIG)
    head = load_head(in_shards(tmp_path, state, pickled), embedding).state_dict()
    assert head.keys() == {*state, "embed_tokens.weight"}
    assert all(head[name].equal(tensor) for name, tensor in state.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index, _: {**index, "weight_map": {}}, r"index\.json: weight_map"),
        (lambda index, _: {"weight_map": dict.fromkeys(index["weight_map"], "../x.safetensors")}, "weight_map"),
        (lambda index, _: {"weight_map": dict.fromkeys(index["weight_map"], "x.safetensors")}, "x.safetensors is not"),
        (lambda index, first: {"weight_map": dict.fromkeys(index["weight_map"], first)}, "holds other weights than it"),
    ],
)
def test_shards_that_do_not_fit_their_index_are_one_line(change, message: str, tmp_path: Path, embedding) -> None:
    place = in_shards(tmp_path, head_state(CONFIG)) / "model.safetensors.index.json"
    index = json.loads(place.read_text())
    place.write_text(json.dumps(change(index, min(index["weight_map"].values()))))
    with pytest.raises(InputError, match=message) as caught:
        load_head(tmp_path, embedding)
    assert "\n" not in str(caught.value)
