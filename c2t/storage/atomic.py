"""Write files and folders so that at every instant a reader finds the whole old one or the whole new one.

By hand: no maintained library replaces folders, and for files it is four calls of `os`.
"""

import ctypes
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY = ".tmp"  # ending of files that are not in their place yet; a killed process leaves one behind
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux' renameat2


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to. At the end of the block the file takes the place of `path`, safely on
    disk even if the machine stops in the next moment. After an exception `path` is unchanged. Raises OSError."""
    path = path.resolve()  # a link goes on leading to the file
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{TEMPORARY}")
    try:
        yield new
        _sync(new)
        os.replace(new, path)
        _sync(path.parent)
    finally:
        new.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole UTF-8 file. Raises OSError."""
    with new_file(path) as new:
        new.write_text(text, encoding="utf-8")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside `path` to fill; at the end of the block it takes the place of `path`, and an older
    folder there is deleted. After an exception `path` is unchanged. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as scratch:
        new = Path(scratch) / "new"
        new.mkdir()
        yield new
        for file in new.rglob("*"):
            _sync(file)
        _sync(new)
        if path.exists():
            _exchange(new, path)
        else:
            new.rename(path)
        _sync(path.parent)


def _exchange(new: Path, old: Path) -> None:
    """Swap two folders in one step, or in two where the system or the file system cannot."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None)
    if swap and swap(_HERE, os.fsencode(new), _HERE, os.fsencode(old), _EXCHANGE) == 0:
        return
    aside = new.with_name("old")
    old.rename(aside)
    try:
        new.rename(old)
    except OSError:
        aside.rename(old)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
