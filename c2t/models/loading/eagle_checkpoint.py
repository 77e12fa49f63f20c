"""Reading and writing of draft heads, EAGLE's in upstream's formats: `config.json` and one file of weights, or an index
and shards."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config

from c2t.errors import InputError, one_line
from c2t.models.drafts.block import BlockHead
from c2t.models.drafts.eagle import EagleHead, Head
from c2t.models.drafts.eagle3 import Eagle3Head
from c2t.models.drafts.medusa import MedusaHead
from c2t.models.drafts.mtp import MTPHead
from c2t.models.drafts.stock_heads import decoder_layers
from c2t.models.loading import block_config, block_fields, block_weights, eagle3_config
from c2t.models.loading.checkpoint_files import Layers, Positions, Size
from c2t.models.loading.head_config import raw_of
from c2t.models.loading.hub import fetch
from c2t.models.loading.unread_heads import refuse_unread, refuse_unread_weights
from c2t.models.loading.weight_files import read_weights, renamed
from c2t.storage.checked import OPEN, from_json, read_file

# Upstream's defaults for what a head's config leaves out; none of it is inherited from the target.
_DEFAULTS = {"num_hidden_layers": 1, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 2048}
# Types of RoPE and their settings.
ROPES: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {"factor", "beta_fast", "beta_slow", "truncate", "attention_factor", "original_max_position_embeddings"},
}
EAGLE = re.compile("ForCausalLM(Eagle)?$")  # classes of EAGLE-1/2 heads, which upstream names by their layer's
TOKENS = "tokens.safetensors"  # ids of the tokens that a head can name; a file of c2t, which upstream ignores
_Layers = eagle3_config.LayerIds | None
SHOWN = 8  # names of weights in a message, at most
_NEEDED = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")


def load_head(
    path_or_id: str | Path,
    embed_tokens: nn.Embedding,
    lm_head: nn.Module | None = None,
    taps: tuple[int, ...] | None = None,
    anchor: bool | None = None,
) -> Head:
    """Load a head (EAGLE-1/2, EAGLE-3, MTP, Medusa-style or DFlash, by its config) onto the target's embedding, device
    and dtype.

    Reads `model.safetensors` or `pytorch_model.bin`, whole or in shards, in fp32, fp16 or bf16, with or without
    embed_tokens. lm_head: the target's, for EAGLE-3 heads that store none of its rows. taps: layers of the target
    whose inputs an EAGLE-3 head reads, in place of those that its config names. anchor: whether a block drafter drafts
    from the anchor, where its config does not say it. Raises InputError for a head whose
    hidden size or vocabulary differs from the target's, for entries of an EAGLE-3 config that c2t does not compute,
    and for missing, unexpected or unreadable weights.
    """
    folder = fetch(path_or_id)
    raw, layer = _read_config(folder, anchor), shared_layer(folder)
    vocabulary, hidden = embed_tokens.weight.shape
    width = "target_hidden_size" if raw.get("target_hidden_size") else "hidden_size"
    for name, mine, theirs in ((width, raw[width], hidden), ("vocab_size", raw["vocab_size"], vocabulary)):
        if mine != theirs:
            raise InputError(
                f"{folder}: the draft head has {name} {mine}, the target {theirs}; take the head of this target"
            )
    state = read_weights(folder)
    refuse_unread_weights(state, folder)
    if eagle3_config.is_eagle3(raw):
        state = eagle3_config.with_maps(renamed(state, eagle3_config.name_of, folder), vocabulary, folder)
        if eagle3_config.KIND not in raw:  # code that reads flat configs looks at the weights, not at model_type
            raw["model_type"] = "qwen3" if "midlayer.self_attn.q_norm.weight" in state else "llama"
    tokens: Tensor | None = None
    if block_config.FORM in raw:
        state, tokens = block_weights.adapted(state, vocabulary, folder)
        raw[block_config.FORM]["own_lm_head"] = "lm_head.weight" in state
        if tokens is not None and raw[block_config.FORM]["draft_vocab"] is None:
            raise InputError(f"{folder}: d2t names {len(tokens)} tokens, but config.json has no draft_vocab_size")
    embedding = state.pop("embed_tokens.weight", None)
    if anchor is not None and block_config.FORM not in raw:
        raise InputError(f"{folder}: no block drafter, so it has no alignment that {block_config.ANCHOR} could name")
    if taps is not None:
        if not eagle3_config.is_eagle3(raw):
            raise InputError(f"{folder}: no EAGLE-3 head, so it reads no layers that taps could name")
        count = eagle3_config.variant_of(raw, folder / "config.json").taps
        if len(taps) != count:
            raise InputError(f"{folder}: taps = {','.join(map(str, taps))}: the head reads {count} states")
        raw["taps"] = list(taps)
    if embedding is None and raw["hidden_size"] != hidden:
        raise InputError(f"{folder}: embed_tokens.weight is missing, and the target's is of another width, {hidden}")
    if raw.get("target_rows") and raw["hidden_size"] != hidden:
        raise InputError(f"{folder}: its LM head has the target's rows, which are {hidden} wide, and not its own width")
    if embedding is not None and embedding.shape != (vocabulary, raw["hidden_size"]):
        raise InputError(f"{folder}: its embedding is {tuple(embedding.shape)}, not {(vocabulary, raw['hidden_size'])}")
    if raw.get("draft_vocab_size") == raw["vocab_size"]:
        state = {name: tensor for name, tensor in state.items() if name not in ("d2t", "t2d")}
    with torch.device("meta"):  # which takes no memory: a config's sizes are true only if the weights have them
        empty = _build(raw, folder)
        _check_names(folder, _stored(empty), state)
        if layer is not None and isinstance(empty, MedusaHead):
            state |= _read_layer(folder, layer, empty)
    head = _build(raw, folder).to(embed_tokens.weight.dtype)  # before, so that torch's default rounds no weight
    head.load_state_dict(state, strict=False)
    if isinstance(head, Eagle3Head) and head.shares_lm_head:
        if lm_head is None:
            raise InputError(f"{folder}: this head stores no LM head; load it with the target's")
        head.take_rows(lm_head)
    head.embed_tokens = _embedding(embedding, embed_tokens)
    if isinstance(head, BlockHead) and lm_head is not None:
        head.share(lm_head)
    if tokens is None and (folder / TOKENS).exists():
        tokens = _read_tokens(folder / TOKENS, vocabulary)
    if tokens is not None:
        head.restrict(tokens.to(embed_tokens.weight.device))
    if isinstance(head, BlockHead):
        _check_draft_vocabulary(head, folder)
    return head.to(embed_tokens.weight.device, embed_tokens.weight.dtype).eval()


def _check_draft_vocabulary(head: BlockHead, folder: Path) -> None:
    wanted, tokens = head.form.draft_vocab, head.tokens
    if wanted is not None and (tokens is None or len(tokens) != wanted):
        problem = "is missing" if tokens is None else f"has {len(tokens)} tokens"
        raise InputError(f"{folder}: draft_vocab_size = {wanted}, but d2t or {TOKENS} {problem}; copy all of its files")


def has_eagle_layer(folder: Path) -> bool:
    """Return True for the folder of an EAGLE head made of Llama's layers, or of a Medusa-style one on such a layer;
    InputError for a config that is not clear."""
    return not block_fields.is_block(_raw_config(folder)) and bool(decoder_layers(_without_weights(folder)))


def summary_of(folder: Path) -> str:
    """Return what a head is and reads, in one line, by its config alone; InputError for one that cannot be read."""
    return _without_weights(folder).summary


def _without_weights(folder: Path) -> Head:
    with torch.device("meta"):
        return _build(_read_config(folder), folder)


def _build(raw: dict, folder: Path) -> Head:
    """Return the head of a config, with random weights; InputError for sizes that do not go together."""
    try:
        return _head(raw, folder / "config.json")
    except Exception as error:  # transformers and torch have many for what they cannot build
        raise InputError(f"{folder / 'config.json'}: no head can be built of it ({one_line(error)})") from error


def _head(raw: dict, path: Path) -> Head:
    if eagle3_config.is_eagle3(raw):
        width, target_rows = raw.get("target_hidden_size"), raw.get("target_rows", False)
        variant = eagle3_config.variant_of(raw, path)
        return Eagle3Head(_config(raw), raw["draft_vocab_size"], width, target_rows, variant)
    if block_config.FORM in raw:
        return BlockHead(_config(raw), block_config.form_of(raw))
    if "medusa_num_heads" in raw:
        return MedusaHead(_config(raw), raw["medusa_num_heads"], raw.get("layer_of"))
    named = raw.get("architectures")
    if named == [MTPHead.__name__]:
        return MTPHead(_config(raw))
    if isinstance(named, list) and not all(map(EAGLE.search, map(str, named))):
        raise InputError(f"architectures = {named} is no kind of head that c2t knows")
    return EagleHead(_config(raw), bias=raw.get("bias", True), qkv_bias=bool(raw.get("qkv_bias", False)))


def save_head(head: Head, folder: str | Path, embed_tokens: bool = False) -> None:
    """Write a head under upstream's names; with `embed_tokens` also a copy of the target's embedding, which upstream's
    strict loaders need."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.contiguous() for name, tensor in _stored(head).items()}
    if embed_tokens:
        state["embed_tokens.weight"] = head.embed_tokens.weight.detach().clone()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(raw_of(head), indent=2) + "\n")
    if head.tokens is not None and not isinstance(head, Eagle3Head):
        save_file({"tokens": head.tokens.int().contiguous()}, folder / TOKENS)


