"""All ways to attend that take a mask give the same."""

import json
from pathlib import Path

import pytest
import torch

from pipelines.bench import attention
from tests.rounding import assert_within, growth


def test_the_ways_agree() -> None:
    ways = attention.ways()
    expected = ways["eager, row by row"]()
    for name in ("sdpa, row by row", "sdpa, padded", "eager, padded"):
        for row, (size, own) in enumerate(zip(attention.SIZES, expected, strict=True)):
            found = ways[name]()[row][..., :size, :]
            assert_within(found.view_as(own[0]), own[0], 2 * growth(5 * own[0].shape[-2] + own[0].shape[-1]))


def test_nested_tensors_take_no_mask() -> None:
    """So that the page is right; where torch has learned it, time it with a mask."""
    whole = torch.nested.nested_tensor([torch.ones(2, 1, 4), torch.ones(3, 1, 4)], layout=torch.jagged).transpose(1, 2)
    with pytest.raises(ValueError, match="Masks are not yet supported"):
        torch.nn.functional.scaled_dot_product_attention(whole, whole, whole, attn_mask=torch.ones(2, 1, 3, 3).bool())


def test_the_command_times_each_way(tmp_path: Path) -> None:
    attention.main(repeats=1, json=tmp_path / "lines.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert [line["figures"]["way"] for line in lines] == list(attention.ways())
    assert all(line["figures"]["milliseconds"] > 0 for line in lines)
