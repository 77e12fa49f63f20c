"""A GGUF file as a checkpoint in transformers' form, in c2t's cache: converted once, and then found by its bytes."""

import shutil
import warnings
from collections.abc import Callable
from math import prod
from pathlib import Path

from transformers import PreTrainedConfig
from transformers.utils import logging as transformers_logging

from c2t.errors import InputError, one_line
from c2t.models.gguf.config import config_of, generation_of
from c2t.models.gguf.reader import Gguf, read_header
from c2t.models.gguf.sources import mark_of, remember, remove_unused
from c2t.models.gguf.stored import size_of, store
from c2t.models.gguf.tokenizer import tokenizer_of
from c2t.models.gguf.weights import Weight, weights_of
from c2t.storage.lock import locked
from c2t.storage.paths import cache, replacing
from c2t.storage.tensors import Planned, write_tensors

FORM = 3  # of converted checkpoints; another number converts every file again
WEIGHTS = "model.safetensors"
RESERVE = 64 * 2**20  # free bytes that stay after a conversion, and the tokenizer's


def converted(path: Path) -> Path:
    """Return the folder with the checkpoint of a GGUF file, which is converted unless it was before.

    The folder appears complete or not at all, in `c2t.storage.paths.cache`. While another process converts the file,
    this one waits. A new conversion removes those of files that have changed or are gone. Raises InputError for a file
    that c2t does not read, and for a disk without room.
    """
    mark = mark_of(path)
    folder = cache() / "gguf" / f"{FORM}-{mark}" / (path.stem or "target")

    def make() -> None:
        convert(read_header(path), folder, with_blocks=True)
        remove_unused(folder)

    once(folder, make)
    remember(folder, path, mark)
    return folder


def once(folder: Path, make: Callable[[], None]) -> None:
    """Make a checkpoint in a folder unless it is there; while another process makes it, wait for that one."""
    try:
        if not is_made(folder):
            with locked(folder.parent, wait=True):
                if not is_made(folder):
                    make()
    except OSError as error:
        raise InputError(f"cannot write {folder}: {one_line(error)}") from error


def is_made(folder: Path) -> bool:
    """Return True if a checkpoint is in the folder."""
    return (folder / "config.json").is_file()


def convert(file: Gguf, folder: Path, with_blocks: bool = False) -> None:
    """Write the checkpoint of a file into a folder, which appears complete or not at all. with_blocks: store these as
    well, see `c2t.models.gguf.stored`. Raises InputError for a file that c2t does not read, and for a disk without
    room."""
    config = config_of(file)
    weights = weights_of(file, config)
    size = sum(prod(weight.shape) for weight in weights) * config.dtype.itemsize
    check_room(folder, size + with_blocks * size_of(weights))
    warnings.warn(f"converting {file.path} into {folder}, once", stacklevel=3)
    with replacing(folder) as new:
        write(file, config, weights, new)
        if with_blocks:
            store(file, weights, new)


def write(file: Gguf, config: PreTrainedConfig, weights: list[Weight], folder: Path) -> None:
    """Write the checkpoint of a file into an empty folder: the tokenizer first, which may be damaged."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        tokenizer_of(file, config.vocab_size).save_pretrained(folder)
        config.save_pretrained(folder)
        generation_of(config, file).save_pretrained(folder)
    finally:
        transformers_logging.set_verbosity(level)
    planned = [Planned(weight.name, weight.shape, weight.converted(file, config.dtype)) for weight in weights]
    write_tensors(folder / WEIGHTS, config.dtype, planned, {"format": "pt"})


def check_room(folder: Path, size: int) -> None:
    """Raise InputError if the disk has no room for so many bytes, and a reserve."""
    needed = size + RESERVE
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise InputError(
            f"{folder}: {free // 2**20} MiB free, the converted target needs {needed // 2**20}; make room there, or "
            "name another folder in $C2T_CACHE"
        )
