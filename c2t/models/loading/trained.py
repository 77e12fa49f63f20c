"""Folders of heads that were trained on this machine, found by the weights of their target."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from c2t.models.drafts.heads import PARTS
from c2t.models.loading.fingerprint import weights_fingerprint
from c2t.storage import paths
from c2t.storage.atomic import write_text
from c2t.storage.checked import OPEN, from_json, read_file

FOLDER = "c2t"  # in the target's folder


@dataclass(frozen=True)
class HeadFacts:
    """Part of the provenance.json next to heads that loading reads.

    target_weights: `weights_fingerprint` of the target that its heads learned from. ngrams: the fastest policy with
    them is so with the text's n-grams.
    """

    __pydantic_config__ = OPEN
    target_weights: str | None = None
    ngrams: bool = False


def facts_of(folder: Path) -> HeadFacts:
    """Return what a folder says of the heads in it. InputError for a damaged file."""
    file = folder / paths.PROVENANCE
    return from_json(HeadFacts, read_file(file), file) if file.is_file() else HeadFacts()


def update_provenance(folder: Path, facts: Mapping[str, Any]) -> None:
    """Add facts to the provenance.json of a folder."""
    file = folder / paths.PROVENANCE
    before = from_json(dict[str, Any], read_file(file), file) if file.is_file() else {}
    write_text(file, json.dumps({**before, **facts}, indent=1) + "\n")


def trained_for(folder: Path) -> str | None:
    """Return the fingerprint of the weights that the heads in a folder learned from; None if it does not say so."""
    return facts_of(folder).target_weights


def classifier_of(head: Path) -> Path:
    """Return the folder of a head's classifier: `classifier` next to `draft`, `classifier_eagle3` next to
    `draft_eagle3`."""
    return head.with_name(head.name.replace("draft", paths.CLASSIFIER, 1))


def in_cache(target: Path) -> Path:
    """Return the folder of a target's heads in c2t's cache: where its own folder has none, or a link to another one."""
    return paths.cache() / "heads" / weights_fingerprint(target)


def find_trained(target: Path) -> Path | None:
    """Return the folder of the head that `c2t draft train` made for the weights in this folder, an EAGLE-1 head before
    others; None if there is none. InputError for a damaged file."""
    for folder in (target / FOLDER, in_cache(target)):
        heads = [folder / PARTS[name] for name in ("eagle", "eagle3", "medusa", "block")]
        there = [head for head in heads if (head / "config.json").is_file()]
        if there and trained_for(folder) == weights_fingerprint(target):
            return there[0]
    return None
