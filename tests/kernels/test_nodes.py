"""What trees do with all columns at once: the functions in C against those in torch."""

import math
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from c2t.kernels import nodes
from c2t.kernels.native import kernels
from c2t.kernels.nodes import Blocks
from c2t.policies.limits import MOST_CANDIDATES
from c2t.tree import Nodes, Tree
from tests.rounding import assert_equal_fields
from tests.test_tree import trees

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")


def both(function, *blocks: Blocks | torch.Tensor, **named) -> tuple[Blocks, Blocks]:
    """Return what C finds, and what torch finds (which has float64 to itself), in float32."""
    wide = [each._replace(real=each.real.double()) if isinstance(each, Blocks) else each for each in blocks]
    found, expected = function(*blocks, **named), function(*wide, **named)
    return found, expected._replace(real=expected.real.float())


def filled(tree: Tree, random: torch.Generator) -> Blocks:
    """Return the tree's columns with any numbers in those that are not its shape."""
    blocks = tree.blocks
    real = torch.randn(blocks.real.shape, generator=random)
    return blocks._replace(real=real, score=torch.randn(blocks.score.shape, generator=random))


@settings(max_examples=60, deadline=None)
@given(trees(), st.integers(0, 20), st.integers(0, 2**31))
def test_take_and_join(tree: Tree, count: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    blocks = filled(tree, random)
    index = torch.randint(0, tree.size, (len(tree.token), count), generator=random)
    taken, expected = both(nodes.take, blocks, index)
    assert_equal_fields(taken, expected)
    assert_equal_fields(*both(nodes.join, blocks, taken))
    order = torch.cat(
        [torch.zeros(len(index), 1, dtype=torch.long), torch.rand(len(index), tree.size - 1).argsort(1) + 1], 1
    )
    assert_equal_fields(*both(nodes.take, blocks, order, renumber=True))


@settings(max_examples=60, deadline=None)
@given(trees(), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**31))
def test_children(tree: Tree, F: int, K: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    rows = len(tree.token)
    slots = torch.randint(-1, tree.size, (rows, F), generator=random)
    token = torch.randint(0, 99, (rows, F, K), generator=random)
    log_prob = torch.randint(-8, 0, (rows, F, K), generator=random).float() / 4  # sums are exact
    log_prob[torch.rand(log_prob.shape, generator=random) < 0.1] = math.nan
    entropy = torch.randn(rows, F, generator=random)
    blocks = tree.blocks
    found = nodes.children(blocks, slots, token, log_prob, entropy)
    expected = nodes.children(blocks._replace(real=blocks.real.double()), slots, token, log_prob, entropy)
    assert found.score is expected.score is None
    assert_equal_fields(found, expected._replace(real=expected.real.float()))


def test_places_outside_are_refused() -> None:
    blocks = Tree.root(torch.tensor([3, 4])).blocks
    for place in (-1, 1):
        with pytest.raises(IndexError, match="outside"):
            nodes.take(blocks, torch.tensor([[0], [place]]))
    with pytest.raises(IndexError, match="outside"):
        nodes.children(
            blocks, torch.ones(2, 1).long(), torch.zeros(2, 1, 3).long(), torch.zeros(2, 1, 3), torch.zeros(2, 1)
        )


def test_as_many_candidates_as_a_policy_may_have_are_renumbered() -> None:
    """They are more than a thread's stack holds."""
    blocks = Nodes.of(Tree.root(torch.tensor([3])).blocks).take(torch.zeros(1, MOST_CANDIDATES // 4).long()).blocks
    blocks.whole[1, 0, 1:] = 0
    index = torch.tensor([[0, 5, MOST_CANDIDATES // 4 - 1]])
    assert nodes.take(blocks, index, renumber=True).whole[1].tolist() == [[-1, 0, 0]]


def in_torch(function, *arguments):
    with mock.patch.object(nodes, "kernels", return_value=None):
        return function(*arguments)


@settings(max_examples=60, deadline=None)
@given(trees())
def test_ancestors(tree: Tree) -> None:
    assert nodes.ancestors(tree.parent, tree.depth).equal(in_torch(nodes.ancestors, tree.parent, tree.depth))


def levels_of(random: torch.Generator, rows: int, n: int) -> Blocks:
    """Return candidates with few different numbers, so that many are equal; some impossible, some dead."""
    real = torch.randint(-3, 1, (4, rows, n), generator=random).float()
    real[torch.rand(real.shape, generator=random) < 0.1] = -math.inf
    alive = torch.rand(rows, n, generator=random) < 0.8
    return Blocks(torch.zeros(4, rows, n, dtype=torch.long), real, real[1], alive)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 3), st.integers(0, 9), st.integers(0, 12), st.integers(0, 2**31))
def test_best(rows: int, n: int, count: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    blocks = levels_of(random, rows, n)
    for second in (None, blocks.real[1]):
        found = nodes.best(blocks.real[0], second, blocks.alive, count)
        wide = None if second is None else second.double()
        assert found.equal(nodes.best(blocks.real[0].double(), wide, blocks.alive, count))


@settings(max_examples=100, deadline=None)
@given(
    *(st.integers(1, 3), st.integers(0, 9), st.integers(1, 6), st.integers(1, 12), st.booleans(), st.booleans()),
    *(st.booleans(), st.integers(0, 2**31)),
)
def test_admit(rows: int, n: int, width: int, most: int, strict: bool, by_joint: bool, some: bool, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    blocks = levels_of(random, rows, n)
    score = blocks.real[1] if by_joint else blocks.real[0]
    joins = torch.rand(rows, n, generator=random) < 0.7
    expand = torch.rand(rows, n, generator=random) < 0.5 if some else None
    grown = torch.rand(rows, 4, generator=random) < 0.5
    grown &= grown.cumsum(1) <= most  # no tree is larger than it may be
    given = blocks, score, joins, expand, grown, nodes.Limits(width, most, strict)
    found, expected = nodes.admit(*given), in_torch(nodes.admit, *given)
    assert_equal_fields(found, expected)
