"""Result lines: the result of a command as one line of JSON, from which tables and plots are made."""

import io
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from c2t.errors import InputError, one_line
from c2t.storage.provenance import environment


def result_line(command: str, figures: dict[str, Any], configuration: dict[str, Any]) -> str:
    """Return one line of JSON with the command, its figures, configuration, time (UTC), versions, commit and
    hardware."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = {"command": command, "time": when, "figures": figures, "configuration": configuration, **environment()}
    text = json.dumps(line, ensure_ascii=False, default=str)
    # A path may hold half of a surrogate pair, which no file can, and JSON escapes like this.
    return text.encode(errors="backslashreplace").decode()


def check_place(path: Path) -> None:
    """Raise InputError if no line can be added to a file here; nothing is left there."""
    try:
        if path.exists():
            no_wait = getattr(os, "O_NONBLOCK", 0)  # for the reader of a pipe
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | no_wait))
        else:
            folder = next(parent for parent in path.absolute().parents if parent.exists())
            tempfile.TemporaryFile(dir=folder).close()
    except (OSError, ValueError) as error:  # ValueError: a NUL
        raise InputError(f"cannot write results to {path}: {one_line(error)}") from error


def append_line(path: str | Path, line: str) -> None:
    """Append a result line to a file, which is made if it is not there. Where a killed process left a line without its
    end, a new one is begun. Raises InputError if it cannot be written; then nothing of it is."""
    # One write at the end, not a new file in place of the old one: that could lose another process's line.
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        begin = "\n" if _is_torn(path) else ""
        new = not path.exists()
        with path.open("ab", buffering=0) as file:
            try:
                _write_whole(file, f"{begin}{line}\n".encode())
            except OSError:
                if new and not os.fstat(file.fileno()).st_size:
                    path.unlink()
                raise
    except OSError as error:
        raise InputError(f"cannot write results to {path}: {error.strerror}") from error


def _write_whole(file: io.FileIO, data: bytes) -> None:
    """Write all bytes after a file's last one, or none where its disk becomes full."""
    written = 0
    try:
        while written < len(data):
            written += file.write(data[written:])
    except OSError:
        if written and file.tell() == os.fstat(file.fileno()).st_size:  # else another process has written since
            file.truncate(file.tell() - written)
        raise


def _is_torn(path: Path) -> bool:
    """Return True for a file whose last line has no end."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"
