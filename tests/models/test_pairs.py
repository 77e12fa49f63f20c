"""Pairs by name and by their parts, and what does not fit together."""

import logging
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from c2t.errors import InputError
from c2t.models.draft_lm import DraftLM
from c2t.models.eagle_draft import EagleDraft
from c2t.models.ngrams import NgramDraft
from c2t.models.pairs import fingerprint, kind_of, load_pair
from tests.eagle_reference import CONFIG, head_state, write_head
from tests.toys import FAMILIES, SIZES, language_model, save_language_model


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
    monkeypatch.setenv("C2T_HOME", str(home))
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


def test_parts_by_folder_and_a_name_with_another_draft(pair_folder: Path) -> None:
    parts = load_pair(target=pair_folder / "target", draft=pair_folder / "draft_lm")
    assert isinstance(parts.draft, DraftLM)
    other = load_pair("toy", draft=str(pair_folder / "draft_distilled"))
    assert other.draft.head.fc.weight.equal(load_pair("toy", draft="distilled").draft.head.fc.weight)


@pytest.mark.parametrize(
    ("name", "part", "prior_weight"),
    [
        ("+ngrams", "draft", 32.0),
        ("lm+ngrams=0.5", "draft_lm", 0.5),
        ("{}/draft_distilled+ngrams", "draft_distilled", 32.0),
    ],
)
def test_ngrams_come_with_any_draft(name: str, part: str, prior_weight: float, pair_folder: Path) -> None:
    pair = load_pair("toy", draft=name.format(pair_folder))
    assert isinstance(pair.draft, NgramDraft)
    assert pair.draft.prior_weight == prior_weight
    place, version = pair.sources["draft"]
    assert place == f"{pair_folder / part}+ngrams={prior_weight:g}"
    assert version == f"{fingerprint(pair_folder / part)}+ngrams={prior_weight:g}"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("lm+ngrams=", "WEIGHT with a number"),
        ("lm+ngrams=many", "WEIGHT with a number"),
        ("lm+ngrams=0", "from 0.001 to 1e"),
        ("lm+ngrams=nan", "from 0.001 to 1e"),
        ("lm+ngrams=1e39", "from 0.001 to 1e"),
        ("lm+ngrams8", "no draft is called"),
        ("lm+ngrams+ngrams", "no draft is called"),
    ],
)
def test_ngrams_of_no_sensible_weight_are_refused(name: str, reason: str, pair_folder: Path) -> None:
    with pytest.raises(InputError, match=reason):
        load_pair("toy", draft=name)


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


def test_the_kind_of_a_draft_is_read_off_its_folder(pair_folder: Path) -> None:
    assert kind_of(pair_folder / "draft") == "head"
    assert kind_of(pair_folder / "draft_lm") == "lm"


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


def test_what_is_missing_or_unknown_is_named(pair_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no target is called 'nobody'; known: .*toy"):
        load_pair("nobody")
    with pytest.raises(InputError, match=r"no draft is called 'eagel'; known: eagle, distilled, .*toy"):
        load_pair("toy", draft="eagel+ngrams")
    with pytest.raises(InputError, match="needs --draft"):
        load_pair(target=pair_folder / "target")
    with pytest.raises(InputError, match="needs --draft"):
        load_pair(target=pair_folder / "target", draft="lm")
    with pytest.raises(InputError, match="no such folder"):
        load_pair("toy", draft=tmp_path / "nowhere")
    with pytest.raises(InputError, match="cannot be loaded"):
        load_pair(target=tmp_path, draft=pair_folder / "draft")


def test_a_tied_language_model_has_all_of_its_weights(pair_folder: Path, tmp_path: Path) -> None:
    tied = language_model(LlamaConfig(**SIZES, tie_word_embeddings=True))
    folder = save_language_model(tmp_path / "tied", tied)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    target = load_pair(target=folder, draft=pair_folder / "draft").target
    assert target.lm_head.weight is target.embed_tokens.weight


def other_target(folder: Path, **sizes) -> Path:
    return save_language_model(folder, language_model(LlamaConfig(**{**SIZES, **sizes})), sizes.get("vocab_size", 48))


def test_parts_that_do_not_fit_are_refused(pair_folder: Path, tmp_path: Path) -> None:
    wide = other_target(tmp_path / "wide", hidden_size=64)
    with pytest.raises(InputError, match="hidden_size 32, the target 64"):
        load_pair(target=wide, draft=pair_folder / "draft")
    large = other_target(tmp_path / "large", vocab_size=60)
    with pytest.raises(InputError, match="vocab_size 48, the target 60"):
        load_pair(target=large, draft=pair_folder / "draft")
    with pytest.raises(InputError, match="the draft has 60 tokens, the target 48"):
        load_pair("toy", draft=large)
    chatty = save_language_model(tmp_path / "chatty", language_model(FAMILIES["llama"]), vocabulary=70)
    with pytest.raises(InputError, match="the tokenizer has 70 tokens, the target 48"):
        load_pair(target=chatty, draft=pair_folder / "draft")


@pytest.mark.parametrize("damage", ["truncated", "no tokenizer"])
def test_a_damaged_target_is_one_clear_line(damage: str, pair_folder: Path, tmp_path: Path) -> None:
    target = save_language_model(tmp_path / "target", language_model(FAMILIES["llama"]))
    if damage == "truncated":
        weights = target / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:5000])
    else:
        for path in target.glob("tokenizer*"):
            path.unlink()
    with pytest.raises(InputError, match=str(target)) as caught:
        load_pair(target=target, draft=pair_folder / "draft")
    assert "\n" not in str(caught.value)


def test_a_target_without_all_of_its_weights_is_refused(
    pair_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers would fill them with random numbers and a table of warnings."""
    target = save_language_model(tmp_path / "target", language_model(FAMILIES["llama"]))
    state = load_file(target / "model.safetensors")
    del state["model.layers.1.mlp.down_proj.weight"]
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    said: list[str] = []
    monkeypatch.setattr(logging.StreamHandler, "emit", lambda _, record: said.append(record.getMessage()))
    with pytest.raises(InputError, match=r"model\.layers\.1\.mlp\.down_proj\.weight"):
        load_pair(target=target, draft=pair_folder / "draft")
    assert said == []
