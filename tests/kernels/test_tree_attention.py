"""On random trees: the Triton kernel in its interpreter against the twin, the twin against a softmax written out."""

import pytest
import torch

from c2t.kernels.tree_attention import fill, torch_attention, tree_attention, triton, triton_attention
from c2t.kernels.tree_mask import TreeMask, ancestor_bits
from c2t.tree import Tree
from pipelines.papers.tree_blocks import random_trees

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLOSE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}  # a few units in the last place


def case(
    nodes: int,
    lengths: list[int],
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype = torch.float32,
    gap: int = 0,
):
    """Queries, keys, values and mask of random trees in depth-first order behind prefixes of these lengths; the rows'
    trees have different sizes, and the tree starts `gap` slots behind the longest prefix."""
    rows, start = len(lengths), max(lengths) + gap
    tree = random_trees(nodes, rows, seed=nodes).heavy_first()
    # Row r has r slots less. What is cut off are leaves or whole subtrees, since parents stand before children.
    alive = torch.arange(nodes) < nodes - torch.arange(rows)[:, None]
    lengths = torch.tensor(lengths)
    mask = TreeMask.of(tree.parent, alive, lengths[:, None] + tree.depth + 1, lengths)
    query = torch.randn(rows, nodes, heads, dim).transpose(1, 2)  # as projections come
    buffer = torch.randn(2, rows, kv_heads, start + nodes + 5, dim)  # the cache has room left
    parts = (query, *buffer[:, :, :, : start + nodes])
    return *(part.to(DEVICE, dtype) for part in parts), TreeMask(*(column.to(DEVICE) for column in mask)), tree


def written_out(query, key, value, tree: Tree, lengths: list[int], window: float) -> torch.Tensor:
    """Every query walks up its own line of ancestors."""
    out = torch.zeros_like(query)
    start = key.shape[2] - tree.size
    for row, head, slot in torch.cartesian_prod(*map(torch.arange, query.shape[:3])).tolist():
        if slot >= tree.size - row:
            continue
        line = [slot]
        while line[-1] > 0:
            line.append(int(tree.parent[row, line[-1]]))
        place = lengths[row] + len(line) - 1
        seen = [p for p in range(lengths[row]) if place - p < window]
        seen += [start + node for back, node in enumerate(line) if back < window]
        shared = head * key.shape[1] // query.shape[1]
        weights = (key[row, shared, seen] @ query[row, head, slot] * 0.3).softmax(0)
        out[row, head, slot] = weights @ value[row, shared, seen]
    return out


@pytest.mark.parametrize("window", [None, 3])
def test_twin_is_the_softmax_over_prefix_and_ancestors(window: int | None) -> None:
    query, key, value, mask, tree = case(40, [7, 0, 4], heads=4, kv_heads=2, dim=8, gap=2)
    expected = written_out(query.cpu(), key.cpu(), value.cpu(), tree, [7, 0, 4], window or float("inf"))
    found = torch_attention(query, key, value, mask, 0.3, window).cpu()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_bits_are_the_ancestors() -> None:
    tree = random_trees(100, 3, seed=1)
    bits = ancestor_bits(tree.parent)
    slot = torch.arange(100)
    assert bits.dtype == torch.int32
    assert (bits[:, :, slot // 32] >> (slot % 32) & 1).bool().equal(tree.ancestors())


def test_blocks_are_those_with_a_bit() -> None:
    tree = random_trees(100, 3, seed=1).heavy_first()
    mask = TreeMask.of(tree.parent, tree.alive, tree.depth, torch.zeros(3, dtype=torch.long))
    dense = torch.nn.functional.pad(tree.ancestors(), (0, 28, 0, 28)).unflatten(1, (4, 32)).unflatten(3, (4, 32))
    filled = dense.any(4).any(2)
    assert not filled.all()
    for row in range(3):
        for part in range(4):
            assert mask.block[row, part, : mask.count[row, part]].tolist() == filled[row, part].nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("nodes", "lengths", "heads", "kv_heads", "dim", "dtype", "window", "splits"),
    [
        (1, [5], 1, 1, 16, torch.float32, None, 1),  # plain decoding
        (33, [0, 0], 2, 2, 16, torch.float32, None, 1),  # no prefix
        (70, [0, 131, 5], 4, 1, 16, torch.float32, None, 1),
        (40, [0, 131, 5], 2, 1, 16, torch.float32, None, 4),  # shares without a key
        (20, [77], 3, 1, 64, torch.float16, None, 2),  # a group that is no power of two
        (33, [67], 4, 4, 64, torch.bfloat16, None, 2),
        (24, [67, 130], 2, 1, 256, torch.float32, None, 1),
        (36, [0, 131, 5], 4, 2, 16, torch.float32, 3, 1),
        (36, [0, 131, 5], 2, 1, 16, torch.float32, 100, 2),
    ],
)
def test_kernel_is_the_twin(nodes, lengths, heads, kv_heads, dim, dtype, window, splits) -> None:
    query, key, value, mask, _ = case(nodes, lengths, heads, kv_heads, dim, dtype, gap=3)
    found = triton_attention(query, key, value, mask, 0.3, window, splits=splits)
    wide = (part.float() for part in (query, key, value))
    expected = torch_attention(*wide, mask, 0.3, window)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.parametrize("splits", [1, 2])
def test_a_level_asks_for_itself_only(splits: int) -> None:
    """Slots 33 to 39 of trees of 45: the rows that they are of an attention of all slots."""
    query, key, value, mask, _ = case(45, [7, 70], 4, 2, 16)
    expected = torch_attention(query, key, value, mask, 0.3)
    level, words = slice(33, 40), torch.arange(2, device=DEVICE)
    seen = words.expand(2, 2, 2).int().contiguous(), torch.full((2, 2), 2, device=DEVICE).int()
    sizes = (mask.sizes - 33).clamp(max=7)
    part = TreeMask(mask.bits[:, level].contiguous(), *seen, mask.lengths, sizes, mask.positions[:, level].contiguous())
    few = query[:, :, level]
    torch.testing.assert_close(torch_attention(few, key, value, part, 0.3, slots=45), expected[:, :, level])
    if triton is not None:
        found = triton_attention(few, key, value, part, 0.3, slots=45, splits=splits)
        torch.testing.assert_close(found, expected[:, :, level], rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize(("kv_heads", "nodes", "lengths"), [(8, 1000, [0, 3001]), (2, 60, [30001]), (32, 300, [129])])
def test_kernel_is_the_twin_at_full_size(dtype, kv_heads, nodes, lengths) -> None:
    query, key, value, mask, _ = case(nodes, lengths, 32, kv_heads, 128, dtype)
    found = tree_attention(query, key, value, mask)
    expected = torch_attention(*(part.double() for part in (query, key, value)), mask, 128**-0.5)
    torch.testing.assert_close(found.double(), expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])


def test_prefix_is_split_only_as_far_as_it_is_long_and_the_device_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        multi_processor_count = 132

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Device)
    device = torch.device("cuda")
    assert fill(8, prefix=100, device=device) == 1
    assert fill(8, prefix=2048, device=device) == 8
    assert fill(8, prefix=100_000, device=device) == 32  # 17 are wanted
    assert fill(132, prefix=100_000, device=device) == 1
