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

INNER, LAYERS, CORRECTION = "dflash_config", "transformer_layer_config", "treeflash_config"
MOST = 64  # slots of a block, and states that are read

# Under `architectures`.
DFLASH, DSPARK, DFLASH2 = "DFlashDraftModel", "Qwen3DSparkModel", "DFlash2DraftModel"
TREEFLASH = "TreeFlashDraftModel"
CLASSES = {DFLASH: "dflash", DSPARK: "dspark", DFLASH2: "dflash2"}
CLASSES |= {"DSparkDraftModel": "dspark", "DominoDraftModel": "domino", TREEFLASH: "treeflash"}
NESTED = ("dflash", "dspark", "dflash2")  # under KIND
NEEDED = object()  # default of a field that must be there
# Kinds of block drafters, with the fields that only they have, and their defaults.
KINDS: dict[str, dict[str, Any]] = {
    "dflash": {},
    "dspark": {
        "markov_rank": NEEDED,
        "markov_head_type": "vanilla",
        "enable_confidence_head": None,
        "use_confidence_head": None,  # ModelOpt's name, where such a head always reads the token before
        "confidence_head_with_markov": None,
    },
    "domino": {"gru_hidden_dim": NEEDED, "emb_dim": NEEDED, "pure_draft_prefix_len": NEEDED},
    "treeflash": {"ar_approximation": None, "candidate_tokens": None},  # the last one is of a program, not of a head
    "dflash2": {
        "conv_kernel_size": NEEDED,
        "conv_group_size": NEEDED,
        "selector_rank": NEEDED,
        "selector_top_k": NEEDED,
        "output_multiplier": 1.0,
        "final_logit_softcapping": None,
        "input_embedding_scale": 1.0,
    },
}
# Values that say that a head of another kind lacks something.
NEUTRAL = {"markov_rank": 0, "enable_confidence_head": False, "output_multiplier": 1, "input_embedding_scale": 1}

Count = Annotated[int, Field(ge=0, le=2**20)]
Outputs = Annotated[list[Annotated[int, Field(ge=-1, le=1024)]], Field(min_length=1, max_length=MOST)]
Inputs = Annotated[list[Annotated[int, Field(ge=0, le=1024)]], Field(min_length=1, max_length=MOST)]
Scale = Annotated[float, Field(gt=0, lt=1e6, allow_inf_nan=False)]
# Fields of block drafters, and their types.
FIELDS: dict[str, Any] = {
    "block_size": Annotated[int, Field(ge=1, le=MOST)],
    "mask_token_id": Count,
    "target_layer_ids": Outputs,
    "aux_hidden_state_layer_ids": Inputs,
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
    "emb_dim": Size,
    "gru_hidden_dim": Size,
    "pure_draft_prefix_len": Annotated[int, Field(ge=0, le=MOST)],
    "conv_kernel_size": Size,
    "conv_group_size": Size,
    "selector_rank": Size,
    "selector_top_k": Size,
    "output_multiplier": Scale,
    "final_logit_softcapping": Scale,
    "input_embedding_scale": Scale,
    "ar_approximation": Literal["swiglu"],
    "candidate_tokens": Count,
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
}
# Fields of the layers, which are read where these are built, and fields without effect.
ELSEWHERE = {*Qwen3Config().to_dict(), "rope_theta", "rope_scaling"} | IGNORED
ELSEWHERE |= {"num_anchors", "max_anchors", "confidence_head_alpha", "step_loss_decay", "ttt_length"}  # of training
# What speculators leaves out of its layers' config where it is the default of transformers.
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
SIZES += ("head_dim", "hidden_act", "rms_norm_eps", "vocab_size", "max_position_embeddings")


