"""Entries of a draft's round: the functions in C against those in torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from c2t.kernels import entries
from c2t.kernels.entries import Columns, Entries
from c2t.kernels.native import kernels
from c2t.tree import Tree
from tests.rounding import assert_equal_fields
from tests.test_tree import trees

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")

H = 5


@settings(max_examples=60, deadline=None)
@given(trees(), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 2**31))
def test_levels_below_the_root(tree: Tree, widths: list[int], seed: int) -> None:
    """Any slots, in any order, level after level; some rows have fewer."""
    random = torch.Generator().manual_seed(seed)
    rows, columns = len(tree.token), Columns(tree.token, tree.parent, tree.depth, tree.alive)
    lengths = torch.randint(1, 7, (rows,), generator=random)
    seen = torch.arange(int(lengths.max())) < lengths[:, None]
    known = Entries(torch.zeros(rows, 1, dtype=torch.long), seen[:, None])
    hidden = torch.randn(rows, 1, H, generator=random)
    for width in widths:
        slots = torch.randint(-1, tree.size, (rows, width), generator=random)
        found, level = entries.descend(known, hidden, columns, slots, lengths)
        wide, wide_level = entries.descend(known, hidden.double(), columns, slots, lengths)
        assert_equal_fields(found, wide)
        assert_equal_fields(level, wide_level._replace(features=wide_level.features.float()))
        known, hidden = found, torch.cat([hidden, torch.randn(rows, width, H, generator=random)], 1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5)), min_size=1, max_size=4), st.integers(0, 3), st.booleans()
)
def test_text_behind_prefixes(rows: list[tuple[int, int]], room: int, longer: bool) -> None:
    """Rows of different prefixes and lengths; the prefixes' places may be more than the longest row has."""
    lengths, count = torch.tensor(rows).unbind(1)
    prefix, steps = int(lengths.max()) + room, int(count.max()) + longer
    found = entries.follow(lengths, prefix, count, steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries, "kernels", lambda: None)
        expected = entries.follow(lengths, prefix, count, steps)
    assert_equal_fields(found, expected)
    assert found.real == sum(each for _, each in rows)


def test_a_slot_outside_is_refused() -> None:
    tree = Tree.root(torch.tensor([3, 4]))
    columns = Columns(tree.token, tree.parent, tree.depth, tree.alive)
    known = Entries(torch.zeros(2, 1, dtype=torch.long), torch.ones(2, 1, 2, dtype=torch.bool))
    with pytest.raises(IndexError, match="outside"):
        entries.descend(known, torch.zeros(2, 1, H), columns, torch.tensor([[0], [1]]), torch.tensor([2, 2]))


def test_a_prefix_longer_than_its_keys_is_refused() -> None:
    with pytest.raises(IndexError, match="longer than the 3 keys"):
        entries.follow(torch.tensor([2, 4]), 3, torch.tensor([1, 1]), 1)
