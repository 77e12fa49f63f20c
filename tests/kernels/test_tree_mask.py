"""Masks by the kernel, in Triton's interpreter where there is no GPU, against the twin's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from c2t.kernels.tree_mask import torch_mask, triton, triton_mask

pytestmark = pytest.mark.skipif(triton is None, reason="triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 3), st.integers(1, 140), st.booleans(), st.integers(0, 2**31))
def test_masks_are_the_twins(rows: int, slots: int, deep: bool, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    parent = torch.full((rows, slots), -1)
    for slot in range(1, slots):
        parent[:, slot] = torch.randint(max(0, slot - 3) if deep else 0, slot, (rows,), generator=random)
    alive = torch.rand(rows, slots, generator=random) > 0.3
    depth = torch.full_like(parent, 0)
    for slot in range(1, slots):
        depth[:, slot] = depth.gather(1, parent[:, slot, None])[:, 0] + 1
    lengths = torch.randint(0, 50, (rows,), generator=random)
    first = int(torch.randint(0, slots, (1,), generator=random))  # of the slots that are asked for
    positions = lengths[:, None] + depth[:, first:]
    tree = parent, alive[:, first:], positions, lengths, torch.tensor(first)
    expected = torch_mask(*tree)
    found = triton_mask(*(column.to(DEVICE) for column in tree))
    found = found._replace(**{name: column.cpu() for name, column in found._asdict().items()})
    for name in ("lengths", "sizes", "positions"):
        assert getattr(found, name).equal(getattr(expected, name)), name
    listed = torch.arange(slots) <= depth[:, first:, None]  # what stands behind is not read
    assert found.path[listed].equal(expected.path[listed])
    ancestors = torch.eye(slots, dtype=torch.bool).repeat(rows, 1, 1)
    for slot in range(1, slots):
        ancestors[:, slot] |= ancestors[torch.arange(rows), parent[:, slot]]
    assert expected.dense(slots).equal(ancestors[:, first:])
