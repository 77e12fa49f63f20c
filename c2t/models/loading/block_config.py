"""The configs of published block drafters in one form: those of DFlash, DSpark and JetSpec, which are flat, and
speculators' dflash and dspark, which are nested.

What changes the computation is read, or refused by its name. Formats differ in whether a slot speaks of its own
position or of the next one, in whether ids name inputs or outputs of the target's layers, and in who sees whom in a
block; where a config does not say it and readers of its format disagree, it is refused with the choices.
"""

from pathlib import Path
from typing import Any

from c2t.errors import InputError
from c2t.models.drafts.block import BlockForm, BlockHead
from c2t.models.drafts.block_layers import LayerMask
from c2t.models.drafts.markov import KINDS
from c2t.models.loading.block_fields import INNER, fields_of
from c2t.models.loading.eagle3_config import KIND

DFLASH, DSPARK = "DFlashDraftModel", "Qwen3DSparkModel"  # under `architectures`
FLAT = ([DFLASH], [DSPARK], ["DSparkDraftModel"])
NESTED = ("dflash", "dspark")  # under KIND
FORM = "block_form"  # where `flattened` puts what it has read
SLIDING, FULL = "sliding_attention", "full_attention"
ANCHOR = "+anchor="  # after the name of a block drafter, whose config does not say it: yes or no


def is_block(raw: dict[str, Any]) -> bool:
    """Return True for the config of a block drafter."""
    return raw[KIND] in NESTED if KIND in raw else raw.get("architectures") in FLAT


def flattened(raw: dict[str, Any], path: Path, anchor: bool | None = None) -> dict[str, Any]:
    """Return the config of a block drafter with the fields of a `BlockForm` under FORM. anchor: what the user says
    about its alignment. InputError that names a field which c2t does not compute, or which is missing."""
    layers, given = fields_of(raw, path)
    ids, nested = "target_layer_ids", KIND in raw
    if nested:  # ids are of layers whose inputs are read
        ids = "aux_hidden_state_layer_ids"
    for name in ("block_size", "mask_token_id", ids):
        if name not in given:
            raise InputError(f"{path}: {name} is missing")
    tokens, hidden = layers.get("vocab_size", 0), layers.get("hidden_size")
    if given["mask_token_id"] >= tokens:
        raise InputError(f"{path}: mask_token_id = {given['mask_token_id']} must be one of {tokens} tokens")
    draft_vocab = given.get("draft_vocab_size", tokens)
    if draft_vocab > tokens:
        raise InputError(f"{path}: draft_vocab_size = {draft_vocab} is more than the target's {tokens} tokens")
    if given.get("target_hidden_size", hidden) != hidden:
        raise InputError(f"{path}: target_hidden_size = {given['target_hidden_size']} must be hidden_size = {hidden}")
    size, from_anchor = given["block_size"], _from_anchor(raw, given, path, anchor)
    if size < 2 and not from_anchor:
        raise InputError(f"{path}: block_size = {size} must be at least 2, the root's slot and another")
    masks = _layer_masks(given, layers.get("num_hidden_layers", 1), path, nested)
    form = {
        "size": size,
        "mask_token": given["mask_token_id"],
        "layer_ids": [layer - nested for layer in given[ids]],
        "from_anchor": from_anchor,
        "draft_vocab": draft_vocab if draft_vocab != tokens else None,
        "target_layers": given.get("num_target_layers"),
        "layout": "speculators" if nested else "DeepSpec" if raw.get("architectures") == [DSPARK] else "flat",
        "layer_masks": masks if masks != [(None, False)] * len(masks) else [],
    }
    return layers | {FORM: form | _sequential(raw, given, path)}


def _from_anchor(raw: dict[str, Any], given: dict[str, Any], path: Path, named: bool | None) -> bool:
    """Return True if slot k speaks of the token k + 1 after the root's position, not k."""
    stated = {name: given[name] for name in ("sample_from_anchor", "shift_label") if name in given}
    if raw.get("architectures") == [DSPARK] and KIND not in raw:
        stated["architectures"] = True
    if named is not None:
        stated[ANCHOR.strip("+=")] = named
    if stated:
        return bool(_agreed(stated, path))
    if given.get("projector_type", raw.get(KIND, "dflash")) == "dflash" and raw.get("architectures") != FLAT[2]:
        return False
    raise InputError(
        f"{path}: sample_from_anchor is missing, and programs disagree on what that means: write {ANCHOR}yes after the "
        f"draft's name if its first slot speaks of the token after the root, {ANCHOR}no if its second one does"
    )


def _agreed(stated: dict[str, int], path: Path) -> int:
    """Return the value, a number or a truth, that all of these fields have; InputError if they differ."""
    if len({*stated.values()}) > 1:
        said = " and ".join(f"{name} = {value}" for name, value in stated.items())
        raise InputError(f"{path}: {said} contradict each other")
    return next(iter(stated.values()))


