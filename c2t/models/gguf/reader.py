"""The header of a GGUF file: its entries, and the table of its tensors.

A file may come from anybody, so no number in it is believed: every length, count and offset is compared with the file's
size before anything is read or made by it. The format is a magic, a version, two counts, the entries, the table, and
the tensors' bytes (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). The `gguf` package reads it too, but
every string on its own through numpy: 10 s for a vocabulary of 262,144 tokens, and this takes half a second.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase, BufferedReader, FileIO
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor

from c2t.errors import InputError, counted, one_line
from c2t.models.gguf.blocks import OTHER_TYPES, TYPES, BlockType

MAGIC, VERSIONS = b"GGUF", (2, 3)
ENDING = ".gguf"
ARCHITECTURE = "general.architecture"
ALIGNMENT, MOST_ALIGNMENT = 32, 2**16
DIMENSIONS = 4
KEY = 2**16 - 1  # bytes of a key or a tensor's name at most
ENTRIES, TENSORS = 2**16, 2**16
# Types of an entry's value -> how `struct` reads it; besides, there are strings and arrays.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
AGAIN = "get the file again"


class TensorEntry(NamedTuple):
    """A tensor of the file. shape: in torch's order, rows first. begin: of its bytes in the file."""

    name: str
    shape: tuple[int, ...]
    type: BlockType
    begin: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.type.bytes_of(self.shape[-1])

    @property
    def rows(self) -> int:
        return prod(self.shape[:-1])

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        return self.rows * self.row_bytes


class Gguf(NamedTuple):
    """Header of a GGUF file."""

    path: Path
    entries: dict[str, Any]
    tensors: dict[str, TensorEntry]

    @property
    def architecture(self) -> str:
        return self.entries[ARCHITECTURE]

    def rows(self, tensor: TensorEntry, at_once: int) -> Iterator[UInt8[Tensor, "R n"]]:
        """Yield a tensor's bytes, `at_once` rows at a time. InputError if the file ends before."""
        with opened(self.path) as (file, _):
            file.seek(tensor.begin)
            for begin in range(0, tensor.rows, at_once):
                count = min(at_once, tensor.rows - begin)
                data = bytearray(file.read(count * tensor.row_bytes))
                if len(data) < count * tensor.row_bytes:
                    raise InputError(f"{self.path}: it has become shorter while it was read; {AGAIN}")
                yield torch.frombuffer(data, dtype=torch.uint8).view(count, -1)


def is_gguf(reference: Any) -> bool:
    """Return True for a path that ends as GGUF files do."""
    return isinstance(reference, str | Path) and str(reference).lower().endswith(ENDING)


