"""Attention of one level: kernel (in Triton's interpreter) and twin against attention in float64."""

from types import SimpleNamespace

import pytest
import torch

from c2t.kernels.level_attention import LevelMask, ancestor_bits, fill, torch_attention, triton, triton_attention
from pipelines.gpu.models import random_trees
from tests.kernels.test_tree_attention import DEVICE, by_blocks, case, exact_attention
from tests.rounding import assert_within


def level_of(mask, tree, level: slice) -> LevelMask:
    """Return what some slots of trees see."""
    bits = ancestor_bits(tree.parent).to(DEVICE)[:, level].contiguous()
    return LevelMask(bits, mask.lengths, (mask.sizes - level.start).clamp(0, level.stop - level.start))


def test_bits_are_the_ancestors() -> None:
    tree = random_trees(100, 3, seed=1)
    bits = ancestor_bits(tree.parent)
    slot = torch.arange(100)
    assert bits.dtype == torch.int32
    assert (bits[:, :, slot // 32] >> (slot % 32) & 1).bool().equal(tree.ancestors())


@pytest.mark.parametrize(
    ("nodes", "lengths", "heads", "kv_heads", "dim", "dtype", "splits"),
    [
        (1, [5], 1, 1, 16, torch.float32, 1),
        (33, [0, 0], 2, 2, 16, torch.float32, 1),  # no prefix
        (70, [0, 131, 5], 4, 1, 16, torch.float32, 1),
        (40, [0, 131, 5], 2, 1, 16, torch.float32, 4),  # shares without a key
        (20, [77], 3, 1, 64, torch.float16, 2),  # a group that is no power of two
        (33, [67], 4, 4, 64, torch.bfloat16, 2),
        (24, [67, 130], 2, 1, 256, torch.float32, 1),
    ],
)
def test_kernel_and_twin_are_exact_up_to_rounding(nodes, lengths, heads, kv_heads, dim, dtype, splits) -> None:
    query, key, value, mask, tree = case(nodes, lengths, heads, kv_heads, dim, dtype, gap=3)
    level = level_of(mask, tree, slice(0, nodes))
    found = triton_attention(query, key, value, level, 0.3, nodes, splits=splits)
    assert found.dtype == dtype
    assert_within(found, *exact_attention(query, key, value, mask, 0.3, chain=by_blocks), "kernel")
    wide = [part.float() for part in (query, key, value)]
    assert_within(torch_attention(*wide, level, 0.3, nodes), *exact_attention(*wide, mask, 0.3), "twin")


@pytest.mark.parametrize("splits", [1, 2])
def test_a_level_asks_for_itself_only(splits: int) -> None:
    """Slots 33 to 39 of trees of 45: the rows that they are of an attention of all slots."""
    query, key, value, mask, tree = case(45, [7, 70], 4, 2, 16)
    exact, bound = exact_attention(query, key, value, mask, 0.3)
    level = slice(33, 40)
    few, part = query[:, :, level], level_of(mask, tree, level)
    expected = exact[:, :, level], bound[:, :, level]
    assert_within(torch_attention(few, key, value, part, 0.3, 45), *expected)
    if triton is not None:
        assert_within(triton_attention(few, key, value, part, 0.3, 45, splits=splits), *expected)


def test_prefix_is_split_only_as_far_as_it_is_long_and_the_device_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    for programs, prefix, parts in ((8, 100, 1), (8, 2048, 8), (8, 100_000, 32), (132, 100_000, 1)):
        assert fill(programs, prefix, torch.device("cuda")) == parts
