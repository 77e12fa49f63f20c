"""Check that a language model fits into this machine's memory, by the headers of its files."""

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path

import torch

from c2t.errors import InputError

LONGEST_HEADER = 100 * 2**20  # bytes; what safetensors itself reads at most
# Bytes of a weight in the packed copy that the kernels read, by the data type on the command line; else bf16's.
PACKED = {"int4": 0.63, "int8": 1.0}
GIB = 2**30


def check_memory(source: str, dtype: torch.dtype, rounded_to: str) -> None:
    """Raise InputError if the weights of a folder cannot fit into this machine's memory.

    dtype: of transformers' modules, which keep the weights next to the kernels' packed copy. rounded_to: int8, int4 or
    "". Folders without safetensors, the Hub's models and systems that do not say their memory pass.
    """
    memory, numbers = total_memory(), sum(weights_in(Path(source)))
    needed = numbers * (dtype.itemsize + PACKED.get(rounded_to, 2))
    if memory and needed > memory:
        name = rounded_to or str(dtype).removeprefix("torch.")
        raise InputError(
            f"{source}: {numbers / 1e9:.1f} billion weights take {needed / GIB:.0f} GiB in {name}, and this machine "
            f"has {memory / GIB:.0f}: take a smaller model, or a machine with more memory"
        )


def weights_in(folder: Path) -> Iterator[int]:
    """Yield the number of weights of each tensor in a folder's safetensors, from their headers; damaged files, which
    loading refuses, count nothing."""
    for path in folder.glob("*.safetensors") if folder.is_dir() else ():
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(LONGEST_HEADER, path.stat().st_size):
                continue
            try:
                header = json.loads(file.read(length))
            except ValueError:
                continue
        shapes = (entry.get("shape") for name, entry in header.items() if name != "__metadata__")
        yield from (prod(shape) for shape in shapes if isinstance(shape, list))


def total_memory() -> int:
    """Return the bytes of this machine's memory, or of this process's control group if that has less; 0 where the
    system does not say."""
    limits = []
    for path in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        if path.is_file() and (text := path.read_text().strip()).isdigit():
            limits.append(int(text))
    for line in Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").is_file() else ():
        if line.startswith("MemTotal:"):
            limits.append(int(line.split()[1]) * 1024)
    return min(limits, default=0)
