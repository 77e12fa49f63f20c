"""The files that conversions are of: where each was, so that the conversions of files that are gone can be removed."""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from c2t.errors import InputError
from c2t.models.gguf.reader import opened
from c2t.storage.atomic import NEW, delete, is_folder, sibling, write_text
from c2t.storage.checked import CLOSED, from_json, read_file
from c2t.storage.lock import locked

HEAD = 64 * 2**20  # bytes of a file that are read whole to know it again, the header among them; and 64 KiB of each MiB
SOURCE = ".source"  # ending of the file next to a conversion
MOST = 64  # conversions that are looked at


@dataclass(frozen=True)
class Source:
    """A file that was converted, as it was then. mark: `mark_of` it; modified: its time in nanoseconds."""

    __pydantic_config__ = CLOSED
    path: str
    mark: str
    size: int
    modified: int

    @property
    def is_there(self) -> bool:
        """True unless the file is gone or has changed; a file that cannot be read is taken for unchanged."""
        try:
            stat = Path(self.path).stat()
            same = (stat.st_size, stat.st_mtime_ns) == (self.size, self.modified)
            return same or mark_of(Path(self.path)) == self.mark
        except FileNotFoundError:
            return False
        except (OSError, ValueError, InputError):
            return True


def remember(folder: Path, path: Path, mark: str) -> None:
    """Store which file a conversion is of, unless that is stored already, in a cache that can be written."""
    file = sibling(folder, SOURCE)
    with suppress(OSError, UnicodeEncodeError):
        stat = path.stat()
        source = Source(str(path.resolve()), mark, stat.st_size, stat.st_mtime_ns)
        if read(file) != source:
            write_text(file, json.dumps(asdict(source)) + "\n")


def remove_unused(new: Path) -> None:
    """Remove conversions of files that have changed or are gone, next to a new one. Those that another process
    converts stay, and so does everything that is no conversion of which the file is known."""
    for file in sorted(new.parents[1].glob(f"*-*/.*{SOURCE}"))[:MOST]:
        folder = file.with_name(file.name[1 : -len(SOURCE)])
        source = None if folder == new else read(file)
        if source is None or not file.parent.name.endswith(f"-{source.mark}") or source.is_there:
            continue
        with suppress(InputError, OSError), locked(file.parent):
            old = sibling(folder, NEW)
            delete(old)
            if is_folder(folder):
                folder.rename(old)
                delete(old)
            file.unlink()
            file.parent.rmdir()  # unless there is another conversion


def read(file: Path) -> Source | None:
    """Return the stored source, None where there is none."""
    try:
        return from_json(Source, read_file(file), file)
    except InputError:
        return None


def mark_of(path: Path) -> str:
    """Return a short hash of a file: its size, its first HEAD bytes, and 64 KiB of every MiB after them."""
    digest = hashlib.sha256()
    with opened(path) as (file, size):
        digest.update(f"{size} ".encode())
        digest.update(file.read(HEAD))
        for offset in range(HEAD, size, 2**20):
            file.seek(offset)
            digest.update(file.read(2**16))
    return digest.hexdigest()[:16]