def _read_tokens(path: Path, vocabulary: int) -> Tensor:
    """Return the ids of a head's tokens; InputError unless they rise within the target's vocabulary."""
    try:
        tokens = load_file(path)["tokens"].long()
    except (SafetensorError, OSError, KeyError) as error:
        raise InputError(f"{path}: the head's tokens cannot be read; copy the file again, or remove it") from error
    inside = tokens.dim() == 1 and len(tokens) and tokens[0] >= 0 and tokens[-1] < vocabulary
    if not inside or not (tokens[1:] > tokens[:-1]).all():
        raise InputError(f"{path}: not a list of rising ids below {vocabulary}; remove the file to draft all tokens")
    return tokens


def _stored(head: Head) -> dict[str, Tensor]:
    """Return the head's own weights: no embedding, no rows that are the target's, no layer that is another head's."""
    others = {"embed_tokens.weight"}
    if isinstance(head, Eagle3Head) and head.shares_lm_head:
        others.add("lm_head.weight")
    if isinstance(head, MedusaHead) and head.layer_of:
        others |= _layer(head).keys()
    return {name: tensor for name, tensor in head.state_dict().items() if name not in others}


def _layer(head: MedusaHead) -> dict[str, Tensor]:
    """Return the weights of the head's EAGLE layer."""
    return {name: tensor for name, tensor in head.state_dict().items() if not name.startswith("heads.")}


