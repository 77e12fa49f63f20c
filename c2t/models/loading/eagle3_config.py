"""The configs and weights of published EAGLE-3 heads in one form: SafeAILab's, which SpecForge, lmsys and AngelSlim
share ("flat"), speculators' (RedHatAI), and DeepSpec's (deepseek-ai).

What changes the computation is read, or refused by its name. Engines differ in what a field means if it is left out;
where they do, it must be there.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig

from c2t.errors import InputError
from c2t.models.drafts.eagle3 import Eagle3Variant
from c2t.models.loading.checkpoint_files import Layers
from c2t.models.target.families import FULL, SLIDING
from c2t.storage.checked import from_json

KIND = "speculators_model_type"
ARCHITECTURES = [["LlamaForCausalLMEagle3"], ["Eagle3LlamaForCausalLM"], ["Eagle3Speculator"], ["Eagle3DraftModel"]]
DEEPSPEC = "Qwen3Eagle3Model"
MODEL_TYPES = ("llama", "qwen3")
IDS = "eagle_aux_hidden_state_layer_ids"
SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
MOST_TAPS = 5
LayerId = Annotated[int, Field(ge=0, le=1024)]  # of the target
LayerIds = Annotated[list[LayerId], Field(min_length=1, max_length=MOST_TAPS)]

# Fields that are read, besides SWITCHES and IDS.
READ = {
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act"),
    *("num_hidden_layers", "rms_norm_eps", "vocab_size", "max_position_embeddings", "max_sequence_length"),
    *("rope_theta", "rope_scaling", "rope_parameters", "draft_vocab_size", "target_hidden_size", "model_type", KIND),
    *("attention_bias", "mlp_bias", "bias", "num_aux_hidden_states", "use_aux_hidden_state", "use_aux_norm"),
    *("architectures", "target_rows", "taps", "num_target_layers"),
    *("layer_types", "use_sliding_window", "sliding_window"),
}
OF_LAYERS = sorted(READ - {"architectures", "model_type"})  # what the parts of a nested config must agree on
# Fields that change the computation, with the only value that c2t computes.
ONLY = {
    "logit_scale": 1,
    "partial_rotary_factor": 1,
    "is_causal": True,
    "parallel_draft_step": 1,
    "use_input_layernorm_in_first_layer": True,  # this and the next three as NVIDIA's ModelOpt writes them
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
}
# Fields of training, of generation and of bookkeeping. The weights decide about tie_word_embeddings: a head's file has
# its LM head, or is refused. max_window_layers does nothing where there are layer_types.
IGNORED = {
    *PreTrainedConfig().to_dict(),
    *GenerationConfig().to_dict(),
    *("speculators_version", "speculators_config", "auto_map", "torch_dtype", "initializer_range", "pretraining_tp"),
    *("attention_dropout", "has_lm_head", "max_window_layers", "embed_requires_grad"),
    *(
        "parallel_drafting",
        "enable_sp_ulysses",
        "has_no_defaults_at_init",
        "parallel_draft_heads_num_layers",
        "mask_token_id",
        "ttt_steps",
    ),
    *("decoder_start_token_id", "sep_token_id", "unk_token_id", "tie_word_embeddings", "is_decoder", "torchscript"),
    *("add_cross_attention", "cross_attention_hidden_size", "tie_encoder_decoder", "finetuning_task", "prefix"),
    *("pruned_heads", "task_specific_params", "tokenizer_class", "use_bfloat16", "tf_legacy_loss", "use_cache"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "embd_pdrop", "resid_pdrop"),
}
# Fields of DeepSpec's trainer.
TRAINING = ("ttt_length", "step_loss_decay", "target_model_name_or_path", "draft_num_hidden_layers")


def is_eagle3(raw: dict[str, Any]) -> bool:
    """Return True for the config.json of an EAGLE-3 head."""
    return KIND in raw or "draft_vocab_size" in raw or _has_class(raw) or _is_deepspec(raw)


def _is_deepspec(raw: dict[str, Any]) -> bool:
    return raw.get("architectures") == [DEEPSPEC]


def _has_class(raw: dict[str, Any]) -> bool:
    named = raw.get("architectures")
    return isinstance(named, list) and named[:1] in ARCHITECTURES


def flattened(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the config of an EAGLE-3 head as one flat document without nulls. InputError that names a field which
    c2t does not compute, or whose meaning depends on the engine."""
    if raw.get(KIND) not in (None, "eagle3"):
        raise InputError(f"{path}: a speculators head of the kind {raw[KIND]!r} is not supported; eagle3 is")
    nested = ("transformer_layer_config", "eagle_config")
    parts = [raw.get(name) or {} for name in nested]
    if not all(isinstance(part, dict) for part in parts):
        raise InputError(f"{path}: {' and '.join(nested)} must be objects")
    layer, eagle = (_without_nulls(part) for part in parts)
    outer = _without_nulls({name: value for name, value in raw.items() if name not in nested})
    twice = [name for name in eagle if name in outer and outer[name] != eagle[name]]
    twice += [name for name in OF_LAYERS if name in layer and name in outer and outer[name] != layer[name]]
    if twice:
        raise InputError(f"{path}: {twice[0]} is there twice, with different values")
    flat = layer | outer | eagle
    if _is_deepspec(raw):
        flat = _of_deepspec(flat, path)
    # A flat config of EAGLE's own class has Llama's layers, whatever model_type it took over from its target.
    by_class = KIND not in raw and _has_class(raw)
    if KIND in raw:
        flat |= {"model_type": layer.get("model_type", "llama")}
    if not flat.get("rope_scaling") and not flat.get("rope_parameters"):
        flat.pop("original_max_position_embeddings", None)  # Phi-3's, used by a scaled RoPE only
    for name, value in flat.items():
        if name != "model_type" or not by_class:
            _check_field(name, value, path)
    if KIND in raw and "norm_before_residual" not in flat:
        raise InputError(
            f"{path}: norm_before_residual is missing, which speculators takes as false and vLLM as true; write the "
            "one that the head was trained with"
        )
    rope = flat.get("rope_parameters")
    for kind in (FULL, SLIDING):  # where there is one for each, speculators turns all layers by the latter
        if isinstance(rope, dict) and isinstance(rope.get(kind), dict):
            flat["rope_parameters"] = rope[kind]
    flat.setdefault("draft_vocab_size", flat.get("vocab_size"))
    flat.setdefault("num_hidden_layers", 1)
    return flat


