"""Checks of files and user input, of the types with pydantic; the error is one line."""

import os
import stat
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from c2t.errors import InputError, one_line, short_repr

SMALL = 64 * 2**20  # bytes of a document at most; the largest are tokenizers, of some 20 MiB

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]
CLOSED = ConfigDict(extra="forbid", strict=True)  # `__pydantic_config__` of a document without further entries
OPEN = ConfigDict(extra="ignore", strict=True)
EXTENSIBLE = ConfigDict(extra="allow", strict=True)  # `with_config` of a TypedDict whose further entries stay in it
# pydantic's words -> those of c2t's other messages
WORDS = {
    "Invalid JSON: ": "",
    "Input should ": "must ",
    "List should ": "must ",
    "Tuple should ": "must ",
    "String should ": "must ",
    " after validation": "",
    "a valid array": "a list",
    "greater than or equal to": "at least",
    "greater than": "above",
    "less than or equal to": "at most",
    "less than": "below",
    "a valid integer": "a whole number",
    "a valid ": "a ",
    "Value error, ": "",
}


def read_file(path: str | Path, kind: str = "", most: int = SMALL) -> bytes:
    """Return the bytes of a regular file. kind: of the file, for the message.

    Raises InputError for a file that is missing or has more than `most` bytes, and for folders, pipes and devices,
    which may have no end."""
    try:
        # Without waiting: opening a pipe blocks until there is a writer.
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise ValueError("a folder" if stat.S_ISDIR(mode) else "no regular file")
            text = file.read(most + 1)
        if len(text) > most:
            raise ValueError(f"more than {most // 2**20} MiB")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read{kind and f' as {kind}'} ({one_line(error)})") from error
    return text


def from_json(kind: Any, text: str | bytes, source: str | Path, remedy: str = "") -> Any:
    """Return a JSON document as `kind`: a dataclass, a NamedTuple or another type that pydantic knows.

    Raises InputError that says what is wrong with which entry of `source`, and the remedy."""
    try:
        return _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        raise InputError(f"{source}: {_first(error)}{remedy and f'; {remedy}'}") from error


@with_config(OPEN)
class _Versioned(TypedDict):
    schema_version: int


def check_version(text: str | bytes, source: str | Path, version: int) -> None:
    """Raise InputError for a JSON document of another schema version: its entries may be others, which `from_json`
    would call damaged."""
    try:
        stated = _adapter(_Versioned).validate_json(text, strict=True)["schema_version"]
    except ValidationError:  # `from_json` says what is wrong
        return
    if stated != version:
        raise InputError(f"{source} has schema version {short_repr(stated)}; this version of c2t reads {version}")


def check_fields(settings: Any) -> None:
    """Raise InputError unless every field of a settings object fits its annotation; for `__post_init__`."""
    for name, kind in _hints(type(settings)).items():
        try:
            _field(kind).validate_python(getattr(settings, name), strict=True)
        except ValidationError as error:
            raise InputError(f"{type(settings).__name__}: {_first(error, name)}") from error


@cache
def _adapter(kind: Any) -> TypeAdapter:
    return TypeAdapter(kind)


@cache
def _field(kind: Any) -> TypeAdapter:
    return TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _first(error: ValidationError, *above: str) -> str:
    """Return the first error, in one line."""
    wrong = error.errors(include_url=False)[0]
    below = [part for part in wrong["loc"] if not above or isinstance(part, int)]  # words name a union's alternatives
    name = ".".join(map(str, (*above, *below)))
    message = wrong["msg"].splitlines()[0]
    for old, new in WORDS.items():
        message = message.replace(old, new)
    match wrong["type"]:
        case "json_invalid":
            return f"no JSON ({message})"
        case "missing" | "missing_argument":
            return f"{name} is missing"
        case "unexpected_keyword_argument" | "extra_forbidden":
            return f"{name} is not known"
        case "value_error":  # a check of c2t's own, which names the entry
            return message
    shown = repr(wrong["input"])
    return f"{name or 'the document'} = {shown if len(shown) < 60 else shown[:56] + ' ...'} {message}"
