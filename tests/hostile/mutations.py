"""Damage to files: bytes that were flipped, cut or moved, and JSON documents with entries that nobody expects."""

import json
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

# What a hostile or careless writer puts in place of an entry.
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 7, 255, 2**31, 2**63, 10**12, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"),
    "", "x", "7", "true", "x" * 300, "../../../escaped", "/escaped", "[/red]", "[bold]", "a\nb", "\x00", "\u2028",
    "\ud800",
    [], {}, [[]], [None], [0] * 1000, {"": 1}, {"a": {"b": {}}},
)  # fmt: skip
DEEP = 3000  # nested lists; Python's own reader stops at about a third


def damage_bytes(data: bytes, random_: random.Random) -> bytes:
    """Return other bytes: one to three flips, a cut, a repetition, zeros, or something else altogether."""
    if not data:
        return b"\0"
    kind = random_.choice(("flip", "flip", "flip", "cut", "repeat", "zeros", "noise", "empty", "insert"))
    at = random_.randrange(len(data))
    length = min(random_.choice((1, 8, 512)), len(data) - at)
    match kind:
        case "flip":
            changed = bytearray(data)
            for _ in range(random_.randint(1, 3)):
                changed[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
            return bytes(changed)
        case "cut":
            return data[:at]
        case "repeat":
            return data[: at + length] + data[at:]
        case "zeros":
            return data[:at] + bytes(length) + data[at + length :]
        case "noise":
            return data[:at] + random_.randbytes(length) + data[at + length :]
        case "insert":
            return data[:at] + random_.randbytes(length) + data[at:]
    return b""


def damage_json(text: str, random_: random.Random) -> str:
    """Return the document with one to three of its entries replaced, removed or added; now and then one nested deeply.
    Bytes that are no JSON come back as they are."""
    try:
        document = json.loads(text)
    except ValueError:
        return text
    for _ in range(random_.randint(1, 3)):
        places = list(_places(document))
        if not places:
            break
        holder, key = random_.choice(places)
        action = random_.random()
        if action < 0.15:
            del holder[key]
        elif action < 0.3 and isinstance(holder, dict):
            holder[random_.choice(("new", "", "target_rows", "auto_map", "__class__"))] = _value(random_)
        else:
            holder[key] = _value(random_)
    if random_.random() < 0.03:
        return "[" * DEEP + "]" * DEEP
    return json.dumps(document)


def _value(random_: random.Random) -> Any:
    return deepcopy(random_.choice(VALUES))  # the next damage may be to the value itself


def _places(document: Any) -> Any:
    """Yield every (holder, key) of a document."""
    if isinstance(document, dict | list):
        for key in list(document) if isinstance(document, dict) else range(len(document)):
            yield document, key
            yield from _places(document[key])


def damage_file(path: Path, random_: random.Random) -> None:
    """Damage one file where it lies: JSON by its entries two times of three, each line of a JSONL file by itself, and
    everything else by its bytes."""
    if path.suffix not in (".json", ".jsonl") or random_.random() < 1 / 3:
        path.write_bytes(damage_bytes(path.read_bytes(), random_))
        return
    lines = path.read_text(encoding="utf-8").split("\n") if path.suffix == ".jsonl" else [path.read_text("utf-8")]
    number = random_.randrange(len(lines))
    lines[number] = damage_json(lines[number], random_)
    path.write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")
