"""Published kinds of draft heads that c2t does not read, so that they are refused by their names.

Some have the tensors of a kind that is read, and would be computed wrongly; for others, lists of missing tensors would
not say what is wrong.
"""

import re
from pathlib import Path
from typing import Any

from torch import Tensor

from c2t.errors import InputError

P_EAGLE = "P-EAGLE (several tokens in one forward of an EAGLE-3 head)"
MTP = "a layer for multi-token prediction"
MLA = "a head with latent attention (MLA)"
# Pattern of a class under `architectures`, of a model_type without one, or of a kind of speculators' -> what it is.
NAMES = {
    r"(?i)^p_?eagle": P_EAGLE,
    r"(?i)mtp(model)?$": MTP,
    r"(?i)assistant": "a head that attends to the target's own keys and values",
    r"(?i)deepseek_?v\d|kimi": MLA,
    r"^Gemma4": "a head of Gemma 4's layers",
    r"(?i)laguna|mimo": "a head of another family's layers",
}
# Field of config.json that is neither null, zero nor false -> what it says.
FIELDS = {
    "parallel_drafting": P_EAGLE,
    "num_nextn_predict_layers": MTP,
    "mtp_num_hidden_layers": MTP,
    "num_mtp_layers": MTP,
    "kv_lora_rank": MLA,
}


def refuse_unread(raw: dict[str, Any], path: Path) -> None:
    """Raise InputError for the config.json of a head of a kind that c2t does not read."""
    named = raw.get("architectures") or [raw.get("model_type")]
    for name in (*(named if isinstance(named, list) else [named]), raw.get("speculators_model_type")):
        for pattern, what in NAMES.items():
            if re.search(pattern, str(name)):
                raise _unread(path, name, what)
    for field, what in FIELDS.items():
        if raw.get(field):
            raise _unread(path, f"{field} = {str(raw[field])[:60]}", what)


def refuse_unread_weights(state: dict[str, Tensor], folder: Path) -> None:
    """Raise InputError for tensors that only a head of such a kind has, whatever its config says."""
    for name in state:
        if name.removeprefix("model.") == "mask_hidden":
            raise _unread(folder, name, P_EAGLE)


def _unread(where: Path, name: str, what: str) -> InputError:
    return InputError(
        f"{where}: {name} stands for {what}, which c2t does not read: take another kind of head for this target"
    )
