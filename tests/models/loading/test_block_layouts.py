"""Published layouts of block drafters' files, each as the form that it stands for, and what is refused by name."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from c2t.errors import InputError
from c2t.models.drafts.block import BlockForm
from c2t.models.drafts.block_layers import LayerMask
from c2t.models.drafts.dflash2 import DFlash2Form
from c2t.models.loading.eagle_checkpoint import load_head, save_head
from c2t.models.loading.load import load_draft
from c2t.models.loading.names import parse
from tests.models.drafts.test_dspark import FORM, KEPT, SIZE, TARGET, draft_of
from tests.toys import SIZES, VOCABULARY

LAYERS = {name: value for name, value in SIZES.items() if value is not None} | {"head_dim": 8}
MARKOV = {"markov_rank": FORM.markov_rank, "markov_head_type": "vanilla"}
ALL, BACK = LayerMask(None, False), LayerMask(None, True)  # what a layer without a window lets a slot see
WIDE = LayerMask(5, False)
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
DFLASH2 = {"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 5, "selector_top_k": 6}
BARE = BlockForm(SIZE, 7, (1, 3, 4))
SAFE = "model.safetensors"
Config = dict[str, Any]


def dflash(inner: Config | None = None, **outer: Any) -> Config:
    """z-lab's flat config; ids name outputs of layers."""
    read = {"mask_token_id": 7, "target_layer_ids": [1, 3, 4]} | (inner or {})
    return LAYERS | {"architectures": ["DFlashDraftModel"], "block_size": SIZE, "dflash_config": read} | outer


def modelopt(**inner: Any) -> Config:
    """NVIDIA's flat config of a DSpark head."""
    return dflash({"projector_type": "dspark", "use_confidence_head": True, "shift_label": True} | MARKOV | inner)


def domino(**inner: Any) -> Config:
    """SpecForge's flat config of a Domino head."""
    sizes = {"gru_hidden_dim": 6, "emb_dim": 5, "pure_draft_prefix_len": 1, "shift_label": True}
    return dflash(sizes | inner, architectures=["DominoDraftModel"])


def dflash2(**inner: Any) -> Config:
    """z-lab's flat config of a DFlash2 head."""
    return dflash(DFLASH2 | inner, architectures=["DFlash2DraftModel"], is_causal=False)


def treeflash(correction: str | None) -> Config:
    """TreeFlash's flat config."""
    settings = {"ar_approximation": correction, "candidate_tokens": 16}
    return dflash(architectures=["TreeFlashDraftModel"], treeflash_config=settings)


def speculators(kind: str, layers: Config | None = None, **outer: Any) -> Config:
    """RedHatAI's nested config; ids name inputs of layers."""
    config = {"speculators_model_type": kind, "speculators_version": "0.7", "block_size": SIZE, "mask_token_id": 7}
    config |= {"aux_hidden_state_layer_ids": [2, 4, 5], "draft_vocab_size": VOCABULARY}
    heads = MARKOV | {"enable_confidence_head": True, "confidence_head_with_markov": True}
    inner = {"model_type": "qwen3"} | LAYERS | (layers or {})
    return config | (heads if kind == "dspark" else {}) | {"transformer_layer_config": inner} | outer


