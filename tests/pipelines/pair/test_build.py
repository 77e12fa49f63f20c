"""The committed pair: sizes and formats that the project promises."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from c2t.models.drafts.medusa import MedusaHead
from c2t.models.loading.load import load_pair
from pipelines.pair import corpus, recipes
from pipelines.pair.__main__ import Stage
from pipelines.pair.build import CORPUS, STAGES, begin_from, build, new_head, stages_of
from pipelines.pair.recipes import COMMON, HEADS, PAIRS
from pipelines.pair.smollm2 import build as smollm2

OUT = PAIRS["tiny"].out
MB = 1_000_000


def test_every_pair_has_the_stages_of_its_parts() -> None:
    assert set(Stage) == {*STAGES, *smollm2.STAGES, "all"}
    assert stages_of(PAIRS["tiny"]) == list(STAGES)
    for name in ("tiny-small", "tiny-qwen"):
        assert stages_of(PAIRS[name]) == ["corpus", "tokenizer", "target", "texts", "draft"]


def test_the_smaller_pair_has_a_third_of_the_parameters() -> None:
    with torch.device("meta"):
        sizes = {
            name: AutoModelForCausalLM.from_config(recipe.target).num_parameters() for name, recipe in PAIRS.items()
        }
    assert 0.3 < sizes["tiny-small"] / sizes["tiny"] < 0.4


@pytest.mark.slow
def test_a_pair_is_built_from_a_corpus_and_loads(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole recipe of a pair of another family, at a size that takes seconds."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    recipe = replace(
        PAIRS["tiny-qwen"],
        name="mini",
        target=Qwen2Config(**COMMON, **sizes, vocab_size=400, num_hidden_layers=2, tie_word_embeddings=False),
        head=LlamaConfig(**COMMON, **sizes, vocab_size=400, num_hidden_layers=1),
        text_rows=80,
    )
    documents = [d for d in corpus.load(CORPUS) if d.domain == "prose"][:40]
    monkeypatch.setattr(corpus, "load", lambda path: documents)
    monkeypatch.setattr(recipes, "ROOT", tmp_path)
    build(recipe, [name for name in stages_of(recipe) if name != "corpus"], minutes=0.05)
    pair = load_pair(target=recipe.out / "target", draft=recipe.out / "draft")
    assert pair.target.config.model_type == "qwen2"
    assert len(pair.tokenizer) == 400
    record = json.loads((recipe.build / "draft.json").read_text())
    assert 0 <= record["agreement"] <= 1


def test_a_medusa_style_head_begins_as_the_layer_that_it_is_stored_with() -> None:
    recipe, target = PAIRS["tiny"], load_pair("tiny", dtype=torch.float32).target.model
    head = new_head(recipe, "draft_medusa", target)
    assert isinstance(head, MedusaHead)
    begin_from("draft", head, recipe, target)
    layer = load_pair("tiny", draft="eagle", dtype=torch.float32).draft.head.state_dict()
    assert all(head.state_dict()[name].equal(weight) for name, weight in layer.items())
    hidden = torch.randn(3, recipe.head.hidden_size)
    assert head.states(hidden).equal(hidden[:, None].expand(-1, 3, -1))
    assert {name for name, weight in head.named_parameters() if weight.requires_grad} == {
        f"heads.{block}.{part}" for block in (0, 1) for part in ("weight", "bias")
    }


def test_weights_are_small_bf16_shards() -> None:
    files = list(OUT.rglob("*.safetensors"))
    assert files
    assert all(path.stat().st_size <= 12.1 * MB for path in files)
    stored = [path for part in ("target", "draft", "draft_lm", "classifier") for path in (OUT / part).iterdir()]
    assert sum(path.stat().st_size for path in stored) <= 25 * MB
    for path in (path for path in files if path.parent.name != "classifier"):
        with safe_open(path, "pt") as stored:
            kinds = {stored.get_tensor(name).dtype for name in stored.keys()}  # noqa: SIM118
        assert {kind for kind in kinds if kind.is_floating_point} == {torch.bfloat16}


def test_a_head_is_stored_without_embedding() -> None:
    with safe_open(OUT / "draft" / "model.safetensors", "pt") as stored:
        names = set(stored.keys())
    assert names == HEADS["draft"].make(PAIRS["tiny"].head).state_dict().keys()
    assert not any("embed_tokens" in key for key in names)