def _read_layer(folder: Path, source: Path, head: MedusaHead) -> dict[str, Tensor]:
    """Return the weights of the layer that a head in `folder` shares with the one in `source`."""
    if not source.is_dir():
        raise InputError(f"{folder}: its layer is that of the head {source}, which is not there; get both")
    state = read_weights(source)
    state.pop("embed_tokens.weight", None)
    _check_names(
        source, {name: weight for name, weight in _layer(head).items() if name != "embed_tokens.weight"}, state
    )
    return state


@dataclass(frozen=True)
class _Shared:
    """Entry of config.json that names the head whose layer this one has."""

    __pydantic_config__ = OPEN
    layer_of: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None  # a folder's name, no path


def shared_layer(folder: Path) -> Path | None:
    """Return the folder, next to a head's, of the head that it shares its layer with; None if it shares none."""
    config = folder / "config.json"
    shared = from_json(_Shared, read_file(config), config).layer_of if config.is_file() else None
    return shared and folder.resolve().parent / shared


@dataclass(frozen=True)
class _Sizes:
    """Entries of a head's config.json that `_build` reads."""

    __pydantic_config__ = OPEN
    hidden_size: Size
    intermediate_size: Size
    num_attention_heads: Size
    vocab_size: Size
    num_hidden_layers: Layers = 1
    num_key_value_heads: Size | None = None
    hidden_act: str = "silu"
    rms_norm_eps: Annotated[float, Field(ge=0, lt=1)] = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    max_position_embeddings: Positions | None = None
    max_sequence_length: Positions | None = None
    draft_vocab_size: Size = 1
    target_hidden_size: Size | None = None
    target_rows: bool = False
    medusa_num_heads: Annotated[int, Field(ge=1, le=64)] = 1
    bias: bool = True
    qkv_bias: bool = False
    head_dim: Size | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_parameters: dict[str, Any] | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    use_aux_norm: bool = False
    use_aux_hidden_state: bool = True
    num_aux_hidden_states: Annotated[int, Field(ge=1, le=eagle3_config.MOST_TAPS)] = 3
    eagle_aux_hidden_state_layer_ids: _Layers = None
    taps: _Layers = None
    num_target_layers: Layers | None = None
    layer_types: list[str] | None = None
    use_sliding_window: bool = False
    sliding_window: Annotated[int, Field(ge=0, le=2**31)] | None = None


def _raw_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.exists():
        raise InputError(f"{folder}: no config.json; a draft head is a folder of config.json and its weights")
    return from_json(dict[str, Any], read_file(path), path)


def _read_config(folder: Path, anchor: bool | None = None) -> dict:
    raw, path = _raw_config(folder), folder / "config.json"
    refuse_unread(raw, path)
    if block_fields.is_block(raw):
        raw = block_config.flattened(raw, path, anchor)
    elif eagle3_config.is_eagle3(raw):
        raw = eagle3_config.flattened(raw, path)
    missing = [name for name in _NEEDED if name not in raw]
    if missing:
        raise InputError(f"{path}: {', '.join(missing)} missing; this is not the config of a draft head")
    from_json(_Sizes, json.dumps(raw), path)
    if eagle3_config.is_eagle3(raw):
        eagle3_config.variant_of(raw, path)
    _check_one_rope(raw, path)
    _check_rope(_rope(raw), path)
    return raw


