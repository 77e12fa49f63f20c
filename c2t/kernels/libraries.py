"""Compiled libraries on disk. Loading one runs it, so only what c2t wrote there for this user is loaded.

Each file ends with a digest of its name and content under a key that this user alone can read and that lies outside of
the cache. What is loaded are the bytes that were checked, from memory: nobody can exchange a file in between, and a
damaged one is noticed before it is run.
"""

import ctypes
import hashlib
import hmac
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from c2t.storage import paths
from c2t.storage.atomic import new_file

KEY = "kernels.key"
BYTES = 32  # of the key, and of a digest
MOST = 64 * 2**20  # bytes of a library


def folder() -> Path | None:
    """Return the folder of this user's libraries: $C2T_CACHE/kernels, or the key's folder where others can write to
    that one; None where there is no such folder either."""
    for path in (paths.cache() / "kernels", paths.state() / "kernels"):
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = path.stat()
        except OSError:
            continue
        if status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return path
    return None


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold a folder's lock, so that one process compiles while others wait for the result; after so many seconds, or
    where there are no locks, they do without."""
    lock = FileLock(path / ".lock", timeout=seconds)
    with suppress(OSError, NotImplementedError):  # Timeout is an OSError
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def read(path: Path) -> bytes | None:
    """Return a library that c2t has written under this name for this user, None if there is none."""
    signed, key = _own_file(path, MOST), _key()
    if signed is None or key is None:
        return None
    content, digest = signed[:-BYTES], signed[-BYTES:]
    return content if hmac.compare_digest(digest, _digest(key, path.name, content)) else None


def keep(path: Path, content: bytes) -> None:
    """Write a library, whole or not at all. Raises OSError."""
    _write(path, content + _digest(_key() or _new_key(), path.name, content))


def load(content: bytes) -> ctypes.CDLL:
    """Load a library from memory, elsewhere than on Linux from a folder of its own. Raises OSError."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryDirectory() as private:
            path = Path(private) / "library.so"
            path.write_bytes(content)
            return ctypes.CDLL(str(path))
    # It stays open: for a second library with the name of an open one the loader returns the first.
    file = os.memfd_create("c2t")
    with os.fdopen(file, "wb", closefd=False) as memory:
        memory.write(content)
    return ctypes.CDLL(f"/proc/self/fd/{file}")


def _digest(key: bytes, name: str, content: bytes) -> bytes:
    return hmac.digest(key, name.encode() + b"\0" + content, hashlib.sha256)


def _key() -> bytes | None:
    """Return this user's key, None where there is none yet or others can read it."""
    key = _own_file(paths.state() / KEY, BYTES, secret=True)
    return key if key and len(key) == BYTES else None


def _new_key() -> bytes:
    key = secrets.token_bytes(BYTES)
    _write(paths.state() / KEY, key)
    return _key() or key  # another process may have made one in between


def _write(path: Path, data: bytes) -> None:
    """Put a file into its place that nobody else can read or write, whatever this process grants others."""
    if path.is_symlink():
        path.unlink()  # else its target would be written
    with new_file(path) as new, os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _own_file(path: Path, most: int, secret: bool = False) -> bytes | None:
    """Return what a regular file of this user holds that nobody else can write (secret: nor read); None for anything
    else there, links, pipes and more bytes than `most` among it."""
    others = stat.S_IRWXG | stat.S_IRWXO if secret else stat.S_IWGRP | stat.S_IWOTH
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            private = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & others
            return file.read() if private and status.st_size <= most else None
    except OSError:
        return None
