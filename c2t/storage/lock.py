"""One writer of a folder at a time, by a lock that the system takes back when its process ends, however it ends."""

import errno
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import AcquireReturnProxy, FileLock, Timeout

from c2t.errors import InputError


def check_utf8(path: Path) -> None:
    """Raise InputError for a path that is not UTF-8, before any work is done for it: Parquet, safetensors and the JSON
    that names it have no other."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{path} is not UTF-8: give a path that is, or another name to its folder") from error


@contextmanager
def locked(path: Path, wait: bool = False) -> Iterator[None]:
    """Hold the lock of the folder `path`: the file .NAME.lock next to it, which names the holder.

    Raises InputError that names the holder if another one writes there, and OSError. wait: instead it warns, and waits
    until that one has ended. The file of a killed process locks nothing: the lock is the system's, not the file.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(f".{path.name}.lock")
    if file.is_symlink():  # who holds the lock would be written to where it leads
        file.unlink()
    try:
        lock = _acquired(file, wait)
    except Timeout as error:
        if not file.exists():  # it could not be made, for filelock a race with a process that deletes it
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file)) from error
        raise InputError(
            f"{path} is being written by {_holder(file)}: wait until it has ended, stop it, or give another folder"
        ) from error
    except NotImplementedError as error:
        raise InputError(f"the file system of {path} has no locks: choose a folder on another one") from error
    with lock:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        file.write_text(f"process {os.getpid()} on {socket.gethostname()} since {since}", encoding="utf-8")
        try:
            yield
        finally:
            # While it is held: a process that has opened it sees that it is gone, and opens it again.
            file.unlink(missing_ok=True)


def _acquired(file: Path, wait: bool) -> AcquireReturnProxy:
    """Return the held lock. Raises Timeout if another process holds it, unless this one waits."""
    lock = FileLock(file, fallback_to_soft=False)
    try:
        return lock.acquire(blocking=False)
    except Timeout:
        if not wait:
            raise
        if not file.exists():  # its holder has just ended; or it cannot be made, for which nobody would wait
            return lock.acquire(timeout=1)
        warnings.warn(f"waits for {_holder(file)}, which writes {file.parent}", stacklevel=5)
        return lock.acquire()


def _holder(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8") or "another process"
    except (OSError, UnicodeDecodeError):  # it has just ended; or the system hides a locked file
        return "another process"
