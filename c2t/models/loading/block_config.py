"""The configs of published block drafters in one form: z-lab's DFlash and DeepSpec's DSpark, which are flat.

What changes the computation is read, or refused by its name. Each format says for itself whether a slot speaks of its
own position or of the next one, and whether ids name inputs or outputs of the target's layers: neither is guessed.
"""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from transformers import Qwen3Config

from c2t.errors import InputError
from c2t.models.drafts.block import BlockForm, BlockHead
from c2t.models.drafts.markov import KINDS
from c2t.models.loading.eagle3_config import IGNORED
from c2t.storage.checked import from_json

DFLASH, DSPARK = "DFlashDraftModel", "Qwen3DSparkModel"  # under `architectures`
NESTED = "dflash_config"
FORM = "block_form"  # where `flattened` puts what it has read
MOST = 64  # slots of a block, and states that are read

Slots = Annotated[int, Field(ge=1, le=MOST)]
Layers = Annotated[list[Annotated[int, Field(ge=-1, le=1024)]], Field(min_length=1, max_length=MOST)]
Count = Annotated[int, Field(ge=0, le=2**20)]
# Fields of block drafters, and their types.
FIELDS: dict[str, Any] = {
    "block_size": Slots,
    "mask_token_id": Count,
    "target_layer_ids": Layers,
    "num_target_layers": Count,
    "markov_rank": Count,
    "markov_head_type": str,
    "enable_confidence_head": bool,
    "confidence_head_with_markov": bool,
    "draft_vocab_size": Annotated[int, Field(ge=1, le=2**20)],
}
NEEDED = ("block_size", "mask_token_id", "target_layer_ids")
# Fields of the layers, which are read where these are built, and fields without effect.
ELSEWHERE = {*Qwen3Config().to_dict(), "rope_theta", "rope_scaling"} | IGNORED
TRAINING = {"num_anchors", "max_anchors", "confidence_head_alpha", "step_loss_decay", "ttt_length"}
# Fields that change the computation, with the only values that c2t computes.
ONLY: dict[str, tuple[Any, ...]] = {"attention_bias": (False,), "mlp_bias": (False,), "use_sliding_window": (False,)}


def is_block(raw: dict[str, Any]) -> bool:
    """Return True for the config of a block drafter."""
    return raw.get("architectures") in ([DFLASH], [DSPARK])


def flattened(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the config of a block drafter with the fields of a `BlockForm` under FORM. InputError that names a field
    which c2t does not compute, or which is missing."""
    dspark = raw["architectures"] == [DSPARK]
    inner = raw.get(NESTED) if not dspark else {}
    if not isinstance(inner, dict):
        raise InputError(f"{path}: {NESTED} must be an object")
    outer = {name: value for name, value in raw.items() if value is not None and (dspark or name != NESTED)}
    _check_fields(outer, inner, path)
    nested = () if dspark else ("mask_token_id", "target_layer_ids")
    given = outer | inner
    missing = [name for name in NEEDED if name not in (inner if name in nested else given)]
    if missing:
        raise InputError(f"{path}: {f'{NESTED}.' * (missing[0] in nested)}{missing[0]} is missing")
    if given["mask_token_id"] >= raw.get("vocab_size", 0):
        tokens = raw.get("vocab_size", 0)
        raise InputError(f"{path}: mask_token_id = {given['mask_token_id']} must be one of {tokens} tokens")
    form = _dspark_fields(given, path) if dspark else {}
    form |= {
        "size": given["block_size"],
        "mask_token": given["mask_token_id"],
        "layer_ids": given["target_layer_ids"],
        "from_anchor": dspark,
        "draft_vocab": given.get("draft_vocab_size"),
        "target_layers": given.get("num_target_layers"),
    }
    if form["size"] < 2 and not dspark:
        raise InputError(f"{path}: block_size = {form['size']} must be at least 2, the root's slot and another")
    flat = {name: value for name, value in outer.items() if name not in FIELDS}
    return flat | {FORM: form}


def _check_fields(outer: dict[str, Any], inner: dict[str, Any], path: Path) -> None:
    """Raise InputError for a field that is not known, of the wrong type, or of a value that is not computed."""
    for name, value in outer.items():
        if name in FIELDS:
            from_json(FIELDS[name], json.dumps(value), f"{path}: {name}")
        elif name in ONLY and value not in ONLY[name]:
            raise InputError(f"{path}: {name} = {value} is not supported, only {ONLY[name][0]}")
        elif name == "layer_types" and set(value) - {"full_attention"}:
            raise InputError(f"{path}: layer_types = {value}: a sliding window is not computed in a block drafter")
        elif name not in ELSEWHERE | TRAINING | ONLY.keys():
            _refuse(name, value, path)
    for name, value in inner.items():
        if name not in FIELDS:
            _refuse(f"{NESTED}.{name}", value, path)
        from_json(FIELDS[name], json.dumps(value), f"{path}: {NESTED}.{name}")


def _refuse(name: str, value: Any, path: Path) -> None:
    raise InputError(
        f"{path}: {name} = {str(value)[:60]} is not known to c2t, and may change what the head computes; if it does "
        "not, remove it from the file"
    )


def _dspark_fields(given: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the fields of a form that its sequential heads fill."""
    rank, kind = given.get("markov_rank", 0), given.get("markov_head_type", "vanilla")
    if rank and kind not in KINDS:
        raise InputError(f"{path}: markov_head_type = {kind} is not supported; {', '.join(KINDS)} are")
    confidence = given.get("enable_confidence_head", False)
    reads_token = confidence and given.get("confidence_head_with_markov", False)
    if reads_token and not rank:
        raise InputError(f"{path}: confidence_head_with_markov is true, but markov_rank is 0: there is no Markov head")
    return {
        "markov_rank": rank,
        "markov_kind": kind,
        "confidence": confidence,
        "confidence_reads_token": reads_token,
    }


def form_of(flat: dict[str, Any]) -> BlockForm:
    """Return the form that a flattened config says."""
    fields = flat[FORM]
    return BlockForm(**fields | {"layer_ids": tuple(fields["layer_ids"])})


def raw_of(head: BlockHead) -> dict[str, Any]:
    """Return the entries of config.json that only a block drafter has: DSpark's where it drafts from the anchor."""
    form = head.form
    read = {"mask_token_id": form.mask_token, "target_layer_ids": list(form.layer_ids)}
    raw: dict[str, Any] = {"model_type": "qwen3", "block_size": form.size, "head_dim": head.config.head_dim}
    if form.target_layers is not None:
        raw["num_target_layers"] = form.target_layers
    if head.tokens is not None and (head.markov is not None or head.lm_head is not None):
        raw["draft_vocab_size"] = len(head.tokens)
    if not form.from_anchor:
        return raw | {"architectures": [DFLASH], NESTED: read}
    return raw | read | {
        "architectures": [DSPARK],
        "markov_rank": form.markov_rank,
        "markov_head_type": form.markov_kind,
        "enable_confidence_head": form.confidence,
        "confidence_head_with_markov": form.confidence_reads_token,
    }  # fmt: skip
