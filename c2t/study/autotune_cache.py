"""Results of `c2t tune`, stored on this machine by device, pair, batch size and temperature: in $C2T_CACHE, else
~/.cache/c2t."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from c2t.costs.store import key as key_of
from c2t.errors import InputError
from c2t.models.loading.load import Pair
from c2t.policies.spec import check_own
from c2t.storage.atomic import write_text
from c2t.storage.checked import CLOSED, from_json, read_file
from c2t.storage.checksum import checksum
from c2t.storage.paths import cache


class Tuned(NamedTuple):
    """Policy that was the fastest, as text that `c2t.policies.spec.parse` reads.

    classifier: that of the candidates. speed: new tokens per second. settings: of the run that chose the policy.
    ngrams: True if the draft is mixed with the text's n-grams.
    """

    policy: str
    classifier: str
    speed: float
    settings: dict[str, Any]
    ngrams: bool = False


def key(pair: Pair, batch: int, temperature: float) -> dict[str, Any]:
    """Return everything that the fastest policy depends on: the device, the pair with its draft, the dtype, the batch
    size, and the temperature, since acceptance falls with it."""
    return {**key_of(pair), "batch": batch, "temperature": float(temperature)}


def path_of(key: dict[str, Any]) -> Path:
    """Return the file of an entry."""
    digest = checksum(key)[:12]
    return cache() / f"tuned-{key['pair']}-batch{key['batch']}-{digest}.json"


def store(key: dict[str, Any], tuned: Tuned) -> Path:
    """Write an entry, in place of an older one with the same key, and return its file."""
    path = path_of(key)
    text = json.dumps({"key": key, **tuned._asdict()}, indent=1)
    try:
        write_text(path, text + "\n")
    except OSError as error:
        raise InputError(f"cannot store the result in {path}: {error.strerror}; set $C2T_CACHE") from error
    return path


def lookup(key: dict[str, Any]) -> Tuned:
    """Return the entry of a key. Raises InputError, with the command that makes it, if it is missing or damaged, and
    for a policy that names a file or a Hub id."""
    path = path_of(key)
    if not path.exists():
        raise InputError(
            f"nothing was tuned for {key['pair']} with this draft, dtype and device ({key['device']}) at batch size "
            f"{key['batch']} and T = {key['temperature']:g}; run c2t tune --batch {key['batch']} "
            f"--temperature {key['temperature']:g} with the same options first"
        )
    try:
        entry = from_json(_TunedFile, read_file(path), path)
        if entry.key != key:
            raise InputError(f"{path}: an entry of another key")
    except InputError as error:
        raise InputError(f"{path} is damaged; run c2t tune with the same options to replace it") from error
    check_own(entry.policy, path)
    speed = entry.speed or entry.predicted
    return Tuned(entry.policy, entry.classifier, speed, entry.settings, entry.ngrams)


@dataclass(frozen=True)
class _TunedFile:
    """Content of a file: `Tuned` and its key."""

    __pydantic_config__ = CLOSED
    key: dict[str, Any]
    policy: str
    classifier: str
    settings: dict[str, Any]
    speed: float = 0.0
    ngrams: bool = False
    predicted: float = 0.0  # in older entries, as the next
    costs: dict[str, Any] | None = None