def _of_deepspec(flat: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return DeepSpec's config in the flat form: its `target_layer_ids` count outputs of layers, whose states are the
    inputs of the next ones. InputError for several layers, each of which would read the token, and for the target's
    last one, whose output it reads after the final norm."""
    several = [name for name in ("num_hidden_layers", "draft_num_hidden_layers") if flat.get(name, 1) != 1]
    if several:
        raise InputError(f"{path}: {several[0]} = {flat[several[0]]}: {DEEPSPEC} is supported with one layer only")
    count: int = from_json(Layers, json.dumps(flat.get("num_target_layers")), f"{path}: num_target_layers")
    ids: list[int] = from_json(LayerIds, json.dumps(flat.get("target_layer_ids")), f"{path}: target_layer_ids")
    if any(low >= high for low, high in pairwise(ids)) or ids[-1] > count - 2:
        raise InputError(
            f"{path}: target_layer_ids = {ids} must rise, up to {count - 2} for a target of {count} layers (the last "
            "one's output would be read after the final norm)"
        )
    left = {name: value for name, value in flat.items() if name not in (*TRAINING, "target_layer_ids")}
    return left | {"taps": [number + 1 for number in ids]}


def _without_nulls(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if value is not None}


def _check_field(name: str, value: Any, path: Path) -> None:
    if name == "model_type":
        if value not in (*MODEL_TYPES, "speculators"):
            raise InputError(f"{path}: layers of the type {value!r} are not supported; {', '.join(MODEL_TYPES)} are")
    elif name in ONLY:
        if value != ONLY[name]:
            raise InputError(f"{path}: {name} = {value} is not supported, only {ONLY[name]}")
    elif name not in READ | IGNORED and name not in SWITCHES and name != IDS:
        raise InputError(
            f"{path}: {name} = {str(value)[:60]} is not known to c2t, and may change what the head computes; if "
            "it does not, remove it from the file"
        )


def variant_of(flat: dict[str, Any], path: Path) -> Eagle3Variant:
    """Return what a flattened config says about the head's form. InputError for entries that contradict each other."""
    ids = tuple(sorted(flat[IDS])) if IDS in flat else None  # engines collect states in the order of the layers
    inputs = tuple(flat["taps"]) if "taps" in flat else None
    if KIND in flat and inputs is None:
        inputs, ids = ids, None  # speculators counts inputs, as vLLM does
    given = inputs or ids
    taps = flat.get("num_aux_hidden_states", len(given) if given else 3)
    if not flat.get("use_aux_hidden_state", True):
        taps = 0
    elif given is None and taps != 3:
        raise InputError(f"{path}: {taps} states are read, but {IDS} does not say which")
    elif given is not None and len(given) != taps:
        raise InputError(f"{path}: {IDS} has {len(given)} layers, num_aux_hidden_states is {taps}")
    switches: dict[str, Any] = {name: flat.get(name, False) for name in SWITCHES}
    switches["fc_norm"] |= flat.get("use_aux_norm", False)  # its old name
    if switches["fc_norm"] and switches["norm_before_fc"]:
        raise InputError(f"{path}: fc_norm and norm_before_fc exclude each other")
    other_width = flat.get("target_hidden_size", flat["hidden_size"]) != flat["hidden_size"]
    if not taps and (switches["fc_norm"] or switches["norm_before_fc"] or other_width):
        raise InputError(f"{path}: use_aux_hidden_state is false, so there is no fc for norms or another width")
    form = taps, inputs, ids, flat.get("num_target_layers"), flat.get("bias", False) and taps > 0
    layout = "speculators" if KIND in flat else "DeepSpec" if _is_deepspec(flat) else "flat"
    return Eagle3Variant(*form, windows=windows_of(flat, path), layout=layout, **switches)


def windows_of(flat: dict[str, Any], path: Path) -> tuple[int, ...]:
    """Return the window of each layer, 0 for none; () where none has one: sliding_window alone asks for nothing.
    InputError for entries that contradict each other."""
    kinds, window = flat.get("layer_types", []), flat.get("sliding_window")
    if others := set(kinds) - {FULL, SLIDING}:
        raise InputError(f"{path}: layer_types = {min(others)!r} is not supported, only {FULL} and {SLIDING}")
    sliding = SLIDING in kinds
    # Llama's config has no such switch; Qwen3's is off where it is not written.
    switch = flat.get("use_sliding_window", sliding and flat.get("model_type") != "qwen3")
    if switch != sliding:
        raise InputError(
            f"{path}: use_sliding_window is {str(switch).lower()}, and layer_types has {'some' if sliding else 'no'} "
            f"{SLIDING}: write what the head was trained with"
        )
    if sliding and not (window and len(kinds) == flat["num_hidden_layers"]):
        raise InputError(
            f"{path}: {SLIDING} needs sliding_window, and layer_types one entry for each of num_hidden_layers"
        )
    return tuple(window if kind == SLIDING else 0 for kind in kinds) if sliding else ()


def name_of(name: str) -> str:
    """Return SafeAILab's name of a tensor, "" for one that no forward reads."""
    name = name.removeprefix("model.")
    if name in ("verifier_lm_head.weight", "verifier_norm.weight") or name.endswith("rotary_emb.inv_freq"):
        return ""
    for number, old in enumerate(("low", "mid", "high")):
        name = name.replace(f"aux_norm_{old}.", f"fc_norm.{number}.")
    return "midlayer." + name.removeprefix("layers.0.") if name.startswith("layers.0.") else name


def with_maps(state: dict[str, Tensor], vocabulary: int, folder: Path) -> dict[str, Tensor]:
    """Return the weights with both maps of the draft's vocabulary, of which t2d may be missing: it says nothing that
    d2t does not say. InputError for maps that name no rising tokens of the target, or different ones."""
    if "d2t" not in state:
        return state
    d2t = state["d2t"].long()
    tokens = torch.arange(len(d2t), device=d2t.device) + d2t if d2t.dim() == 1 else d2t.new_zeros(0)
    if not len(tokens) or tokens[0] < 0 or tokens[-1] >= vocabulary or not (tokens[1:] > tokens[:-1]).all():
        raise InputError(f"{folder}: d2t does not name rising tokens of the target's {vocabulary}; copy the file again")
    t2d = torch.zeros(vocabulary, dtype=torch.bool, device=d2t.device).index_fill(0, tokens, True)
    if "t2d" in state and not torch.equal(state["t2d"].bool(), t2d):
        raise InputError(f"{folder}: d2t and t2d name different tokens; copy the file again")
    return state | {"d2t": d2t, "t2d": t2d}
