"""The grammar of drafts' names: NAME[+taps=2,18,33][+anchor=yes][ENDING][ENDING=NUMBER], and the places that they stand
for.

NAME is a name of `c2t.models.loading.registry.DRAFTS`, a folder or a Hub id; endings are those of `ENDINGS`.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from c2t.errors import InputError, check_kind
from c2t.models.loading.block_config import ANCHOR
from c2t.models.loading.registry import DRAFTS, ENDINGS, DraftKind
from c2t.storage import paths as checkpoints

# The files that register drafts and endings, in the order in which help texts and error lines name them.
for _file in ("drafts.heads", "drafts.language_model", "drafts.uniform"):
    import_module(f"c2t.models.{_file}")
for _file in ("pmi_bigrams", "path_correction", "candidates", "ngrams"):
    import_module(f"c2t.models.wrappers.{_file}")

PLACES = str | Path | None  # names of parts of a pair; None: the default one
DEFAULT_DRAFT = "eagle"  # draft of a pair, and kind of a folder that no other kind claims
ANCHORS = {"yes": True, "no": False}  # what may follow ANCHOR
TAPS = "+taps="  # after an EAGLE-3 head's name: the layers whose inputs it reads, as 2,18,33


class DraftName(NamedTuple):
    """A draft's name in its parts.

    name: a name, a folder or a Hub id; None: the pair's default draft. taps: None for its config's. anchor: whether a
    block drafter drafts from the anchor, None for its config's. endings: text -> number, None for none; the inner ones
    first.
    """

    name: str | Path | None
    taps: tuple[int, ...] | None
    anchor: bool | None
    endings: dict[str, float | None]

    @property
    def reads(self) -> str:
        """Return the part of its name that says how its files are read."""
        taps = "" if self.taps is None else f"{TAPS}{','.join(map(str, self.taps))}"
        anchors = [f"{ANCHOR}{word}" for word, value in ANCHORS.items() if value is self.anchor]
        return taps + "".join(anchors)

    @property
    def without_files(self) -> DraftKind | None:
        """The kind of a draft that needs no files; None for all others."""
        kind = DRAFTS.get(str(self.name))
        return kind if kind and kind.part is None else None


def parse(draft: str | Path | None) -> DraftName:
    """Split a draft's name; InputError for an ending that is written wrongly, or that this draft cannot have."""
    endings: dict[str, float | None] = {}
    for layer in sorted({ending.layer for ending in ENDINGS.values()}, reverse=True):
        draft, ending = _split(draft, layer)
        endings = ending | endings
    draft, anchor = _split_anchor(draft)
    named = DraftName(*_split_taps(draft), anchor, endings)
    if kind := named.without_files:
        refused = [text for text in endings if ENDINGS[text].file] + [TAPS] * (named.taps is not None)
        refused += [ANCHOR] * (anchor is not None)
        if refused:
            raise InputError(f"{named.name} has no states that {refused[0]} could be of; leave that out")
        if kind.ending:
            endings.setdefault(kind.ending, None)
    return named


def _split(draft: str | Path | None, layer: int) -> tuple[str | Path | None, dict[str, float | None]]:
    """Split an ending of this layer from a draft's name."""
    for text, ending in ENDINGS.items():
        number = r"(?:=([^/]*))?" if ending.number else "()"
        match = re.fullmatch(f"(.*){re.escape(text)}{number}", str(draft or ""), re.DOTALL)
        if ending.layer == layer and match:
            return _named(draft, match[1]), {text: _number(draft, text, match[2] if ending.number else None)}
    return draft, {}


def _number(draft: str | Path, text: str, written: str | None) -> float | None:
    """Return the number of an ending; InputError for none that it takes."""
    ending = ENDINGS[text]
    if written is None and not ending.needs_number:
        return None
    try:
        number = float(written or "")
    except ValueError as error:
        other = "" if ending.needs_number else f"{text}, or "
        raise InputError(f"draft = {draft}: write {other}{text}={ending.number} with a number") from error
    ending.check(number)
    return number


def _split_anchor(draft: str | Path | None) -> tuple[str | Path | None, bool | None]:
    """Split what a block drafter's first slot speaks of from its name."""
    match = re.fullmatch(rf"(.*){re.escape(ANCHOR)}([^/+]*)", str(draft or ""), re.DOTALL)
    if not match:
        return draft, None
    if match[2] not in ANCHORS:
        raise InputError(f"draft = {draft}: write {ANCHOR}yes or {ANCHOR}no")
    return _named(draft, match[1]), ANCHORS[match[2]]


def _split_taps(draft: str | Path | None) -> tuple[str | Path | None, tuple[int, ...] | None]:
    """Split the layers that an EAGLE-3 head reads from a draft's name."""
    match = re.fullmatch(rf"(.*){re.escape(TAPS)}([^/]*)", str(draft or ""), re.DOTALL)
    if not match:
        return draft, None
    if not re.fullmatch(r"\d{1,4}(,\d{1,4})*", match[2], re.ASCII):
        raise InputError(f"draft = {draft}: write {TAPS} with the numbers of layers between commas, as {TAPS}2,18,33")
    return _named(draft, match[1]), tuple(map(int, match[2].split(",")))


def _named(draft: str | Path, name: str) -> str | Path | None:
    """Return a name without its ending, of the type that it was given in; None for an empty one."""
    return type(draft)(name) if name else None


def parts() -> dict[str, str]:
    """Return the drafts that a pair can bring along: name -> part of the pair's folder."""
    return {name: kind.part for name, kind in DRAFTS.items() if kind.part is not None}


def drafts_of(pair: str) -> dict[str, Path]:
    """Return the folders of the drafts that a pair has on this machine, by their names on the command line."""
    folders = {name: checkpoints.find(pair, part) for name, part in parts().items()}
    return {name: folder for name, folder in folders.items() if folder}


def place_in(pair: str | None, draft: DraftName) -> tuple[Path | str, DraftKind | None]:
    """Return the draft's folder or Hub id, and its kind if it is one of the pair's own; InputError for one that it does
    not have."""
    name, names = str(draft.name or DEFAULT_DRAFT), parts()
    there = drafts_of(pair) if name in names and checkpoints.is_name(pair) else {}
    if there and name not in there:
        raise InputError(f"{pair} has no draft called {name}; it has: {', '.join(there)}{checkpoints.searched()}")
    if name in names:
        return checkpoints.resolve(pair, names[name], others=names), DRAFTS[name]
    return checkpoints.resolve(draft.name, "draft", others=names), None


def place_of(draft: DraftName) -> Path | str:
    """Return the folder or Hub id of a draft without a pair: a pair's name stands for its default draft."""
    return checkpoints.resolve("" if draft.name is None else draft.name, "draft")


def kind_of(folder: Path) -> DraftKind:
    """Return the kind of a draft by its files."""
    return next((kind for kind in DRAFTS.values() if kind.holds(folder)), DRAFTS[DEFAULT_DRAFT])


def check_draft(draft: str | Path) -> None:
    """Raise InputError unless `c2t.models.loading.load.load_draft` would know where to look; nothing is downloaded."""
    check_kind("draft", draft, PLACES, "a name, a folder or a Hub id")
    named = parse(draft)
    if not named.without_files:
        place_of(named)