def read_header(path: Path) -> Gguf:
    """Read the header of a GGUF file. InputError, with what is wrong, for another file, for one that is damaged or
    truncated, and for tensors of unknown types."""
    with opened(path) as (file, size):
        header = _Header(path, file, size)
        if header.read(4, "the magic") != MAGIC:
            raise InputError(f"{path}: not a GGUF file; {AGAIN}")
        version = header.number("I", "the version")
        if version not in VERSIONS:
            raise InputError(f"{path}: GGUF version {version}; c2t reads {' and '.join(map(str, VERSIONS))}")
        tensors, entries = header.count(TENSORS, 24, "tensors"), header.count(ENTRIES, 13, "entries")
        values = dict(header.distinct(entries, header.entry))
        if not isinstance(values.get(ARCHITECTURE), str):
            raise InputError(f"{path}: it does not say its architecture ({ARCHITECTURE}); {AGAIN}")
        alignment = values.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or not 1 <= alignment <= MOST_ALIGNMENT or alignment % 8:
            raise InputError(f"{path}: general.alignment = {alignment!r} must be a multiple of 8; {AGAIN}")
        table = dict(header.distinct(tensors, header.tensor))
        start = -(-file.tell() // alignment) * alignment
    placed = {name: tensor._replace(begin=start + tensor.begin) for name, tensor in table.items()}
    for tensor in placed.values():
        if tensor.begin + tensor.size > size:
            raise InputError(f"{path}: truncated: {tensor.name} ends after the file's {size:,} bytes; {AGAIN}")
    if start + sum(tensor.size for tensor in placed.values()) > size:
        raise InputError(f"{path}: damaged: tensors share bytes; {AGAIN}")
    return Gguf(path, values, placed)


@contextmanager
def opened(path: Path) -> Iterator[tuple[BufferedIOBase, int]]:
    """Open a regular file, and say its size. InputError if it cannot be read."""
    if not path.is_file():  # a pipe would be waited for
        raise InputError(f"{path}: {'no regular file' if path.exists() else 'no such file'}")
    try:
        with BufferedReader(FileIO(path), 2**20) as file:
            yield file, path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({one_line(error)})") from error


class _Header:
    """Reads the parts of a header one after the other, none of them beyond the file's end."""

    def __init__(self, path: Path, file: BufferedIOBase, size: int):
        self.path, self.file, self.size = path, file, size

    def read(self, count: int, what: str) -> bytes:
        if count > self.size - self.file.tell():
            raise InputError(f"{self.path}: truncated in {what} ({self.size:,} bytes); {AGAIN}")
        return self.file.read(count)

    def number(self, kind: str, what: str) -> Any:
        return struct.unpack(f"<{kind}", self.read(struct.calcsize(kind), what))[0]

    def count(self, most: int, least_bytes: int, what: str) -> int:
        """Read a number of things, each of which takes so many bytes at least."""
        number = self.number("Q", f"the number of {what}")
        if number > most or number * least_bytes > self.size - self.file.tell():
            raise InputError(f"{self.path}: damaged: {counted(number)} {what} in {self.size:,} bytes; {AGAIN}")
        return number

    def text(self, what: str, most: int | None = None) -> str:
        length = self.number("Q", what)
        if most is not None and length > most:
            raise InputError(f"{self.path}: damaged: {what} of {counted(length)} bytes; {AGAIN}")
        try:
            return self.read(length, what).decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{self.path}: damaged: {what} is not UTF-8; {AGAIN}") from error

    def distinct(self, count: int, read: Any) -> Iterator[tuple[str, Any]]:
        seen = set()
        for _ in range(count):
            name, value = read()
            if name in seen:
                raise InputError(f"{self.path}: damaged: {name!r} is there twice; {AGAIN}")
            seen.add(name)
            yield name, value

    def entry(self) -> tuple[str, Any]:
        key = self.text("a key", KEY)
        return key, self.value(self.number("I", key), key)

    def value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self.text(key)
        if kind in NUMBERS:
            return self.number(NUMBERS[kind], key)
        if kind == ARRAY:  # of numbers or strings; nobody nests them
            inner = self.number("I", key)
            if inner == STRING:
                return self.texts(self.count(self.size, 8, f"strings of {key}"), key)
            if inner in NUMBERS:
                code = NUMBERS[inner]
                length = self.count(self.size, struct.calcsize(code), f"numbers of {key}")
                return list(struct.unpack(f"<{length}{code}", self.read(length * struct.calcsize(code), key)))
            kind = inner
        raise InputError(f"{self.path}: damaged: {key} is of type {kind}, which c2t does not read; {AGAIN}")

    def texts(self, count: int, key: str) -> list[str]:
        """Read strings: `text` for many, with the file's position counted here, which takes a third of the time."""
        read, left, texts = self.file.read, self.size - self.file.tell(), []
        for _ in range(count):
            length = int.from_bytes(read(8), "little")
            left -= 8 + length
            if left < 0:
                raise InputError(f"{self.path}: truncated in {key} ({self.size:,} bytes); {AGAIN}")
            texts.append(read(length))
        try:
            return [text.decode() for text in texts]
        except UnicodeDecodeError as error:
            raise InputError(f"{self.path}: damaged: a string of {key} is not UTF-8; {AGAIN}") from error

    def tensor(self) -> tuple[str, TensorEntry]:
        name = self.text("a tensor's name", KEY)
        dimensions = self.number("I", name)
        if not 1 <= dimensions <= DIMENSIONS:
            raise InputError(f"{self.path}: damaged: {name} has {dimensions:,} dimensions; {AGAIN}")
        shape = tuple(reversed([self.number("Q", name) for _ in range(dimensions)]))
        number, begin = self.number("I", name), self.number("Q", name)
        if number not in TYPES:
            other = OTHER_TYPES.get(number, f"type {number}")
            names = ", ".join(kind.name for kind in TYPES.values())
            raise InputError(f"{self.path}: {name} is stored in {other}; c2t reads {names}: get one of these")
        if 0 in shape or shape[-1] % TYPES[number].weights:
            shown = " x ".join(map(counted, shape))
            raise InputError(f"{self.path}: damaged: {name} has {shown} numbers in {TYPES[number].name}; {AGAIN}")
        return name, TensorEntry(name, shape, TYPES[number], begin)
