"""Where nothing can be written: files that end at a size, and disks that are full."""

import contextlib
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """Let this process write no file beyond so many bytes."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


@contextlib.contextmanager
def disk_of(size: int, folder: Path) -> Iterator[bool]:
    """Mount a disk of so many bytes, rounded up to pages, at `folder`; yield False where the user may not."""
    folder.mkdir()
    made = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    mounted = subprocess.run(made, capture_output=True)
    try:
        yield not mounted.returncode
    finally:
        if not mounted.returncode:
            subprocess.run(["umount", "--lazy", folder], check=True)  # noqa: S607
