"""A model of one's own: what distinguishes it from a pair's name, and its draft where the user names none."""

from pathlib import Path
from typing import NamedTuple

from c2t.errors import InputError
from c2t.models.drafts.uniform import LOOKUP
from c2t.models.gguf.conversion import converted
from c2t.models.gguf.reader import is_gguf
from c2t.models.loading.hub import on_this_machine
from c2t.models.loading.trained import facts_of, find_trained
from c2t.models.wrappers.ngrams import NGRAMS
from c2t.storage import paths as checkpoints
from c2t.storage.published import PUBLISHED


class DraftChoice(NamedTuple):
    """A draft for a target, and the reason in words for a user.

    pair: name of the published pair that both are of, None for none.
    """

    draft: str
    reason: str
    pair: str | None = None


def is_model(reference: str | Path | None) -> bool:
    """Return True for a folder, a Hub id or a GGUF file; False for a pair's name."""
    return reference is not None and (not checkpoints.is_name(reference) or is_gguf(reference))


def pair_and_target(pair: str | Path | None, target: str | Path | None) -> tuple[str | None, str | Path | None]:
    """Return the pair's name and the target's place, where `pair` may be a model as well. InputError for a model and a
    target."""
    if not is_model(pair):
        return (checkpoints.DEFAULT_PAIR if pair is None and target is None else pair), target  # type: ignore[return-value]
    if target is not None:
        raise InputError(f"{pair} and {target} both name the target: leave one out")
    return None, pair


def default_draft(target: str | Path) -> DraftChoice:
    """Return the draft of a target whose user names none: the head that `c2t draft train` made for these weights, else
    the published one of a Hub id, else copies of the text."""
    folder = converted(Path(target)) if is_gguf(target) else on_this_machine(target)
    if folder and (head := find_trained(folder)):
        ngrams = NGRAMS if facts_of(head.parent).ngrams else ""
        return DraftChoice(f"{head}{ngrams}", "the head that was trained for this model")
    published = [name for name, pair in PUBLISHED.items() if pair.target == str(target)]
    if published:
        name = published[-1]  # an EAGLE-3 head where there is one of both kinds
        return DraftChoice(PUBLISHED[name].draft, "a published head of this model", name)
    return DraftChoice(LOOKUP, "copies of the text; a head is faster, and c2t draft train makes one")
