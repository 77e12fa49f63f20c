"""Drafts by name, and the endings of their names. The files that `c2t.models.loading.names` lists register them here.

A draft is loaded by its `DraftKind`, and each `Ending` after its name wraps it: `medusa+fit+ngrams=4` is the kind
`medusa` in `+fit` in `+ngrams` with the number 4. `c2t.models.loading.names` reads names, and lists the files.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from c2t.models.drafts.session import BaseDraft, WrappedDraft
from c2t.models.loading.load_target import Dtype
from c2t.models.target.target import Target

PATH, TEXT = range(2)  # layers of endings: what conditions a draft on the path, and on the text


@dataclass(frozen=True)
class DraftRequest:
    """Target that a draft is loaded for, and settings.

    taps: the layers that an EAGLE-3 head reads, anchor: whether a block drafter drafts from the anchor, None for its
    config's. rounded: an EAGLE layer is rounded to 8 bits.
    tokenizer: the target's, None if it is not known. The others are those of a draft that is a language model.
    """

    target: Target
    device: torch.device
    dtype: Dtype
    tokenizer: PreTrainedTokenizerBase | None = None
    taps: tuple[int, ...] | None = None
    anchor: bool | None = None
    rounded: bool = False
    device_map: str | dict | None = None
    trust_remote_code: bool = False


def _never(folder: Path) -> bool:
    return False


@dataclass(frozen=True)
class DraftKind:
    """How the draft of a name is found and loaded.

    load: makes the draft of its folder; raises InputError for a wrong one. part: name of the folder in a pair's; None
    for a draft without files, whose `load` gets an empty path. holds: True for a folder of this kind that is given
    without a name. eagle_layer: True for a folder whose draft is an EAGLE layer, which can be computed in 8 bits.
    language_model: it is one, and loaded as a target is. trained: it was trained for the weights of one target. ending:
    the one that its name always has. summary: what it is, for a list of drafts.
    """

    load: Callable[[Path, DraftRequest], BaseDraft]
    part: str | None = None
    holds: Callable[[Path], bool] = _never
    eagle_layer: Callable[[Path], bool] = _never
    language_model: bool = False
    trained: bool = False
    ending: str | None = None
    summary: str = ""


@dataclass(frozen=True)
class Ending:
    """Wrapper that an ending of a draft's name stands for.

    wrap: makes the new draft of the draft, the number (None: none was given), the draft's folder and the target. layer:
    endings of a name stand in the order of their layers, one of each. file: what it reads in the draft's folder, None
    for nothing. number: a word for the number that may follow after "=", "" if none may; with needs_number it must.
    check: raises InputError for a wrong number. summary: what it does, for a list of endings.
    """

    wrap: Callable[[BaseDraft, float | None, Path, Target], WrappedDraft]
    layer: int
    file: str | None = None
    number: str = ""
    needs_number: bool = False
    check: Callable[[float], None] = lambda number: None
    summary: str = ""

    def written(self, text: str) -> str:
        """Return the ending `text` as it is written, a number that may be left out in brackets."""
        if self.needs_number:
            return f"{text}={self.number}"
        return f"{text}[={self.number}]" if self.number else text


DRAFTS: dict[str, DraftKind] = {}  # by name
ENDINGS: dict[str, Ending] = {}  # by text, such as "+ngrams"
