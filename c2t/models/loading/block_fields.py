"""The fields of published block drafters' configs: flat ones, with `dflash_config` in them, and nested ones.

What a field means is read in `block_config`; here is which fields there are, of which types, and where they stand.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field
from transformers import LlamaConfig, Qwen3Config

from c2t.errors import InputError
from c2t.models.loading.checkpoint_files import Layers as LayerCount
from c2t.models.loading.checkpoint_files import Size
from c2t.models.loading.eagle3_config import IGNORED, KIND
from c2t.storage.checked import from_json

INNER, LAYERS = "dflash_config", "transformer_layer_config"
MOST = 64  # slots of a block, and states that are read

Count = Annotated[int, Field(ge=0, le=2**20)]
LayerIds = Annotated[list[Annotated[int, Field(ge=-1, le=1024)]], Field(min_length=1, max_length=MOST)]
# Fields of block drafters, and their types.
FIELDS: dict[str, Any] = {
    "block_size": Annotated[int, Field(ge=1, le=MOST)],
    "mask_token_id": Count,
    "target_layer_ids": LayerIds,
    "aux_hidden_state_layer_ids": LayerIds,
    "num_target_layers": Count,
    "target_hidden_size": Size,
    "draft_vocab_size": Size,
    "projector_type": str,
    "sample_from_anchor": bool,
    "shift_label": bool,
    "markov_rank": Count,
    "markov_head_type": str,
    "enable_confidence_head": bool,
    "use_confidence_head": bool,
    "confidence_head_with_markov": bool,
    "layer_types": list[Literal["full_attention", "sliding_attention"]],
    "sliding_window": Size,
    "use_sliding_window": bool,
    "use_swa": bool,
    "swa_window_size": Size,
    "causal": bool,
    "causal_head": bool,
    "is_causal": bool,
    "sliding_window_non_causal": bool,
}
# Fields of the layers that are needed to read those.
CHECKED: dict[str, Any] = {"num_hidden_layers": LayerCount, "vocab_size": Size, "hidden_size": Size}
# Fields that change the computation, with the only value that c2t computes.
ONLY: dict[str, Any] = {
    "attention_bias": False,
    "mlp_bias": False,
    "attention_sink_bias": False,
    "is_neox_style": True,
    "rope_is_neox_style": True,
    "partial_rotary_factor": 1,
    "logit_scale": 1,
    "output_multiplier": 1,
    "input_embedding_scale": 1,
}
# Fields of the layers, which are read where these are built, and fields without effect.
ELSEWHERE = {*Qwen3Config().to_dict(), "rope_theta", "rope_scaling"} | IGNORED
ELSEWHERE |= {"num_anchors", "max_anchors", "confidence_head_alpha", "step_loss_decay", "ttt_length"}  # of training
# What speculators leaves out of its layers' config where it is the default of transformers.
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
SIZES += ("head_dim", "hidden_act", "rms_norm_eps", "vocab_size", "max_position_embeddings")


class ConfigFields(NamedTuple):
    """Fields of a config. layers: those from which the layers are built; given: those of FIELDS."""

    layers: dict[str, Any]
    given: dict[str, Any]


def fields_of(raw: dict[str, Any], path: Path) -> ConfigFields:
    """Return the fields of a block drafter's config. InputError for one that is not known, of the wrong type, of a
    value that is not computed, or there twice with different values."""
    part_of = LAYERS if KIND in raw else INNER
    part = {} if raw.get(part_of) is None else raw[part_of]
    if not isinstance(part, dict):
        raise InputError(f"{path}: {part_of} must be an object")
    outer = {name: value for name, value in raw.items() if name not in (part_of, KIND)}
    fields, given = _defaults(part, path) if part_of == LAYERS else {}, {}
    for prefix, entries in (("", outer), (f"{part_of}.", part)):
        for name, value in entries.items():
            if value is None:
                continue
            _check(name, value, f"{path}: {prefix}", closed=prefix == f"{INNER}.")
            if name in FIELDS and given.setdefault(name, value) != value:
                raise InputError(f"{path}: {name} is there twice, with different values: {given[name]} and {value}")
            fields[name] = value
    return ConfigFields({name: value for name, value in fields.items() if name not in FIELDS}, given)


def _check(name: str, value: Any, prefix: str, closed: bool) -> None:
    """closed: only fields of block drafters may stand here."""
    if kind := FIELDS.get(name, CHECKED.get(name)):
        from_json(kind, json.dumps(value), f"{prefix}{name}")
    elif name in ONLY:
        if value != ONLY[name]:
            raise InputError(f"{prefix}{name} = {value} is not supported, only {ONLY[name]}")
    elif closed or name not in ELSEWHERE:
        raise InputError(
            f"{prefix}{name} = {str(value)[:60]} is not known to c2t, and may change what the head computes; if it "
            "does not, remove it from the file"
        )


def _defaults(layers: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return transformers' defaults for the sizes of layers, which speculators does not write."""
    kind = layers.get("model_type", "qwen3")
    if kind not in ("qwen3", "llama"):
        raise InputError(f"{path}: layers of the type {str(kind)[:60]} are not supported; qwen3 and llama are")
    default = (Qwen3Config if kind == "qwen3" else LlamaConfig)().to_dict()
    if kind == "llama":  # whose other sizes follow from these two
        default["num_key_value_heads"] = layers.get("num_attention_heads", default["num_attention_heads"])
        default.pop("head_dim", None)
    return {name: default[name] for name in SIZES if name in default}
