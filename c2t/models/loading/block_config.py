"""The configs of published block drafters in one form: those of DFlash, DSpark, Domino, JetSpec and TreeFlash,
which are flat, and speculators' dflash, dspark and dflash2, which are nested.

What changes the computation is read, or refused by its name. Formats differ in whether a slot speaks of its own
position or of the next one, and in whether ids name inputs or outputs of the target's layers; where a config does not
say it and readers of its format disagree, it is refused with the choices.
"""

from pathlib import Path
from typing import Any

from c2t.errors import InputError
from c2t.models.drafts.block import BlockForm, BlockHead
from c2t.models.drafts.block_layers import LayerMask
from c2t.models.drafts.dflash2 import DFlash2Form
from c2t.models.drafts.markov import KINDS as MARKOV_KINDS
from c2t.models.loading.block_fields import (
    CORRECTION,
    DFLASH,
    DFLASH2,
    DSPARK,
    INNER,
    KINDS,
    TREEFLASH,
    BlockFields,
    fields_of,
)
from c2t.models.loading.block_masks import layer_masks
from c2t.models.target.families import FULL, SLIDING

FORM = "block_form"  # where `flattened` puts what it has read
ANCHOR = "+anchor="  # after the name of a block drafter, whose config does not say it: yes or no


def flattened(raw: dict[str, Any], path: Path, anchor: bool | None = None) -> dict[str, Any]:
    """Return the config of a block drafter with the fields of a `BlockForm` under FORM. anchor: what the user says
    about its alignment. InputError that names a field which c2t does not compute, or which is missing."""
    fields = fields_of(raw, path)
    given, layers, rope = fields.given, fields.layers, fields.layers.get("rope_parameters")
    if fields.nested and isinstance(rope, dict) and SLIDING in rope:  # by types of layers; speculators takes this one
        layers["rope_parameters"] = rope[SLIDING]
    ids = "aux_hidden_state_layer_ids" if fields.nested else "target_layer_ids"
    for name in ("block_size", "mask_token_id", ids, "vocab_size", "hidden_size"):
        if name not in given and name not in layers:
            raise InputError(f"{path}: {name} is missing")
    tokens, hidden = layers["vocab_size"], layers["hidden_size"]
    if given["mask_token_id"] >= tokens:
        raise InputError(f"{path}: mask_token_id = {given['mask_token_id']} must be one of {tokens} tokens")
    draft_vocab = given.get("draft_vocab_size", tokens)
    if draft_vocab > tokens:
        raise InputError(f"{path}: draft_vocab_size = {draft_vocab} is more than the target's {tokens} tokens")
    if given.get("target_hidden_size", hidden) != hidden:
        raise InputError(f"{path}: target_hidden_size = {given['target_hidden_size']} must be hidden_size = {hidden}")
    size, from_anchor = given["block_size"], _from_anchor(fields, raw, anchor)
    if size < 2 and not from_anchor:
        raise InputError(f"{path}: block_size = {size} must be at least 2, the root's slot and another")
    form = {
        "size": size,
        "mask_token": given["mask_token_id"],
        "layer_ids": [layer - fields.nested for layer in given[ids]],  # speculators' name layers whose inputs are read
        "from_anchor": from_anchor,
        "draft_vocab": draft_vocab if draft_vocab != tokens else None,
        "target_layers": given.get("num_target_layers"),
        "layout": "speculators" if fields.nested else "DeepSpec" if raw.get("architectures") == [DSPARK] else "flat",
        "layer_masks": layer_masks(fields),
    }
    return layers | {FORM: form | _parts(fields, from_anchor)}


def _from_anchor(fields: BlockFields, raw: dict[str, Any], named: bool | None) -> bool:
    """Return True if slot k speaks of the token k + 1 after the root's position, not k."""
    stated = fields.stated("sample_from_anchor", "shift_label")
    if raw.get("architectures") == [DSPARK] and not fields.nested:
        stated[f"from_anchor of {DSPARK}"] = True
    if named is not None:
        stated[ANCHOR.strip("+=")] = named
    if stated:
        return bool(fields.agreed(stated))
    if fields.kind in ("dflash", "dflash2", "treeflash"):
        return False
    raise InputError(
        f"{fields.path}: sample_from_anchor is missing, and programs disagree on what that means: write {ANCHOR}yes "
        f"after the draft's name if the first slot speaks of the token after the root, {ANCHOR}no if the second does"
    )


