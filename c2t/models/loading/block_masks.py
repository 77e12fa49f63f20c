"""Attention masks in a block drafter's config: windows, and whether a slot sees later ones of its block.

By default a layer with a window looks back only and one without sees all of the block, as engines read it.
"""

from c2t.errors import InputError
from c2t.models.drafts.block_layers import LayerMask
from c2t.models.loading.block_fields import BlockFields
from c2t.models.target.families import FULL, SLIDING


def layer_masks(fields: BlockFields) -> list[LayerMask]:
    """Return the mask of each layer, nothing where all layers see all. InputError for fields that contradict each
    other, and for a window or a meaning that is missing."""
    given, path, layers = fields.given, fields.path, fields.layers.get("num_hidden_layers", 1)
    types = given.get("layer_types", [FULL] * layers)
    if len(types) != layers:
        raise InputError(f"{path}: layer_types has {len(types)} entries for {layers} layers")
    if given.get("use_sliding_window") and "layer_types" not in given:
        raise InputError(f"{path}: use_sliding_window is true, but layer_types, which says in which layers, is missing")
    sliding = [kind == SLIDING for kind in types]
    for name in ("use_sliding_window", "use_swa"):
        if any(sliding) and not given.get(name, True):
            raise InputError(f"{path}: {name} = False and layer_types contradict each other")
    causal = _causal(fields, sliding)
    if given.get("use_swa") and not any(sliding):
        sliding = [True] * layers
    window = _window(fields) if any(sliding) else None
    masks = [LayerMask(window if slides else None, causal[number]) for number, slides in enumerate(sliding)]
    return masks if any(map(any, masks)) else []


def _window(fields: BlockFields) -> int:
    windows = fields.stated("sliding_window", "swa_window_size")
    if not windows:
        raise InputError(f"{fields.path}: sliding_window is missing")
    window: int = fields.agreed(windows)
    if window < fields.given["block_size"]:
        raise InputError(f"{fields.path}: a window of {window} tokens must be at least block_size")
    return window


def _causal(fields: BlockFields, sliding: list[bool]) -> list[bool]:
    """Return for each layer whether a slot of the block does not see later ones."""
    stated = fields.stated("is_causal", "causal", "causal_head")
    inverse = fields.stated("sliding_window_non_causal") if any(sliding) else {}
    if inverse and stated:
        fields.agreed({name: not value for name, value in stated.items()} | inverse)
    if stated:
        return [bool(fields.agreed(stated))] * len(sliding)
    if any(sliding) and fields.nested and fields.kind != "dflash2" and not inverse:
        raise InputError(
            f"{fields.path}: sliding_window_non_causal is missing, and programs disagree on its default: write true if "
            "the slots of a block see later ones, false if they do not"
        )
    non_causal = inverse.get("sliding_window_non_causal", fields.nested)
    return [slides and not non_causal for slides in sliding]
