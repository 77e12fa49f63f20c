"""A check that a target fits into memory, before it is loaded: the system ends a process that takes more, silently."""

from pathlib import Path

import torch

from c2t.errors import InputError
from c2t.models.gguf.stored import BLOCKS
from c2t.models.loading.weight_files import files_of_model

GIB = 2**30


def available() -> int | None:
    """Return the bytes of memory that are free or can be made so; None where the system does not say."""
    file = Path("/proc/meminfo")
    if not file.is_file():
        return None
    lines = (line.split() for line in file.read_text().splitlines())
    return next((int(words[1]) * 1024 for words in lines if words and words[0] == "MemAvailable:"), None)


def check_memory(source: Path, dtype: torch.dtype | str, written: torch.dtype, as_stored: bool) -> None:
    """Raise InputError if the weights of a checkpoint's folder do not fit into memory, and name what would.

    dtype: what they are loaded in; words stand for `written`, the files' own. as_stored: a GGUF's blocks are what is
    loaded. What decoding takes besides does not count, so that nothing is refused that would have run.
    """
    free = available()
    weights = sum(file.stat().st_size for file in files_of_model(source) if file.exists()) / written.itemsize
    sizes = {str(kind).removeprefix("torch."): weights * kind.itemsize for kind in (torch.float32, torch.bfloat16)}
    if (source / BLOCKS).is_file():
        sizes["its blocks as they are"] = (source / BLOCKS).stat().st_size
    loaded = dtype if isinstance(dtype, torch.dtype) else written
    needed = sizes["its blocks as they are"] if as_stored else weights * loaded.itemsize
    if free is None or needed <= free:
        return
    fits = ", ".join(f"{name} {size / GIB:.1f}" for name, size in sizes.items() if size < needed)
    raise InputError(
        f"{source}: its weights take {needed / GIB:.1f} GiB of memory, and {free / GIB:.1f} are free; "
        + (f"in GiB, less take {fits}: choose one with --dtype, " if fits else "")
        + "end other programs, or take a smaller model"
    )