def _parts(fields: BlockFields, from_anchor: bool) -> dict[str, Any]:
    """Return the fields of a form that only heads of one kind have."""
    if fields.kind == "dspark":
        return _dspark(fields, from_anchor)
    if fields.kind == "domino":
        return {"domino": fields.of_kind()}
    if fields.kind in ("dflash2", "treeflash") and from_anchor:
        raise InputError(f"{fields.path}: sample_from_anchor = True is not known in a head of the kind {fields.kind}")
    if fields.kind == "treeflash":
        return {"treeflash": "ar_approximation" in fields.given}
    if fields.kind == "dflash2":
        taps, group, *_ = fields.of_kind()
        if taps > fields.given["block_size"] or fields.layers["hidden_size"] % group:
            raise InputError(
                f"{fields.path}: conv_kernel_size must be at most block_size, and conv_group_size divide hidden_size"
            )
        return {"dflash2": fields.of_kind()}
    return {}


def _dspark(fields: BlockFields, from_anchor: bool) -> dict[str, Any]:
    path, (rank, kind, enabled, simple, reads_token) = fields.path, fields.of_kind()
    if rank and (kind not in MARKOV_KINDS or (kind == "rnn" and not from_anchor)):
        problem = "where slots speak of their own position" if kind == "rnn" else f"; {', '.join(MARKOV_KINDS)} are"
        raise InputError(f"{path}: markov_head_type = {kind} is not supported {problem}")
    confidence = bool(enabled or simple) if enabled is not None or simple is not None else fields.nested
    if reads_token is None:
        reads_token = bool(simple or fields.nested)
    if confidence and reads_token and not rank:
        raise InputError(f"{path}: confidence_head_with_markov is true, but markov_rank is 0: there is no Markov head")
    heads = {"confidence": confidence, "confidence_reads_token": confidence and reads_token}
    return heads | {"markov_rank": rank, "markov_kind": kind}


def form_of(flat: dict[str, Any]) -> BlockForm:
    """Return the form that a flattened config says."""
    fields = dict(flat[FORM])
    fields["layer_ids"] = tuple(fields["layer_ids"])
    fields["layer_masks"] = tuple(LayerMask(*mask) for mask in fields["layer_masks"])
    if "domino" in fields:
        fields["domino"] = tuple(fields["domino"])
    if "dflash2" in fields:
        fields["dflash2"] = DFlash2Form(*fields["dflash2"])
    return BlockForm(**fields)


def raw_of(head: BlockHead) -> dict[str, Any]:
    """Return the entries of config.json that only a block drafter has: DeepSpec's for a DSpark head from the anchor,
    else DFlash's."""
    form = head.form
    raw: dict[str, Any] = {"model_type": "qwen3", "block_size": form.size, "head_dim": head.config.head_dim}
    if form.target_layers is not None:
        raw["num_target_layers"] = form.target_layers
    if head.tokens is not None and (head.sequential is not None or head.lm_head is not None):
        raw["draft_vocab_size"] = len(head.tokens)
    windows, causal = zip(*form.layer_masks, strict=True) if form.layer_masks else ((), ())
    if any(windows):
        types = [SLIDING if window else FULL for window in windows]
        raw |= {"layer_types": types, "sliding_window": max(filter(None, windows)), "use_sliding_window": True}
    if causal != tuple(map(bool, windows)):
        raw["is_causal"] = causal[0]
    read: dict[str, Any] = {"mask_token_id": form.mask_token, "target_layer_ids": list(form.layer_ids)}
    if form.domino:
        read |= {"projector_type": "domino"} | dict(zip(KINDS["domino"], form.domino, strict=True))
    if form.dflash2:
        scales = zip(KINDS["dflash2"], form.dflash2, strict=True)
        return raw | {"architectures": [DFLASH2], INNER: read | {name: value for name, value in scales if value}}
    if form.treeflash:
        return raw | {"architectures": [TREEFLASH], INNER: read, CORRECTION: {"ar_approximation": "swiglu"}}
    if form.markov_rank or (form.from_anchor and not form.domino):
        read |= {
            "markov_rank": form.markov_rank,
            "markov_head_type": form.markov_kind,
            "enable_confidence_head": form.confidence,
            "confidence_head_with_markov": form.confidence_reads_token,
        }
        if form.from_anchor:
            return raw | read | {"architectures": [DSPARK]}
        read |= {"projector_type": "dspark"}
    if "projector_type" in read:
        read |= {"shift_label": form.from_anchor}
    return raw | {"architectures": [DFLASH], INNER: read}
