"""Compaction against lists, and the Triton kernel in its interpreter against the twin."""

import pytest
import torch

from c2t.kernels.compact import LONGEST, compact, compiled_compact, torch_compact, triton_compact
from c2t.kernels.layer_buffers import LayerBuffers
from c2t.kernels.native import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INDEX = torch.tensor([[0, 2, 5], [3, 1, 1], [0, 1, 2]])  # any order, and twice the same


def buffers(layers: int, rows: int, heads: int, capacity: int, dim: int, dtype: torch.dtype) -> LayerBuffers:
    return LayerBuffers(torch.randn(2, rows, heads, capacity, dim).to(DEVICE, dtype) for _ in range(layers))


def rows_of(layers: list[torch.Tensor]) -> torch.Tensor:
    """First slot of each row, in its first head."""
    _, rows, heads, capacity, _ = layers[0].shape
    return torch.arange(rows) * heads * capacity


def on_device(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.to(DEVICE) for tensor in tensors)


IN_C = pytest.param(
    compiled_compact, marks=pytest.mark.skipif(DEVICE == "cuda" or kernels() is None, reason="no C kernels here")
)


@pytest.mark.parametrize("move", [torch_compact, triton_compact, IN_C, compact])
@pytest.mark.parametrize("counts", [[3, 3, 3], [1, 0, 2]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_r_has_its_path_behind_its_prefix(move, counts: list[int], dtype: torch.dtype) -> None:
    """In row 0 the path overlaps with what it replaces; behind row 2's longest path the buffer ends."""
    lengths, start = torch.tensor([4, 2, 0]), 4
    before = buffers(3, 3, 2, 10, 6, dtype)
    after = LayerBuffers(buffer.clone() for buffer in before)
    first = rows_of(after)
    move(after, *on_device(INDEX, torch.tensor(counts), first + start, first + lengths))
    for old, new in zip(before, after, strict=True):
        for row, (length, count) in enumerate(zip(lengths.tolist(), counts, strict=True)):
            expected = old[:, row].clone()
            for step in range(count):
                expected[:, :, length + step] = old[:, row, :, start + INDEX[row, step]]
            assert new[:, row].equal(expected)


def test_addresses_follow_the_buffers() -> None:
    """A cache that has grown has other buffers."""
    arguments = on_device(INDEX[:1], torch.tensor([3]), torch.tensor([2]), torch.tensor([1]))
    for _ in range(2):
        layers = buffers(2, 1, 1, 9, 4, torch.float32)
        twin = [layer.clone() for layer in layers]
        triton_compact(layers, *arguments)
        torch_compact(twin, *arguments)
        assert all(map(torch.equal, layers, twin))


def test_prompt_that_does_not_fit_the_kernel_stays_where_it_is() -> None:
    layers = LayerBuffers(buffers(1, 1, 1, LONGEST + 8, 4, torch.float32))
    before = layers[0].clone()
    steps = torch.arange(LONGEST + 1)[None]
    compact(layers, *on_device(steps, torch.tensor([LONGEST]), torch.tensor([0]), torch.tensor([0])))
    assert layers[0].equal(before)


def test_what_is_known_of_buffers_is_forgotten_when_one_is_replaced() -> None:
    layers = LayerBuffers([None, None])
    assert not layers.complete
    layers[:] = buffers(2, 1, 1, 9, 4, torch.float32)
    assert layers.complete
    assert layers.alike
    assert list(layers.addresses) == [layer.data_ptr() for layer in layers]
    strided = layers[0].transpose(3, 4).contiguous().transpose(3, 4)
    for other in (torch.zeros(2, 1, 1, 8, 4), layers[0].double(), strided):
        layers[1] = other.to(DEVICE)
        assert not layers.alike
        layers[1] = layers[0].clone()
        assert layers.alike
    assert list(layers.addresses) == layers.there.tolist() == [layer.data_ptr() for layer in layers]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_kernel_is_the_twin_at_full_size(dtype: torch.dtype) -> None:
    layers = buffers(32, 4, 8, 3000, 128, dtype)
    twin = [layer.clone() for layer in layers]
    index = torch.stack([torch.randperm(60)[:12] for _ in range(4)])
    first, lengths = rows_of(layers), torch.tensor([2900, 2000, 17, 2899])
    arguments = on_device(index, torch.tensor([12, 1, 0, 7]), first + 2900, first + lengths)
    triton_compact(layers, *arguments)
    torch_compact(twin, *arguments)
    assert all(map(torch.equal, layers, twin))


@pytest.mark.parametrize("move", [torch_compact, triton_compact, IN_C])
def test_rows_that_are_ranges_of_one_buffer(move) -> None:
    """As `KVPool` has them: (2, heads, slots, dim), each row with a start of its own."""
    before = [torch.randn(2, 3, 30, 5).to(DEVICE) for _ in range(2)]
    after = LayerBuffers(buffer.clone() for buffer in before)
    tails, counts = torch.tensor([21, 3, 12]), torch.tensor([3, 2, 1])
    move(after, *on_device(INDEX, counts, tails, tails))
    for old, new in zip(before, after, strict=True):
        expected = old.clone()
        for row, (tail, count) in enumerate(zip(tails.tolist(), counts.tolist(), strict=True)):
            for step in range(count):
                expected[:, :, tail + step] = old[:, :, tail + INDEX[row, step]]
        assert new.equal(expected)
