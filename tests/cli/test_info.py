"""What `c2t info` says about pairs that are on the Hub, without a network."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from c2t.cli.info import arithmetic, folder, info
from c2t.models.loading import hub
from c2t.models.loading.chat_templates import conversation
from c2t.storage.published import PUBLISHED
from tests.eagle3_reference import MIXED, deepspec, flat, speculators
from tests.eagle_reference import CONFIG
from tests.toys import FAMILIES, language_model, save_language_model, toy_tokenizer

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("C2T_HOME", str(tmp_path))


def said(name: str, title: str) -> dict:
    return next(facts.values for facts in info(name) if facts.title == title)


def test_a_download_is_the_files_that_are_read_and_not_here(home, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"config.json": 1000, "model-1.safetensors": 7 * 10**9, "model-2.safetensors": 9 * 10**9}
    sizes |= {"pytorch_model.bin": 16 * 10**9, "consolidated.safetensors": 10**9, "tokenizer.model": 1000}
    asked = []

    def listed(hub_id: str, allow_patterns: list, ignore_patterns: list, dry_run: bool):
        assert dry_run
        assert ignore_patterns == ["*/*"]
        asked.append(hub_id)
        here = "model-2.safetensors"
        rows = [SimpleNamespace(filename=n, file_size=s, will_download=n != here) for n, s in sizes.items()]
        return [row for row in rows if "*" + Path(row.filename).suffix in allow_patterns]

    monkeypatch.setattr(hub, "snapshot_download", listed)
    assert said("llama3.1-8b", "target, published")["download"] == "7.00 GB"
    assert said("llama3.1-8b", "draft, published")["download"] == "24.00 GB"
    assert set(asked) == {"meta-llama/Llama-3.1-8B-Instruct", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}
    sizes.clear()
    assert said("llama3.1-8b", "draft, published")["download"] == "nothing, it is on this machine"


@pytest.mark.parametrize("name", PUBLISHED)
def test_out_of_reach_the_table_answers(name: str, home, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_args, **_settings):
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(hub, "snapshot_download", nowhere)
    for part, size in zip(("target", "draft"), PUBLISHED[name].sizes, strict=True):
        values = said(name, f"{part}, published")
        assert values["Hub id"] == getattr(PUBLISHED[name], part)
        known = "size not known" if size is None else f"about {size:g} GB, by its number of weights"
        assert values["download"] == f"{known} (the Hub is not within reach)"


def test_the_page_of_heads_has_every_pair() -> None:
    page = (ROOT / "docs" / "heads.md").read_text()
    rows = dict(re.findall(r"^\| `([^`]+)` \| (\S+) \|", page, re.MULTILINE))
    assert rows == {name: pair.draft for name, pair in PUBLISHED.items()}


IDS = {"mask_token_id": 3, "target_layer_ids": [1, 9]}
BLOCK = CONFIG | {"block_size": 7, "num_hidden_layers": 2} | IDS
WINDOWED_BLOCK = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 2048}
DOMINO = {
    "projector_type": "domino",
    "emb_dim": 8,
    "gru_hidden_dim": 8,
    "pure_draft_prefix_len": 1,
    "shift_label": True,
}
HEADS = {
    "": (CONFIG, "EAGLE-1/2, reads the target's last state"),
    "MTP": (CONFIG | {"architectures": ["MTPHead"]}, "MTP layer, reads the target's last state"),
    "Medusa-style": (
        CONFIG | {"medusa_num_heads": 2},
        "Medusa-style, 2 heads on an EAGLE layer, reads the target's last",
    ),
    "flat": (flat(), "EAGLE-3 (flat), reads a low, a middle and a high layer, no window"),
    "no taps": (flat(use_aux_hidden_state=False), "EAGLE-3 (flat), reads the target's last state, no window"),
    "ids": (flat(eagle_aux_hidden_state_layer_ids=[1, 17, 33]), "reads layers 1, 17, 33 as its config counts them"),
    "speculators": (
        speculators(
            {"sliding_window": 2048, "layer_types": ["sliding_attention"]}, eagle_aux_hidden_state_layer_ids=[2, 4]
        ),
        "EAGLE-3 (speculators), reads the inputs of layers 2, 4, window 2048",
    ),
    "DeepSpec": (deepspec(), "EAGLE-3 (DeepSpec), reads the inputs of layers 2, 3, 5, 6, 7, no window"),
    "some windows": (flat(**MIXED), "a low, a middle and a high layer, window 3 in 2 of 3 layers"),
    "DSpark": (
        BLOCK
        | {"architectures": ["Qwen3DSparkModel"], "markov_rank": 4, "enable_confidence_head": True}
        | WINDOWED_BLOCK,
        "DSpark (DeepSpec), block of 7 from the anchor, reads the outputs of layers 1, 9, window 2048 in 1 of 2 "
        "layers, causal in 1 of 2 layers, vanilla Markov head of rank 4, confidence head",
    ),
    "DFlash": (
        CONFIG | {"architectures": ["DFlashDraftModel"], "block_size": 16, "dflash_config": IDS},
        "DFlash (flat), block of 16 in place, reads the outputs of layers 1, 9, no window, not causal",
    ),
    "JetSpec": (
        CONFIG
        | {"architectures": ["DFlashDraftModel"], "block_size": 16, "dflash_config": IDS | {"causal_head": True}},
        "DFlash (flat), block of 16 in place, reads the outputs of layers 1, 9, no window, causal",
    ),
    "Domino": (
        CONFIG | {"architectures": ["DFlashDraftModel"], "block_size": 16, "dflash_config": IDS | DOMINO},
        "Domino (flat), block of 16 from the anchor",
    ),
    "no alignment": (
        BLOCK | {"architectures": ["DSparkDraftModel"], "projector_type": "dspark", "markov_rank": 4},
        "sample_from_anchor is missing",
    ),
    "unread": (flat(parallel_drafting=True), "parallel_drafting = True stands for P-EAGLE"),
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_is_described_in_one_line(kind: str, tmp_path: Path) -> None:
    """By its config alone: of a head on the Hub nothing else is downloaded."""
    config, wanted = HEADS[kind]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (facts,) = folder(tmp_path)
    assert wanted in facts.values["head"]
    assert "\n" not in facts.values["head"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_pair_has_a_template_that_is_known(name: str) -> None:
    tokenizer = toy_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}w1 w2 {% endfor %}"
    assert conversation(tokenizer, PUBLISHED[name].template, ["w3"])
    assert PUBLISHED[name].template in ("vicuna", "llama2", "llama3", "chat")


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_a_models_folder_says_how_it_is_computed_here(family: str, tmp_path: Path) -> None:
    save_language_model(tmp_path, language_model(FAMILIES[family]))
    (facts,) = folder(tmp_path)
    said = arithmetic() if family == "qwen3" else "torch, slower: c2t's kernels are for llama, "
    assert facts.values["on a CPU"].startswith(said)
