"""Functions in C get tensors by one door, which refuses what they would misread."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import c2t
from c2t import SpeculativeDecoder
from c2t.kernels.decoder_layers import Kind, works
from c2t.kernels.pointer import pointer, pointers, weights
from tests.marks import slow_except

SOURCES = sorted(Path(c2t.__file__).parent.rglob("*.py"))
# Addresses that C does not get: what a CUDA graph's kernels read, and what tells which weights are the same ones.
OTHERS = {"kernels/layer_buffers.py", "models/packing/versions.py", "models/gguf/stored.py", "classifier.py"}
MAKERS = {"arange", "as_tensor", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "tensor", "zeros"}


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


def test_what_c_takes_is_given_as_its_address() -> None:
    whole, table = torch.arange(6).view(2, 3), torch.zeros(2, 3)
    assert pointer(whole, torch.int64) == whole.data_ptr()
    assert pointer(whole[1:], torch.int64) == whole[1:].data_ptr()
    assert pointer(table[:, :2], torch.float32, rows=True) == table.data_ptr()
    assert pointers((whole, table), (torch.int64, torch.float32)) == (whole.data_ptr(), table.data_ptr())
    assert weights(table) == (table.data_ptr(), False)
    half = table.bfloat16()
    assert weights(half) == (half.data_ptr(), True)


@pytest.mark.parametrize(
    ("tensor", "rows", "found"),
    [
        (torch.zeros(2, 3, dtype=torch.float64), False, "float64 on cpu"),
        (torch.zeros(2, 3, dtype=torch.bfloat16), False, "bfloat16 on cpu"),
        (torch.zeros(2, 3).T, False, r"float32 on cpu with strides \(1, 3\)"),
        (torch.zeros(2, 3)[:, :2], False, r"float32 on cpu with strides \(3, 1\)"),
        (torch.zeros(2, 3).T, True, r"float32 on cpu with strides \(1, 3\)"),
        (torch.zeros(3).expand(2, 3), False, r"float32 on cpu with strides \(0, 1\)"),
        (torch.zeros(2, 3, device="meta"), False, "float32 on meta"),
    ],
)
def test_what_c_would_misread_is_refused(tensor: torch.Tensor, rows: bool, found: str) -> None:
    with pytest.raises(TypeError, match=f"C takes torch.float32 on a CPU without gaps, not torch.{found}"):
        pointer(tensor, torch.float32, rows)
    with pytest.raises(TypeError, match=r"not torch\.float16"):
        weights(torch.zeros(2, dtype=torch.float16))


def test_no_address_is_given_elsewhere() -> None:
    """An address that nothing was asked about would be written past its end."""
    root = Path(c2t.__file__).parent
    found = {str(path.relative_to(root)) for path in SOURCES if ".data_ptr" in path.read_text()}
    assert found == OTHERS | {"kernels/pointer.py"}
    assert not [path for path in SOURCES if ".ctypes.data" in path.read_text()]
    buffers = root / "kernels/layer_buffers.py"
    [there] = (call for call in calls(buffers) if ast.unparse(call.func).endswith("data_ptr"))
    above = buffers.read_text().splitlines()[: there.lineno]
    assert "def there" in "\n".join(above).rsplit("@cached_property", 1)[1]


def test_kernels_tensors_name_their_device_and_numbers_their_type() -> None:
    """A program may set other ones as torch's defaults."""
    for path in SOURCES:
        for call in calls(path):
            owner, _, name = ast.unparse(call.func).rpartition(".")
            if owner != "torch" or name not in MAKERS or path.parent.name != "kernels":
                continue
            given = {word.arg for word in call.keywords}
            assert "device" in given, f"{path}:{call.lineno}"
            assert "dtype" in given or name in ("arange", "tensor"), f"{path}:{call.lineno}"


@pytest.mark.parametrize("default", slow_except((torch.float64, torch.bfloat16, torch.float16), torch.float64))
@pytest.mark.parametrize("dtype", slow_except((None, torch.int8, torch.float32, torch.bfloat16), None))
def test_a_programs_default_dtype_changes_no_text(default: torch.dtype, dtype: torch.dtype | None) -> None:
    if dtype == torch.int8 and Kind.INT8 not in works():
        pytest.skip("no products of bytes here")
    wanted = text_in(torch.float32, dtype)
    assert text_in(default, dtype) == wanted


def text_in(default: torch.dtype, dtype: torch.dtype | None) -> list[list[int]]:
    torch.set_default_dtype(default)
    try:
        decoder = SpeculativeDecoder.from_pretrained("tiny", dtype=dtype, device="cpu")
        return decoder.generate(["def add(a, b):", "for"], max_new_tokens=8).sequences
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_programs_default_device_changes_no_text(temperature: float) -> None:
    decoder = SpeculativeDecoder.from_pretrained("tiny", device="cpu")
    settings = {"max_new_tokens": 8, "temperature": temperature, "seed": 3}
    torch.set_default_device("meta")
    try:
        found = decoder.generate(["def add(a, b):", "for"], **settings).sequences
    finally:
        torch.set_default_device(None)
    assert found == decoder.generate(["def add(a, b):", "for"], **settings).sequences
