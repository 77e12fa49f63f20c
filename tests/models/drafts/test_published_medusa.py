"""Medusa's heads as published: files against a reading in plain torch, refusals, exact decoding, where the commands
find them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import silu

from c2t.cli.info import info
from c2t.errors import InputError
from c2t.models.drafts.published_medusa import PICKLED, SAFE, PublishedMedusaDraft, is_published, load_heads
from c2t.models.loading.fingerprint import fingerprint
from c2t.models.loading.load import load_pair
from c2t.models.loading.names import DRAFTS, kind_of
from c2t.policies import Eagle2, Plain
from tests.models.drafts.test_medusa import assert_greedy_text_and_replay, assert_law_is_kept
from tests.rounding import assert_same_network
from tests.small_pair import HIDDEN as SMALL
from tests.small_pair import VOCABULARY as SMALL_VOCABULARY
from tests.toys import PROMPTS, SIZES, VOCABULARY, deep_pairs, observed, root_of, run

TARGET, DRAFT = deep_pairs()["published medusa"]
HIDDEN, HEADS = SIZES["hidden_size"], 3


def head_state(layers: int = 1, own: bool = True, hidden: int = HIDDEN, vocabulary: int = VOCABULARY, seed: int = 0):
    """Random weights under upstream's names."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    state: dict[str, Tensor] = {}
    for head in range(HEADS):
        for layer in range(layers):
            state[f"{head}.{layer}.linear.weight"] = random(hidden, hidden)
            state[f"{head}.{layer}.linear.bias"] = random(hidden)
        if own:
            state[f"{head}.{layers}.weight"] = random(vocabulary, hidden)
    return state


def write(folder: Path, state: dict, pickled: bool = False, **config) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    raw = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "some/target", **config}
    (folder / "config.json").write_text(json.dumps(raw))
    (torch.save if pickled else save_file)(state, folder / (PICKLED if pickled else SAFE))
    return folder


def plain_logits(state: dict[str, Tensor], layers: int, head: int, feature: Tensor) -> Tensor:
    for layer in range(layers):
        weight, bias = (state[f"{head}.{layer}.linear.{name}"].double() for name in ("weight", "bias"))
        feature = feature + silu(weight @ feature + bias)
    return state.get(f"{head}.{layers}.weight", TARGET.lm_head.weight).double() @ feature


@pytest.mark.parametrize(
    ("layers", "own", "pickled", "dtype"),
    [
        (1, True, True, torch.float16),
        (1, True, False, torch.float32),
        (1, False, False, torch.bfloat16),
        (3, True, True, torch.float32),
    ],
)
@torch.no_grad()
def test_heads_are_those_of_a_plain_reading(layers: int, own: bool, pickled: bool, dtype, tmp_path: Path) -> None:
    """Head k reads the feature of the token before the root and writes what follows k tokens behind the root."""
    state = {name: tensor.to(dtype) for name, tensor in head_state(layers, own).items()}
    heads = load_heads(write(tmp_path, state, pickled, medusa_num_layers=layers), TARGET.embed_tokens)
    assert len(heads) == HEADS  # the file decides; the config says 2, as published ones do
    session, features = observed(PublishedMedusaDraft(heads, TARGET.lm_head), TARGET, PROMPTS[1])
    tree = Eagle2(K=2, levels=HEADS + 2, N=None)(session, root_of(PROMPTS[1][-1]))
    for depth in range(-1, HEADS + 2):
        slots = (tree.depth[0] == depth).nonzero()[:, 0][None]
        found, head = session.expand(tree, slots).logits[0], depth + 1
        expected = plain_logits(state, layers, head, features[0, -1]) if head < HEADS else torch.zeros_like(found[0])
        assert_same_network(found, expected.expand(slots.shape[1], -1))
    assert session.passes.tolist() == [1]


def test_shards_are_read(tmp_path: Path) -> None:
    state = head_state()
    write(tmp_path, state)
    names = sorted(state)
    places = {name: f"medusa_lm_head-{place % 2}.safetensors" for place, name in enumerate(names)}
    for shard in set(places.values()):
        save_file({name: state[name] for name in names if places[name] == shard}, tmp_path / shard)
    (tmp_path / SAFE).unlink()
    assert not is_published(tmp_path)
    (tmp_path / f"{SAFE}.index.json").write_text(json.dumps({"weight_map": places}))
    assert is_published(tmp_path)
    heads = load_heads(tmp_path, nn.Embedding(VOCABULARY, HIDDEN))
    assert all(tensor.equal(state[name].to(tensor)) for name, tensor in heads.state_dict().items())


