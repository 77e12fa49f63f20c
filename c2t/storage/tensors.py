"""Write a safetensors file whose tensors are never all in memory; its bytes are those that the library writes."""

import json
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

# The library's names of types, in the order in which it stores them: the widest first.
DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.uint8: "U8"}


class Planned(NamedTuple):
    """A tensor to write. parts: its rows, some after the other."""

    name: str
    shape: tuple[int, ...]
    parts: Iterable[Tensor]


def write_tensors(path: Path, dtype: torch.dtype, tensors: list[Planned], about: dict[str, str]) -> None:
    """Write tensors of one dtype. about: the file's metadata. Raises OSError."""
    header: dict[str, object] = {"__metadata__": about}
    tensors, end = sorted(tensors, key=lambda tensor: tensor.name), 0
    for tensor in tensors:
        begin, end = end, end + prod(tensor.shape) * dtype.itemsize
        header[tensor.name] = {"dtype": DTYPES[dtype], "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            written = 0
            for part in tensor.parts:
                assert part.dtype == dtype
                written += file.write(part.contiguous().view(-1).view(torch.uint8).numpy())
            assert written == prod(tensor.shape) * dtype.itemsize