def write(folder: Path, config: Config, form: BlockForm = FORM, rename: dict[str, str] | None = None) -> Path:
    """A head of this form under this config, with some tensors renamed."""
    save_head(draft_of(form, KEPT if form.draft_vocab else None).head, folder)
    state = load_file(folder / "model.safetensors")
    for old, new in (rename or {}).items():
        state = {name.replace(old, new): weight for name, weight in state.items()}
    save_file(state, folder / "model.safetensors")
    (folder / "tokens.safetensors").unlink(missing_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def form(folder: Path, **settings: Any) -> BlockForm:
    return load_head(folder, TARGET.embed_tokens, **settings).form


def test_ids_name_outputs_in_flat_configs_and_inputs_in_nested_ones(tmp_path: Path) -> None:
    for number, config in enumerate((dflash(), speculators("dflash"))):
        assert form(write(tmp_path / str(number), config, BARE)).layer_ids == (1, 3, 4)


@pytest.mark.parametrize(
    ("config", "named", "from_anchor"),
    [
        (dflash(), None, False),
        (dflash({"sample_from_anchor": True}), None, True),
        (dflash(), True, True),
        (speculators("dflash"), None, False),
        (speculators("dflash", sample_from_anchor=True), None, True),
        (speculators("dspark", sample_from_anchor=True), None, True),
        (speculators("dspark", sample_from_anchor=False), None, False),
        (speculators("dspark"), True, True),
        (speculators("dspark"), False, False),
        (modelopt(), None, True),
        (dflash(architectures=["DSparkDraftModel"], **MARKOV), False, False),
    ],
)
def test_alignment_is_what_the_config_or_the_user_says(
    config: Config, named: bool | None, from_anchor: bool, tmp_path: Path
) -> None:
    has_heads = "markov_rank" in json.dumps(config)
    known = FORM if "confidence" in json.dumps(config) else BlockForm(SIZE, 7, (1, 3, 4), markov_rank=FORM.markov_rank)
    found = form(write(tmp_path, config, known if has_heads else BARE), anchor=named)
    assert found.from_anchor is from_anchor
    assert found.markov_rank == (FORM.markov_rank if has_heads else 0)


@pytest.mark.parametrize(
    ("config", "masks"),
    [
        (dflash(), ()),
        (dflash(sliding_window=4, use_sliding_window=False), ()),
        (dflash(**SLIDING), (LayerMask(4, True), ALL)),  # by default a layer with a window looks back only
        (dflash(**SLIDING, use_sliding_window=True, is_causal=False), (LayerMask(4, False), ALL)),
        (dflash({"causal_head": True}), (BACK, BACK)),  # JetSpec's
        (dflash({"causal": True}), (BACK, BACK)),
        (dflash({"use_swa": True, "swa_window_size": 5, "causal": False}, sliding_window=5), (WIDE, WIDE)),
        (dflash({"use_swa": True, "swa_window_size": 5}), (WIDE, WIDE)),
        (speculators("dflash", SLIDING, sliding_window_non_causal=False), (LayerMask(4, True), ALL)),
        (speculators("dflash", SLIDING, sliding_window_non_causal=True), (LayerMask(4, False), ALL)),
    ],
)
def test_each_layer_sees_what_its_fields_say(config: Config, masks: tuple[LayerMask, ...], tmp_path: Path) -> None:
    head = load_head(write(tmp_path / "published", config, BARE), TARGET.embed_tokens)
    assert head.form.layer_masks == masks
    save_head(head, tmp_path / "ours")
    assert form(tmp_path / "ours") == head.form


def test_block_size_stands_in_either_place(tmp_path: Path) -> None:
    config = dflash({"block_size": SIZE})
    config.pop("block_size")
    assert form(write(tmp_path, config, BARE)).size == SIZE


def test_sizes_that_speculators_leaves_out_are_transformers_defaults(tmp_path: Path) -> None:
    config = speculators("dflash")
    config["transformer_layer_config"].pop("num_attention_heads")
    with pytest.raises(InputError, match=r"q_proj.weight is \(32, 32\), the config says \(256, 32\)"):
        form(write(tmp_path, config, BARE))


def test_of_ropes_by_types_of_layers_speculators_takes_that_of_windows(tmp_path: Path) -> None:
    ropes = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 5e5, "rope_type": "default"}}
    head = load_head(write(tmp_path, speculators("dflash", {"rope_parameters": ropes}), BARE), TARGET.embed_tokens)
    assert head.config.rope_parameters["rope_theta"] == 5e5


@pytest.mark.parametrize(
    "rename",
    [
        {"markov_head.": "", "confidence_head.proj": "confidence_proj"},  # ModelOpt's
        {"markov_head.": "logit_head.markov_head."},  # an older SpecForge's
        {"layers.": "model.layers."},
    ],
)
def test_tensors_are_found_under_other_names(rename: dict[str, str], tmp_path: Path) -> None:
    head = load_head(write(tmp_path, modelopt(), rename=rename), TARGET.embed_tokens)
    for name, weight in draft_of().head.state_dict().items():
        assert head.state_dict()[name].float().equal(weight.float()), name


def test_dominos_files_are_read(tmp_path: Path) -> None:
    known = BlockForm(SIZE, 7, (1, 3, 4), from_anchor=True, domino=(6, 5, 1))
    rename = {"prefix_gru": "logit_head.prefix_gru", "embed_proj": "logit_head.embed_proj"}
    assert form(write(tmp_path / "published", domino(), known, rename)) == known
    assert form(write(tmp_path / "in place", domino(shift_label=False), known)).from_anchor is False
    save_head(load_head(tmp_path / "published", TARGET.embed_tokens), tmp_path / "ours")
    assert form(tmp_path / "ours") == known
    assert {"prefix_gru.weight_ih_l0", "embed_proj.2.weight"} <= load_file(tmp_path / "ours/model.safetensors").keys()


