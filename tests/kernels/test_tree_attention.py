"""On random trees: kernel (in Triton's interpreter) and twin against attention in float64, and that against a softmax
written out."""

import pytest
import torch
from torch import Tensor

from c2t.kernels.tree_attention import Ranges, torch_attention, tree_attention, triton, triton_attention
from c2t.kernels.tree_mask import TreeMask
from c2t.tree import Tree
from pipelines.gpu.models import random_trees
from tests.rounding import NETWORK, assert_within, growth

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def case(nodes: int, lengths: list[int], heads: int, kv_heads: int, dim: int, dtype=torch.float32, gap: int = 0):
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


def written_out(query, key, value, tree: Tree, lengths: list[int], window: float) -> Tensor:
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


def exact_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: TreeMask, scale: float, window: int | None = None, chain=int
) -> tuple[Tensor, Tensor]:
    """Attention in float64, and how far one that adds in float32 may lie from it. chain(keys): roundings in the longest
    chain of additions over so many keys; any order of adding makes at most as many as there are keys.

    A score is a sum of D products: it errs by growth(D) sum |q k|. A weight errs by its score's error, and by four
    roundings, of numbers up to the largest score, for each of the blocks of 32 keys after which an online softmax
    rescales. Both shift the mean by at most weight x (|v| + |mean|). Sums over the keys add growth(chain) sum w |v| in
    numerator and denominator. Half precision rounds weights and result once more.
    """
    group, dtype = query.shape[1] // key.shape[1], query.dtype
    q, (k, v) = query.double(), (part.double().repeat_interleave(group, 1) for part in (key, value))
    keys = k.shape[2]
    seen = mask.dense(keys, window)[:, None]
    score = (q @ k.mT * scale).masked_fill(~seen, float("-inf"))
    weight = score.softmax(-1)
    out = weight @ v
    largest = score.abs().masked_fill(~seen, 0).amax(-1, keepdim=True)
    error = growth(q.shape[3] + 4) * scale * (q.abs() @ k.abs().mT) + growth(4 * (keys // 32 + 2)) * (1 + largest)
    if dtype != torch.float32:
        error = error + growth(1, dtype)
    bound = (weight * error) @ v.abs() + (weight * error).sum(-1, keepdim=True) * out.abs()
    bound = bound + growth(2 * chain(keys) + 8) * (weight @ v.abs())
    if dtype != torch.float32:
        bound = bound + growth(1, dtype) * out.abs() + torch.finfo(dtype).tiny
    padding = (torch.arange(q.shape[2], device=q.device) >= mask.sizes[:, None])[:, None, :, None]
    return out.masked_fill(padding, 0), bound.masked_fill(padding, 0)


def by_blocks(keys: int) -> int:
    """Of the kernel: up to 64 keys of a block, the blocks of a share, and up to 64 shares."""
    return min(keys, 64 + keys // 32 + 2 + 64)


@pytest.mark.parametrize("window", [None, 3])
def test_attention_is_the_softmax_over_prefix_and_ancestors(window: int | None) -> None:
    query, key, value, mask, tree = case(40, [7, 0, 4], heads=4, kv_heads=2, dim=8, gap=2)
    wide = [part.double() for part in (query, key, value)]
    expected = written_out(*(part.cpu() for part in wide), tree, [7, 0, 4], window or float("inf"))
    exact, bound = exact_attention(query, key, value, mask, 0.3, window)
    assert_within(exact.cpu(), expected, NETWORK)
    assert_within(torch_attention(*wide, mask, 0.3, window).cpu(), expected, NETWORK)
    assert_within(torch_attention(query, key, value, mask, 0.3, window), exact, bound)
    assert bound.max() < 1e-3  # of values of about 1: a key more or less would show


@pytest.mark.parametrize(
    ("nodes", "lengths", "heads", "kv_heads", "dim", "dtype", "window", "part"),
    [
        (1, [5], 1, 1, 16, torch.float32, None, 256),  # plain decoding
        (33, [0, 0], 2, 2, 16, torch.float32, None, 256),  # no prefix
        (70, [0, 131, 5], 4, 1, 16, torch.float32, None, 256),
        (40, [0, 131, 5], 2, 1, 16, torch.float32, None, 64),  # parts without a key
        (20, [77], 3, 1, 64, torch.float16, None, 32),  # a group that is no power of two
        (33, [67], 4, 4, 64, torch.bfloat16, None, 64),
        (24, [67, 130], 2, 1, 256, torch.float32, None, 256),
        (36, [0, 131, 5], 4, 2, 16, torch.float32, 3, 64),
        (36, [0, 131, 5], 2, 1, 16, torch.float32, 100, 64),
    ],
)
def test_kernel_and_twin_are_exact_up_to_rounding(nodes, lengths, heads, kv_heads, dim, dtype, window, part) -> None:
    query, key, value, mask, _ = case(nodes, lengths, heads, kv_heads, dim, dtype, gap=3)
    found = triton_attention(query, key, value, mask, 0.3, window, part=part)
    assert found.dtype == dtype
    assert_within(found, *exact_attention(query, key, value, mask, 0.3, window, chain=by_blocks), "kernel")
    wide = [part.float() for part in (query, key, value)]
    assert_within(torch_attention(*wide, mask, 0.3, window), *exact_attention(*wide, mask, 0.3, window), "twin")


@pytest.mark.parametrize("part", [32, 256])
@pytest.mark.parametrize("window", [None, 5])
def test_rows_laid_end_to_end_are_those_of_a_batch(window: int | None, part: int) -> None:
    """Rows of 40, 39 and 38 tokens behind prefixes of 7, 0 and 90, in any order in the keys' buffer; what lies between
    them is NaN."""
    lengths = [7, 0, 90]
    query, key, value, mask, tree = case(40, lengths, heads=4, kv_heads=2, dim=16)
    exact, bound = exact_attention(query, key, value, mask, 0.3, window)
    sizes, starts = mask.sizes.tolist(), [150, 3, 220]
    ends = torch.tensor(sizes).cumsum(0).tolist()
    first = [end - size for end, size in zip(ends, sizes, strict=True)]
    keys, values = torch.full((2, 1, 2, 400, 16), torch.nan, device=DEVICE)
    for row, (start, length, size) in enumerate(zip(starts, lengths, sizes, strict=True)):
        for flat, whole in ((keys, key), (values, value)):
            flat[0, :, start : start + length] = whole[row, :, :length]
            flat[0, :, start + length : start + length + size] = whole[row, :, -tree.size :][:, :size]
    queries = torch.cat([query[row : row + 1, :, :size] for row, size in enumerate(sizes)], 2)
    starts_at = torch.tensor(starts, device=DEVICE)
    ranges = Ranges(torch.tensor(first, device=DEVICE), starts_at, starts_at + torch.tensor(lengths, device=DEVICE), 90)
    found = [tree_attention(queries, keys, values, mask, 0.3, window, ranges=ranges)]
    if triton is not None:
        found.append(triton_attention(queries, keys, values, mask, 0.3, window, ranges=ranges, part=part))
    for row, (begin, size) in enumerate(zip(first, sizes, strict=True)):
        for attended in found:
            assert_within(attended[0, :, begin : begin + size], exact[row, :, :size], bound[row, :, :size])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kv_heads", "nodes", "lengths"), [(8, 1000, [0, 3001]), (2, 60, [30001]), (32, 300, [129])])
def test_kernel_is_exact_up_to_rounding_at_full_size(dtype, kv_heads, nodes, lengths) -> None:
    query, key, value, mask, _ = case(nodes, lengths, 32, kv_heads, 128, dtype)
    found = tree_attention(query, key, value, mask)
    assert_within(found, *exact_attention(query, key, value, mask, 128**-0.5, chain=by_blocks))