class BlockFields(NamedTuple):
    """Fields of a config. layers: those from which the layers are built; given: those of FIELDS. kind: one of KINDS;
    nested: the config is one of speculators."""

    layers: dict[str, Any]
    given: dict[str, Any]
    kind: str
    nested: bool
    path: Path

    def agreed(self, stated: dict[str, Any]) -> Any:
        """Return the value that all of these have; InputError if they differ."""
        if len({*stated.values()}) > 1:
            said = " and ".join(f"{name} = {value}" for name, value in stated.items())
            raise InputError(f"{self.path}: {said} contradict each other")
        return next(iter(stated.values()))

    def of_kind(self) -> list[Any]:
        """Return the values of the fields that only this kind has, in the order of KINDS."""
        return [self.given.get(name, default) for name, default in KINDS[self.kind].items()]

    def stated(self, *names: str) -> dict[str, Any]:
        """Return those of these fields that the config has."""
        return {name: self.given[name] for name in names if name in self.given}


def is_block(raw: dict[str, Any]) -> bool:
    """Return True for the config of a block drafter, also of a class that c2t does not know."""
    if KIND in raw:
        return raw[KIND] in NESTED
    needed = {"block_size", "target_layer_ids", "mask_token_id"}
    return _class_of(raw) in CLASSES or INNER in raw or needed <= raw.keys()


def fields_of(raw: dict[str, Any], path: Path) -> BlockFields:
    """Return the fields of a block drafter's config. InputError for one that is not known, of the wrong type, of a
    value that is not computed, or there twice with different values."""
    nested = KIND in raw
    if not nested and _class_of(raw) not in CLASSES:
        named = f"{path}: architectures = {str(raw.get('architectures'))[:60]}"
        raise InputError(f"{named}: block drafters of this class are not supported; {', '.join(CLASSES)} are")
    names = (LAYERS,) if nested else (INNER, CORRECTION)
    parts = {name: {} if raw.get(name) is None else raw[name] for name in names}
    for name, part in parts.items():
        if not isinstance(part, dict):
            raise InputError(f"{path}: {name} must be an object")
    outer = {name: value for name, value in raw.items() if name not in (*parts, KIND)}
    fields, there = _defaults(parts[LAYERS], path) if nested else {}, {}
    for where, entries in {"": outer, **parts}.items():
        for name, value in entries.items():
            if value is None:
                continue
            _check(name, value, f"{path}: {where}{'.' * bool(where)}", closed=where in (INNER, CORRECTION))
            if name in FIELDS or name not in IGNORED:
                if name in there and there[name] != value:
                    shown = " and ".join(str(number)[:60] for number in (there[name], value))
                    raise InputError(f"{path}: {name} is there twice, with different values: {shown}")
                there[name] = value
            fields[name] = value
    given = {name: value for name, value in there.items() if name in FIELDS}
    layers = {name: value for name, value in fields.items() if name not in FIELDS}
    return _with_kind(BlockFields(layers, given, "", nested, path), raw)


def _with_kind(fields: BlockFields, raw: dict[str, Any]) -> BlockFields:
    """Return the fields with their kind; InputError for one that it needs and lacks, and for one of another kind."""
    by_class = {KIND: raw[KIND]} if fields.nested else {"architectures": CLASSES[_class_of(raw)]}
    stated = fields.stated("projector_type") | by_class
    if by_class == {"architectures": "dflash"} and len(stated) > 1:  # of which projector_type says more
        del stated["architectures"]
    kind = fields.agreed(stated)
    if kind not in KINDS:
        raise InputError(f"{fields.path}: projector_type = {kind} is not supported; {', '.join(KINDS)} are")
    for other, names in KINDS.items():
        for name, default in names.items():
            value = fields.given.get(name, default)
            if other == kind and value is NEEDED:
                raise InputError(f"{fields.path}: {name} is missing")
            if other != kind and value is not default and value != NEUTRAL.get(name):
                raise InputError(f"{fields.path}: {name} = {value} is not known in a head of the kind {kind}")
    return fields._replace(kind=kind)


def _class_of(raw: dict[str, Any]) -> str:
    named = raw.get("architectures")
    return named[0] if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str) else ""


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