def test_dflash2s_files_are_read(tmp_path: Path) -> None:
    known = BlockForm(SIZE, 7, (1, 3, 4), dflash2=DFlash2Form(2, 4, 5, 6))
    assert form(write(tmp_path / "flat", dflash2(), known)) == known
    assert form(write(tmp_path / "nested", speculators("dflash2", SLIDING, **DFLASH2), known)).layer_masks == (
        LayerMask(4, False),
        ALL,
    )
    capped = dflash2(final_logit_softcapping=20, output_multiplier=0.196, input_embedding_scale=2.0)
    head = load_head(write(tmp_path / "capped", capped, known), TARGET.embed_tokens)
    assert head.form.dflash2 == DFlash2Form(2, 4, 5, 6, 0.196, 20.0, 2.0)
    save_head(head, tmp_path / "ours")
    assert form(tmp_path / "ours") == head.form


def test_treeflashs_files_are_read(tmp_path: Path) -> None:
    known, names = BlockForm(SIZE, 7, (1, 3, 4), treeflash=True), {"layers.": "model.layers.", "fc.": "model.fc."}
    assert form(write(tmp_path, treeflash("swiglu"), known, names)) == known
    save_head(load_head(tmp_path, TARGET.embed_tokens), tmp_path / "ours")
    assert form(tmp_path / "ours") == known
    assert form(write(tmp_path / "bare", treeflash(None), BARE)) == BARE


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_a_map_names_the_own_vocabulary(kind: str, tmp_path: Path) -> None:
    """W1 is over the target's tokens, W2 and the LM head over its own; the verifier's rows are not read."""
    known = BlockForm(**vars(FORM) | {"draft_vocab": len(KEPT)}) if kind == "dspark" else BARE
    folder = write(tmp_path, speculators(kind, draft_vocab_size=len(KEPT), sample_from_anchor=kind == "dspark"), known)
    state, rows = load_file(folder / "model.safetensors"), torch.randn(len(KEPT), SIZES["hidden_size"])
    state |= {"d2t": KEPT - torch.arange(len(KEPT)), "lm_head.weight": rows, "verifier_norm.weight": rows[0].clone()}
    save_file(state, folder / "model.safetensors")
    draft = load_draft(str(folder), copy.deepcopy(TARGET))
    assert draft.vocabulary.tokens.equal(KEPT)
    assert draft.head.lm_head.weight.float().equal(rows)
    if kind == "dspark":
        assert draft.head.markov_head.markov_w1.weight.shape[0] == VOCABULARY
        assert draft.head.markov_head.markov_w2.weight.shape[0] == len(KEPT)
    save_file(state | {"d2t": state["d2t"][:-1].clone()}, folder / "model.safetensors")
    with pytest.raises(InputError, match=f"draft_vocab_size = {len(KEPT)}, but .* has {len(KEPT) - 1} tokens"):
        load_draft(str(folder), TARGET)
    (folder / "config.json").write_text(json.dumps(speculators(kind, sample_from_anchor=kind == "dspark")))
    save_file({name: tensor for name, tensor in state.items() if name != "lm_head.weight"}, folder / SAFE)
    with pytest.raises(InputError, match=f"d2t names {len(KEPT)} tokens, but config.json has no draft_vocab_size"):
        load_draft(str(folder), TARGET)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64])
def test_weights_that_are_no_real_numbers_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    """Such as those of a quantised head, whose scales c2t does not know."""
    folder = write(tmp_path, dflash(), BARE)
    state = load_file(folder / SAFE)
    save_file(state | {"fc.weight": state["fc.weight"].to(dtype)}, folder / SAFE)
    with pytest.raises(InputError, match=f"fc.weight is stored as {str(dtype).removeprefix('torch.')}"):
        load_draft(str(folder), TARGET)


