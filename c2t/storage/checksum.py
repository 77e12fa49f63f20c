"""Checksums of what is written, so that a flipped bit is noticed before it is used."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def checksum(document: Any, data: Iterable[bytes | memoryview] = ()) -> str:
    """Return the SHA-256, in hexadecimal digits, of a JSON document, whatever its layout, and of further bytes."""
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode())
    for part in data:
        digest.update(part)
    return digest.hexdigest()


def unit_hash(name: str) -> float:
    """Return the hash of a name as a number in [0, 1): the same in every process, whatever else there is."""
    return int(checksum(name)[:8], 16) / 2**32


def file_checksum(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal digits. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
