"""A GGUF file as a checkpoint in transformers' form, in c2t's cache: converted once, and then found by its bytes."""

import hashlib
import shutil
import warnings
from math import prod
from pathlib import Path

from transformers import PreTrainedConfig
from transformers.utils import logging as transformers_logging

from c2t.errors import InputError
from c2t.models.gguf.config import config_of, generation_of
from c2t.models.gguf.reader import Gguf, opened, read_header
from c2t.models.gguf.stored import size_of, store
from c2t.models.gguf.tokenizer import tokenizer_of
from c2t.models.gguf.weights import Weight, weights_of
from c2t.storage.paths import cache, replacing
from c2t.storage.tensors import Planned, write_tensors

FORM = 2  # of converted checkpoints; another number converts every file again
WEIGHTS = "model.safetensors"
HEAD = 64 * 2**20  # bytes of a file that are read whole to know it again, the header among them; and 64 KiB of each MiB
RESERVE = 64 * 2**20  # free bytes that stay after a conversion, and the tokenizer's


def converted(path: Path) -> Path:
    """Return the folder with the checkpoint of a GGUF file, which is converted unless it was before.

    The folder appears complete or not at all, in `c2t.storage.paths.cache`. Raises InputError for a file that c2t does
    not read, and for a disk without room.
    """
    folder = cache() / "gguf" / f"{FORM}-{mark_of(path)}" / (path.stem or "target")
    if not (folder / "config.json").is_file():
        convert(read_header(path), folder, with_blocks=True)
    return folder


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