@pytest.mark.slow
def test_greedy_text_is_the_targets_and_replay_its_rounds() -> None:
    assert_greedy_text_and_replay(TARGET, DRAFT, Eagle2(K=6, levels=3, N=40), 24)


@pytest.mark.slow
def test_sampled_trees_keep_the_law() -> None:
    assert_law_is_kept(DRAFT)


def without(name: str) -> Callable[[dict], dict]:
    return lambda state: {other: tensor for other, tensor in state.items() if other != name}


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        (without("1.0.linear.bias"), {}, r"missing weights \['1.0.linear.bias'\]"),
        (without("2.1.weight"), {}, r"missing weights \['2.1.weight'\]"),
        (lambda state: {f"heads.{name}": tensor for name, tensor in state.items()}, {}, "unexpected weights"),
        (lambda state: state | {"0.0.extra": torch.zeros(1)}, {}, r"unexpected weights \['0.0.extra'\]"),
        (lambda state: state, {"medusa_num_layers": 2}, "not Medusa's published heads of 2 layers"),
        (lambda state: state, {"medusa_num_layers": 10**9}, "medusa_num_layers = 1000000000 must be at most 64"),
        (lambda state: state | {"0.1.weight": torch.zeros(40, HIDDEN)}, {}, "take the heads of this target"),
        (lambda state: state | {"0.0.linear.bias": torch.zeros(3)}, {}, r"0.0.linear.bias is \(3,\)"),
        (lambda state: state | {"9999999999.0.linear.bias": torch.zeros(3)}, {}, "10000000000 heads; at most 64"),
        (lambda state: state | {"0.0.linear.bias": torch.zeros(HIDDEN, dtype=torch.int8)}, {}, "stored as torch.int8"),
        (lambda state: {}, {}, "missing weights"),
    ],
)
def test_what_is_no_such_head_is_one_line(change, config: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        load_heads(write(tmp_path, change(head_state()), **config), TARGET.embed_tokens)


def test_damaged_files_and_pickled_code_are_refused(tmp_path: Path) -> None:
    class Touch:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    for what in ({"0.0.linear.weight": Touch()}, [1, 2], {"a": 1}):
        with pytest.raises(InputError, match="cannot be read"):
            load_heads(write(tmp_path / "pickled", what, pickled=True), TARGET.embed_tokens)
    assert not (tmp_path / "ran").exists()
    folder = write(tmp_path / "safe", head_state())
    (folder / SAFE).write_bytes(b"nothing")
    with pytest.raises(InputError, match="weights cannot be read"):
        load_heads(folder, TARGET.embed_tokens)
    (folder / "config.json").write_text("[]")
    with pytest.raises(InputError, match=r"config\.json"):
        load_heads(folder, TARGET.embed_tokens)


@pytest.mark.parametrize("pickled", [False, True])
def test_a_folder_is_found_as_a_draft(pickled: bool, home: Path) -> None:
    """With the tokenizer that upstream's trainer puts beside the heads, which makes no language model of it."""
    target = home / "checkpoints" / "tiny" / "target"
    folder = write(home / "medusa", head_state(hidden=SMALL, vocabulary=SMALL_VOCABULARY), pickled)
    shutil.copy(target / "tokenizer_config.json", folder)
    assert kind_of(folder) is DRAFTS["eagle"]
    pair = load_pair("tiny", draft=folder)
    assert isinstance(pair.draft, PublishedMedusaDraft)
    assert {weight.dtype for weight in pair.draft.head.parameters()} == {torch.float32}
    prompt = pair.tokenizer("def add(a, b):")["input_ids"]
    texts, _ = run(pair.target, pair.draft, Eagle2(K=4, levels=3, N=20), [prompt], new=16)
    assert texts == run(pair.target, None, Plain(), [prompt], new=16)[0]
    (found,) = info(str(folder))
    assert found.title == "Medusa's heads, as published"
    assert found.values["base_model_name_or_path"] == "some/target"
    before = fingerprint(folder)
    write(folder, head_state(hidden=SMALL, vocabulary=SMALL_VOCABULARY, seed=1), pickled)
    assert fingerprint(folder) != before
    with pytest.raises(InputError, match=r"leave \+taps= and \+anchor= out"):
        load_pair("tiny", draft=f"{folder}+taps=0,1,2")