def _layer_masks(given: dict[str, Any], layers: int, path: Path, nested: bool) -> list[tuple[int | None, bool]]:
    """Return what each layer sees, as the fields of a `LayerMask`."""
    types = given.get("layer_types", [FULL] * layers)
    if len(types) != layers:
        raise InputError(f"{path}: layer_types has {len(types)} entries for {layers} layers")
    if given.get("use_sliding_window") and "layer_types" not in given:
        raise InputError(f"{path}: use_sliding_window is true, but layer_types, which says in which layers, is missing")
    sliding = [kind == SLIDING for kind in types]
    for name in ("use_sliding_window", "use_swa"):
        if any(sliding) and not given.get(name, True):
            raise InputError(f"{path}: {name} = False and layer_types contradict each other")
    causal = _causal(given, sliding, path, nested)
    if given.get("use_swa") and not any(sliding):
        sliding = [True] * layers
    windows = {name: given[name] for name in ("sliding_window", "swa_window_size") if name in given}
    if any(sliding):
        if not windows:
            raise InputError(f"{path}: sliding_window is missing")
        window = _agreed(windows, path)
        if window < given["block_size"]:
            raise InputError(f"{path}: a window of {window} tokens must be at least block_size")
    return [(window if slides else None, sees_back) for slides, sees_back in zip(sliding, causal, strict=True)]


def _causal(given: dict[str, Any], sliding: list[bool], path: Path, nested: bool) -> list[bool]:
    """Return for each layer whether a slot of the block does not see later ones: by default those with a window."""
    stated = {name: given[name] for name in ("is_causal", "causal", "causal_head") if name in given}
    if "sliding_window_non_causal" in given and any(sliding):
        stated_inverse = {"sliding_window_non_causal": given["sliding_window_non_causal"]}
        if stated:
            _agreed({name: not value for name, value in stated.items()} | stated_inverse, path)
        elif stated_inverse["sliding_window_non_causal"]:
            return [False] * len(sliding)
    elif nested and any(sliding) and not stated:
        raise InputError(
            f"{path}: sliding_window_non_causal is missing, and programs disagree on its default: write true if the "
            "slots of a block see later ones, false if they do not"
        )
    return [bool(_agreed(stated, path))] * len(sliding) if stated else sliding


def _sequential(raw: dict[str, Any], given: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the fields of a form that say which sequential heads there are."""
    kind = given.get("projector_type", raw.get(KIND))
    if kind not in (None, *NESTED):
        raise InputError(f"{path}: projector_type = {kind} is not supported; {', '.join(NESTED)} are")
    rank, markov = given.get("markov_rank", 0), given.get("markov_head_type", "vanilla")
    if kind == "dspark" and "markov_rank" not in given:
        raise InputError(f"{path}: markov_rank is missing")
    if rank and markov not in KINDS:
        raise InputError(f"{path}: markov_head_type = {markov} is not supported; {', '.join(KINDS)} are")
    simple = given.get("use_confidence_head")  # of ModelOpt, where such a head always reads the token before
    confidence = given.get("enable_confidence_head", simple or False)
    reads_token = confidence and given.get("confidence_head_with_markov", simple or KIND in raw)
    if reads_token and not rank:
        raise InputError(f"{path}: confidence_head_with_markov is true, but markov_rank is 0: there is no Markov head")
    return {
        "markov_rank": rank,
        "markov_kind": markov,
        "confidence": confidence,
        "confidence_reads_token": reads_token,
    }


def form_of(flat: dict[str, Any]) -> BlockForm:
    """Return the form that a flattened config says."""
    fields = flat[FORM]
    layer_masks = tuple(LayerMask(*entry) for entry in fields["layer_masks"])
    return BlockForm(**fields | {"layer_ids": tuple(fields["layer_ids"]), "layer_masks": layer_masks})


def raw_of(head: BlockHead) -> dict[str, Any]:
    """Return the entries of config.json that only a block drafter has: DeepSpec's where it drafts from the anchor or
    has a Markov head, else DFlash's."""
    form = head.form
    read = {"mask_token_id": form.mask_token, "target_layer_ids": list(form.layer_ids)}
    raw: dict[str, Any] = {"model_type": "qwen3", "block_size": form.size, "head_dim": head.config.head_dim}
    if form.target_layers is not None:
        raw["num_target_layers"] = form.target_layers
    if head.tokens is not None and (head.markov is not None or head.lm_head is not None):
        raw["draft_vocab_size"] = len(head.tokens)
    windows, causal = zip(*form.layer_masks, strict=True) if form.layer_masks else ((), ())
    if any(windows):
        types = [SLIDING if window else FULL for window in windows]
        raw |= {"layer_types": types, "sliding_window": max(filter(None, windows)), "use_sliding_window": True}
    if causal != tuple(map(bool, windows)):
        raw["is_causal"] = causal[0]
    if not form.from_anchor and not form.markov_rank:
        return raw | {"architectures": [DFLASH], INNER: read}
    sequential = {
        "markov_rank": form.markov_rank,
        "markov_head_type": form.markov_kind,
        "enable_confidence_head": form.confidence,
        "confidence_head_with_markov": form.confidence_reads_token,
    }
    if form.from_anchor:
        return raw | read | sequential | {"architectures": [DSPARK]}
    return raw | sequential | {"architectures": [DFLASH], INNER: read | {"sample_from_anchor": False}}
