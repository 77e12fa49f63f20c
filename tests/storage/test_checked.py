"""What is wrong with a document is one line that names the place, the entry and what would be right."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from c2t.errors import InputError
from c2t.storage.checked import CLOSED, Positive, Share, check_fields, from_json, read_file


@dataclass(frozen=True)
class Settings:
    __pydantic_config__ = CLOSED
    size: Positive
    share: Share = 1.0
    names: Annotated[tuple[str, ...], Field(min_length=1)] = ("a",)
    counts: dict[str, int] | None = None


def test_a_document_becomes_what_it_is_read_as() -> None:
    found = from_json(Settings, '{"size": 3, "share": 1, "names": ["x", "y"], "counts": {"a": 1}}', "a.json")
    assert found == Settings(3, 1.0, ("x", "y"), {"a": 1})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a.json: no JSON (EOF while parsing an object at line 1 column 1); do this"),
        ("[]", "a.json: the document = [] must be an object; do this"),
        ("{}", "a.json: size is missing; do this"),
        ('{"size": 1, "colour": 2}', "a.json: colour is not known; do this"),
        ('{"size": 0}', "a.json: size = 0 must be at least 1; do this"),
        ('{"size": true}', "a.json: size = True must be a whole number; do this"),
        ('{"size": "1"}', "a.json: size = '1' must be a whole number; do this"),
        ('{"size": 1, "share": 1.5}', "a.json: share = 1.5 must be at most 1; do this"),
        ('{"size": 1, "names": []}', "a.json: names = [] must have at least 1 item, not 0; do this"),
        ('{"size": 1, "names": "ab"}', "a.json: names = 'ab' must be a list; do this"),
        ('{"size": 1, "counts": {"a": 0.5}}', "a.json: counts.a = 0.5 must be a whole number"),
    ],
)
def test_what_is_wrong_is_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        from_json(Settings, text, "a.json", "do this")
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_settings_check_their_own_fields() -> None:
    check_fields(Settings(1))
    with pytest.raises(InputError, match=r"^Settings: size = 0 must be at least 1$"):
        check_fields(Settings(0))
    with pytest.raises(InputError, match=r"^Settings: names.0 = 3 must be a string$"):
        check_fields(Settings(1, names=(3,)))


def test_what_has_no_end_or_more_than_64_mib_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # which nobody writes to
    with (tmp_path / "large").open("wb") as file:
        file.truncate(64 * 2**20 + 1)
    for place, reason in (("pipe", "no regular file"), ("/dev/zero", "no regular file"), ("large", "more than 64 MiB")):
        with pytest.raises(InputError, match=f"cannot be read as a config .{reason}"):
            read_file(tmp_path / place, "a config")
