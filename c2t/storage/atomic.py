"""Write files and folders so that at every instant a reader finds the whole old one or the whole new one.

By hand: no maintained library replaces folders, and for files it is four calls of `os`.
"""

import ctypes
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from c2t.errors import InputError, one_line
from c2t.storage.lock import check_utf8, locked

TEMPORARY = ".tmp"  # ending of files that are not in their place yet; a killed process leaves one
# Endings of folders next to a folder: what will take its place, what waits while two names are exchanged in several
# steps, and what is being deleted.
NEW, OLD, TRASH = ".new", ".old", ".trash"
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux' renameat2


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a path next to `path` to write to. At the end of the block the file takes the place of `path`, safely on
    disk even if the machine stops in the next moment. After an exception `path` is unchanged. Raises OSError."""
    path = Path(os.path.realpath(path))  # a link goes on leading to the file
    path.parent.mkdir(parents=True, exist_ok=True)
    start = os.fsdecode(os.fsencode(path.name)[:200])  # the longest names of a file system leave no room after them
    new = path.with_name(f"{start}.{uuid.uuid4().hex[:8]}{TEMPORARY}")
    try:
        yield new
        _sync(new)
        os.replace(new, path)
        _sync(path.parent)
    except OSError as error:
        if error.errno and not error.filename:  # the error of a full disk names no file
            error.filename = str(path)
        raise
    finally:
        new.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole UTF-8 file. Raises OSError."""
    with new_file(path) as new:
        new.write_text(text, encoding="utf-8")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder next to `path` to fill; at the end of the block it takes the place of `path`, and an older
    folder there is deleted. After an exception `path` is unchanged. Raises OSError, and InputError while another
    process does the same."""
    path = Path(os.path.realpath(path))
    with locked(path):
        recover(path)
        new = sibling(path, NEW)
        delete(new)
        try:
            new.mkdir()
            try:
                yield new
            except BaseException as error:
                error.add_note(f"{path} is as it was; run the command again")
                raise
            take_place(new, path)
        finally:
            delete(new)


def sibling(path: Path, ending: str) -> Path:
    """Return the folder .NAME and `ending` next to the folder `path`."""
    path = Path(os.path.realpath(path))
    return path.with_name(f".{path.name}{ending}")


def check_writable_name(path: Path) -> None:
    """Raise InputError for a folder without siblings, or whose name leaves no room for theirs or is not UTF-8."""
    if not Path(os.path.realpath(path)).name:
        raise InputError(f"{path} is the root of the file system: give a folder inside it")
    longest = sibling(path, max(NEW, OLD, TRASH, key=len))
    check_utf8(longest)
    there = next(parent for parent in longest.parents if parent.exists())
    try:
        (there / longest.name).exists()
    except OSError as error:
        raise InputError(f"{path}: {one_line(error)}: give a folder with a shorter name") from error


def check_replaceable(path: Path) -> None:
    """Raise InputError for a mount point, before any work is done for it: no other folder can take its name."""
    if Path(os.path.realpath(path)).is_mount():
        raise InputError(f"{path} is a mount point, which nothing can replace: give a folder inside it")


def is_folder(path: Path) -> bool:
    """Return True for a folder, False for a link to one: c2t makes none under the names of `sibling`."""
    return path.is_dir() and not path.is_symlink()


def standing(path: Path) -> Path:
    """Return the folder to read for `path`: itself, or the old one next to it if a process was killed between the steps
    of an exchange."""
    waiting = sibling(path, OLD)
    return waiting if is_folder(waiting) and not path.exists() else path


def recover(path: Path) -> None:
    """Tidy up what a killed process left of an exchange at `path`, and take links away that have a name which it would
    use: they lead elsewhere. Only for the holder of its lock. Raises OSError."""
    for name in (sibling(path, ending) for ending in (NEW, OLD, TRASH)):
        if name.is_symlink():
            name.unlink()
    waiting = sibling(path, OLD)
    if waiting.exists() and not path.exists():
        waiting.rename(path)
    delete(waiting)


def take_place(new: Path, path: Path) -> None:
    """Put the folder `new`, which `sibling` has named, into the place of `path`, and delete an older folder there. Only
    for the holder of the lock of `path`. Raises OSError."""
    path = Path(os.path.realpath(path))
    for file in new.rglob("*"):
        _sync(file)
    _sync(new)
    if path.exists():
        _exchange(new, path)
    else:
        new.rename(path)
    _sync(path.parent)
    delete(new)


def delete(folder: Path) -> None:
    """Delete a folder that `sibling` has named, if it is there. It first gets a name under which nobody looks for
    something whole. Raises OSError."""
    trash = folder.with_suffix(TRASH)
    shutil.rmtree(trash, ignore_errors=True)
    if folder.exists():
        folder.rename(trash)
        shutil.rmtree(trash)


def _exchange(new: Path, path: Path) -> None:
    """Swap two folders in one step; where the system or the file system cannot, in three, and `recover` knows what to
    do after each."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None)
    if swap and swap(_HERE, os.fsencode(new), _HERE, os.fsencode(path), _EXCHANGE) == 0:
        return
    waiting = sibling(path, OLD)
    try:
        path.rename(waiting)
        new.rename(path)
    except BaseException:
        recover(path)
        raise
    waiting.rename(new)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
