"""The greedy walk in C against the same walk in torch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from c2t.errors import InputError
from c2t.kernels import greedy
from c2t.ragged import Ragged, SlotLogits
from c2t.target_sampler import accept_greedily
from c2t.tree import Tree
from tests.test_tree import trees

pytestmark = pytest.mark.skipif(greedy.compiled() is None, reason="no C compiler here, or C2T_MARCH=off")


@settings(max_examples=80, deadline=None)
@given(trees(), st.integers(1, 3000), st.integers(0, 2**31))
def test_paths_are_those_of_torch(tree: Tree, vocabulary: int, seed: int) -> None:
    """Few different logits, so that equal ones are common, and few tokens, so that paths are long."""
    random = torch.Generator().manual_seed(seed)
    rows = Ragged.of(tree.alive)
    logits = torch.randint(-2, 3, (len(rows.row), vocabulary), generator=random).float()
    logits[:, : vocabulary // 2] -= 9  # the first of the largest is anywhere
    tree.token.copy_(torch.randint(0, 2, tree.token.shape, generator=random) + vocabulary // 2)
    whole = SlotLogits(logits, rows.place)
    wide = SlotLogits(logits.double(), rows.place)  # which torch walks along
    assert greedy.serves(whole.values)
    assert not greedy.serves(wide.values)
    found, expected = accept_greedily(tree, whole), accept_greedily(tree, wide)
    for mine, theirs in zip(found[:3], expected[:3], strict=True):
        assert mine.equal(theirs)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("vocabulary", [3, 40, 5000])
def test_only_logits_on_the_way_must_be_finite(broken: float, vocabulary: int) -> None:
    """The walk is from the root to slot 2; slot 1 is a child that the target does not take."""
    children = torch.tensor([[[0, 1]]]), torch.zeros(1, 1, 2), torch.zeros(1, 1)
    tree = Tree.root(torch.tensor([5]))
    tree = tree.extend(tree.children(torch.tensor([[0]]), *children))
    logits = torch.zeros(3, vocabulary)
    logits[0, 1] = 1.0
    for slot in range(3):
        one = logits.clone()
        if broken == -math.inf:
            one[slot] = broken
        else:
            one[slot, -1] = broken
        verified = SlotLogits(one, torch.arange(3)[None])
        if slot == 1:
            assert accept_greedily(tree, verified).slots.tolist() == [[0, 2]]
        else:
            with pytest.raises(InputError, match="NaN or infinity"):
                accept_greedily(tree, verified)
