"""A header that is damaged, truncated or forged is refused in one line, without memory for what it claims."""

import struct
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest

from c2t.errors import InputError
from c2t.models.gguf.reader import read_header
from tests.models.gguf.small_files import write


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "a.gguf"
    write(path, "llama")
    return path.read_bytes()


def test_entries_and_tensors_are_those_of_the_format(whole: bytes, tmp_path: Path) -> None:
    """As the format's own package reads them."""
    path = tmp_path / "a.gguf"
    path.write_bytes(whole)
    file, expected = read_header(path), gguf.GGUFReader(path)
    assert file.architecture == "llama"
    assert file.entries == {
        name: field.contents() for name, field in expected.fields.items() if not name.startswith("GGUF.")
    }
    assert {name: tensor.begin for name, tensor in file.tensors.items()} == {
        tensor.name: tensor.data_offset for tensor in expected.tensors
    }
    first = expected.tensors[0]
    [rows] = file.rows(file.tensors[first.name], 2**20)
    assert np.array_equal(rows.numpy().ravel(), first.data.view(np.uint8).ravel())


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.1, 0.3, 0.6, 0.999])
def test_a_truncated_file_is_refused(share: float, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(InputError, match=r"truncated|damaged|not a GGUF|shorter"):
        read_header(path)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, b"GGML", "not a GGUF file"),
        (4, struct.pack("<I", 9), "GGUF version 9"),
        (8, struct.pack("<Q", 2**63), "tensors in"),
        (16, struct.pack("<Q", 2**40), "entries in"),
        (24, struct.pack("<Q", 2**62), "a key of"),
    ],
)
def test_a_forged_number_is_refused(at: int, value: bytes, message: str, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(whole[:at] + value + whole[at + len(value) :])
    with pytest.raises(InputError, match=message):
        read_header(path)


def test_random_damage_is_refused_or_read(whole: bytes, tmp_path: Path) -> None:
    """Whatever byte of the header changes, there is an answer."""
    generator, path = np.random.default_rng(0), tmp_path / "a.gguf"
    for _ in range(300):
        data = bytearray(whole)
        data[generator.integers(0, 6000)] = generator.integers(0, 256)
        path.write_bytes(data)
        with suppress(InputError):
            read_header(path)


def test_an_unknown_quantisation_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor(
        "blk.0.x", np.zeros((1, 110), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q3_K, raw_shape=(1, 110)
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(InputError, match=r"is stored in Q3_K; c2t reads .*Q4_K"):
        read_header(tmp_path / "a.gguf")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no\.gguf: no such file"):
        read_header(tmp_path / "no.gguf")
    with pytest.raises(InputError, match="no regular file"):
        read_header(tmp_path)