def test_the_user_names_the_alignment_in_the_drafts_name(tmp_path: Path) -> None:
    folder = write(tmp_path, speculators("dspark"))
    assert load_draft(f"{folder}+anchor=yes", copy.deepcopy(TARGET)).head.form.from_anchor
    assert not load_draft(f"{folder}+anchor=no+ngrams", copy.deepcopy(TARGET)).draft.head.form.from_anchor
    assert parse("a/b+anchor=no").reads == "+anchor=no"
    for name, line in (
        (f"{folder}+anchor=1", r"write \+anchor=yes or \+anchor=no"),
        ("lookup+anchor=yes", r"lookup has no states that \+anchor="),
        (f"{folder}+taps=1,2,3+anchor=yes", "no EAGLE-3 head"),
    ):
        with pytest.raises(InputError, match=line):
            load_draft(name, copy.deepcopy(TARGET))


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (speculators("dspark"), r"sample_from_anchor is missing, .* write \+anchor=yes .*, \+anchor=no"),
        (dflash(architectures=["DSparkDraftModel"], **MARKOV), "sample_from_anchor is missing"),
        (modelopt(shift_label=None), "sample_from_anchor is missing"),
        (modelopt(sample_from_anchor=False), "sample_from_anchor = False and shift_label = True contradict"),
        (modelopt(projector_type="domino"), "markov_rank = 5 is not known in a head of the kind domino"),
        (domino(gru_hidden_dim=None), "gru_hidden_dim is missing"),
        (domino(shift_label=None), "sample_from_anchor is missing"),
        (domino(markov_rank=4), "markov_rank = 4 is not known in a head of the kind domino"),
        (domino(projector_type="dspark"), "projector_type = dspark and architectures = domino contradict"),
        (modelopt(projector_type="xpress"), "projector_type = xpress is not supported"),
        (modelopt(markov_head_type="rnn", shift_label=False), "rnn is not supported where slots speak of their own"),
        (modelopt(markov_rank=None), "markov_rank is missing"),
        (dflash(num_hidden_layers=10**12), "num_hidden_layers"),
        (dflash(vocab_size="48"), "vocab_size"),
        (dflash({"block_size": SIZE + 1}), "block_size is there twice"),
        (dflash({"causal": True}, is_causal=False), "is_causal = False and causal = True contradict"),
        (dflash({"causal": True, "causal_head": False}), "contradict"),
        (dflash({"attention_sink_bias": True}), "attention_sink_bias = True is not supported"),
        (dflash({"rope_theta": 1e6}), "dflash_config.rope_theta = 1000000.0 is not known"),
        (dflash({"use_swa": True}), "sliding_window is missing"),
        (dflash({"use_swa": True, "swa_window_size": 5}, sliding_window=6), "contradict"),
        (dflash({"target_hidden_size": 64}), "target_hidden_size = 64 must be hidden_size = 32"),
        (dflash(**SLIDING, use_sliding_window=False), "use_sliding_window = False and layer_types contradict"),
        (dflash(**SLIDING | {"sliding_window": 2}), "a window of 2 tokens must be at least block_size"),
        (dflash(use_sliding_window=True, sliding_window=4), "layer_types, .*, is missing"),
        (dflash(layer_types=["full_attention"]), "layer_types has 1 entries for 2 layers"),
        (dflash(layer_types=["linear_attention"] * 2), "layer_types"),
        (dflash(partial_rotary_factor=0.5), "partial_rotary_factor = 0.5 is not supported"),
        (dflash(is_neox_style=False), "is_neox_style = False is not supported, only True"),  # pairs of neighbours turn
        (speculators("dflash", {"rope_is_neox_style": False}), "rope_is_neox_style = False is not supported"),
        (
            dflash(final_logit_softcapping=20.0),
            "final_logit_softcapping = 20.0 is not known in a head",
        ),
        (speculators("dflash", SLIDING), "sliding_window_non_causal is missing"),
        (speculators("dflash", {"model_type": "gemma4_text"}), "layers of the type gemma4_text are not supported"),
        (speculators("dflash", {"attention_bias": True}), "transformer_layer_config.attention_bias = True"),
        (speculators("dflash", aux_hidden_state_layer_ids=[2, 4, 7]), "must rise, up to 5"),
        (speculators("dflash", aux_hidden_state_layer_ids=[-1, 2, 4]), "aux_hidden_state_layer_ids"),
        (speculators("dflash", aux_hidden_state_layer_ids=None), "aux_hidden_state_layer_ids is missing"),
        (speculators("dflash", mask_token_id=None), "mask_token_id is missing"),
        (speculators("dflash", draft_vocab_size=VOCABULARY + 1), "draft_vocab_size = 49 is more than"),
        (speculators("dflash", transformer_layer_config=[]), "transformer_layer_config must be an object"),
        (speculators("dflash2"), "conv_kernel_size is missing"),
        (
            speculators("dflash", {"rope_theta": 1e4}, rope_theta=1e6),
            "rope_theta is there twice, with different",
        ),
        (speculators("dflash", num_key_value_heads=64), "num_key_value_heads is there twice, with different values"),
        (speculators("dflash2", **DFLASH2, sample_from_anchor=True), "sample_from_anchor = True is not known"),
        (dflash({"output_multiplier": 0.5}), "output_multiplier = 0.5 is not known in a head of the kind dflash"),
        (
            dflash(architectures=["OrthrusDFlashModel"]),
            "of this class are not supported; DFlashDraftModel",
        ),
        (treeflash("linear"), "ar_approximation"),
        (dflash(treeflash_config={"ar_approximation": "swiglu"}), "ar_approximation = swiglu is not known in a head"),
        (dflash2(conv_group_size=5), "conv_group_size divide hidden_size"),
        (dflash2(conv_kernel_size=SIZE + 1), "conv_kernel_size must be at most block_size"),
        (dflash2(final_logit_softcapping=0.0), "final_logit_softcapping"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_understood_is_refused_by_name(config: Config, line: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=line):
        load_draft(str(write(tmp_path, config, BARE)), TARGET)