def _check_one_rope(raw: dict, path: Path) -> None:
    """Raise InputError for settings of RoPE that are there twice, with different values."""
    names = ("rope_scaling", "rope_parameters")
    said = [_rope({**raw, other: None}) for name, other in zip(names, reversed(names), strict=True) if raw.get(name)]
    theta = said[0]["rope_theta"] if said else None
    if any(rope != said[0] for rope in said) or (said and raw.get("rope_theta", theta) != theta):
        raise InputError(f"{path}: rope_theta, rope_scaling and rope_parameters contradict each other: leave one out")


def _rope(raw: dict) -> dict[str, Any]:
    """Return RoPE's settings as transformers 5 has them, from the two forms of a config."""
    settings = {"rope_theta": raw.get("rope_theta", _DEFAULTS["rope_theta"])}
    given = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    settings |= {name: value for name, value in given.items() if value is not None}
    kind = settings.pop("type", None)
    return settings | {"rope_type": settings.get("rope_type") or kind or "default"}


def _check_rope(rope: dict[str, Any], path: Path) -> None:
    kind = rope["rope_type"]
    if not isinstance(kind, str) or kind not in ROPES:
        raise InputError(f"{path}: RoPE of the type {kind!r} is not supported; known: {', '.join(ROPES)}")
    for name in sorted(rope.keys() - {"rope_type"}):
        if name not in ROPES[kind] | {"rope_theta"}:
            raise InputError(f"{path}: {name} is not supported in RoPE of the type {kind}")
        value = rope[name]
        if name != "truncate" and not (type(value) in (int, float) and 0 < value < math.inf):
            raise InputError(f"{path}: {name} = {str(value)[:60]} in RoPE must be a number above 0")


def _config(raw: dict) -> LlamaConfig | Qwen3Config:
    positions = raw.get("max_position_embeddings", raw.get("max_sequence_length", _DEFAULTS["max_position_embeddings"]))
    qwen3 = eagle3_config.is_eagle3(raw) and raw.get("model_type") == "qwen3"
    mlp_bias = {"mlp_bias": raw["mlp_bias"]} if "mlp_bias" in raw and eagle3_config.is_eagle3(raw) else {}
    return (Qwen3Config if qwen3 else LlamaConfig)(
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_hidden_layers=raw.get("num_hidden_layers", _DEFAULTS["num_hidden_layers"]),
        num_attention_heads=raw["num_attention_heads"],
        num_key_value_heads=raw.get("num_key_value_heads", raw["num_attention_heads"]),
        hidden_act=raw.get("hidden_act", "silu"),
        rms_norm_eps=raw.get("rms_norm_eps", _DEFAULTS["rms_norm_eps"]),
        max_position_embeddings=positions,
        rope_parameters=_rope(raw),
        vocab_size=raw["vocab_size"],
        pad_token_id=None,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
        attention_bias=eagle3_config.is_eagle3(raw) and raw.get("attention_bias", False),
        **mlp_bias,
    )


def _check_names(folder: Path, expected: dict[str, Tensor], actual: dict[str, Tensor]) -> None:
    missing, unexpected = sorted(expected.keys() - actual.keys()), sorted(actual.keys() - expected.keys())
    if missing or unexpected:
        eagle3 = "midlayer.hidden_norm.weight" in actual
        kind = "EAGLE-3 weights need draft_vocab_size in the config" if eagle3 else "another kind of head?"
        raise InputError(f"{folder}: missing weights {_some(missing)}, unexpected weights {_some(unexpected)} ({kind})")
    for name, tensor in expected.items():
        if tensor.shape != actual[name].shape:
            raise InputError(f"{folder}: {name} is {tuple(actual[name].shape)}, the config says {tuple(tensor.shape)}")
        if tensor.is_floating_point() and not actual[name].is_floating_point():
            stored = str(actual[name].dtype).removeprefix("torch.")
            raise InputError(f"{folder}: {name} is stored as {stored}; c2t reads heads in fp32, fp16 or bf16")


def _some(names: list[str]) -> str:
    """Return names for a message, of many the first ones."""
    return str(names) if len(names) <= SHOWN else f"{names[:SHOWN]} and {len(names) - SHOWN} more"


def _embedding(weight: Tensor | None, target: nn.Embedding) -> nn.Embedding:
    """Return the checkpoint's embedding if it has one that differs, else the target's, which is then shared.
    Heads read it as it is stored, also where the target's forward scales it (Gemma)."""
    if weight is None or (weight.shape == target.weight.shape and torch.equal(weight.to(target.weight), target.weight)):
        return target if type(target) is nn.Embedding else nn.Embedding.from_pretrained(target.weight, freeze=True)
    return nn.Embedding.from_pretrained(weight.to(target.weight), freeze=True)
