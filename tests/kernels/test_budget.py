"""A budget's decision: in C as in numpy, and both by hand."""

import numpy as np
import pytest
import torch

from c2t.kernels.budget import (
    Candidates,
    Decision,
    RoundModel,
    compiled_select_nodes,
    numpy_select_nodes,
    probabilities,
)
from c2t.kernels.native import kernels
from tests.rounding import figure

IN_C = pytest.param(compiled_select_nodes, marks=pytest.mark.skipif(kernels() is None, reason="no C compiler here"))
BOTH = pytest.mark.parametrize("way", [numpy_select_nodes, IN_C])


def model(rng: np.random.Generator, tokens: int, width: int) -> RoundModel:
    """A random one, with steps in both curves."""
    verify = 1 + 0.05 * np.arange(tokens + 1) + 0.3 * (np.arange(tokens + 1) > rng.integers(2, tokens + 1))
    return RoundModel(verify, 0.1 + 0.02 * np.arange(width + 1), rng.random())


def candidates(rng: np.random.Generator, rows: int, size: int, dtype: torch.dtype) -> Candidates:
    """Trees with dead slots, and with few different probabilities, so that many are equal; alive nodes have alive
    parents. Rows are worth the same, or not."""
    parent = np.array([[-1, *(rng.integers(0, slot) for slot in range(1, size))] for _ in range(rows)])
    alive = rng.random((rows, size)) < 0.8
    alive[:, 0] = True
    for slot in range(1, size):
        alive[:, slot] &= alive[np.arange(rows), parent[:, slot]]
    with np.errstate(divide="ignore"):
        own = np.log(rng.choice([0.0, 0.1, 0.25, 0.5, 0.7, 1.0], (rows, size)))
    row_weights = rng.choice([1.0, 2.0, 3.0], rows)
    row_weights /= row_weights.mean()
    return Candidates(torch.tensor(own, dtype=dtype), torch.tensor(alive), torch.tensor(parent), row_weights.tolist())


def plain(found: Decision) -> list:
    return [each if isinstance(each, int) else each.tolist() for each in found]


@pytest.mark.skipif(kernels() is None, reason="no C compiler here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_in_c_as_in_numpy(dtype: torch.dtype) -> None:
    """With no slots to expand, too."""
    rng = np.random.default_rng(0)
    widths = set()
    for number in range(300):
        rows, size, frontier = (int(rng.integers(1, most)) for most in (5, 12, 6))
        frontier *= number > 9
        trees = candidates(rng, rows, size, dtype)
        slots = torch.tensor(rng.integers(-1, size, (rows, frontier)))
        slots = torch.where(trees.alive.gather(1, slots.clamp(min=0)), slots, -1)
        known = model(rng, rows * (size + max(frontier, 1)), rows * max(frontier, 1))
        arguments = trees, slots, known, rng.random() * 2, rng.choice([None, 0, 3])
        ours, twin = compiled_select_nodes(*arguments), numpy_select_nodes(*arguments)
        assert plain(ours) == plain(twin)
        assert frontier or (ours.width, ours.expand.shape) == (0, (rows, 0))
        widths.add(ours.width)
    assert {0, 1, 2, 5} <= widths


def one_row(way, child: float, probability: float = 0.8, draft: float = 0.1, most: int | None = None) -> Decision:
    """A root with one child. A token costs 0.5 seconds to verify, beyond 1 second of any forward."""
    known = RoundModel(1 + 0.5 * np.arange(9), np.array([0.0, draft]), child / probability)
    tree = Candidates(
        torch.tensor([[1.0, probability]]).log(), torch.ones(1, 2, dtype=torch.bool), torch.tensor([[-1, 0]]), [1.0]
    )
    return way(tree, torch.tensor([[1]]), known, 0.0, most)


@BOTH
def test_a_level_is_worth_its_forward_and_its_tokens(way) -> None:
    """1.8 tokens in 2 seconds without, 1.8 + p in 2 + 0.5 + 0.1 with it: p = 0.54."""
    assert one_row(way, 0.53).width == 0
    assert one_row(way, 0.55).width == 1
    assert one_row(way, 0.55, draft=0.2).width == 0


@BOTH
def test_a_node_is_kept_if_it_makes_the_round_faster(way) -> None:
    """1 token in 1.5 seconds without, 1 + p in 2 with it: p = 1 / 3."""
    assert one_row(way, 0.0, probability=0.32).keep.tolist() == [[True, False]]
    found = one_row(way, 0.0, probability=0.34)
    assert (found.keep.tolist(), found.order.tolist(), found.size) == ([[True, True]], [[0, 1]], 2)
    assert one_row(way, 0.0, probability=0.34, most=0).size == 1


@BOTH
def test_what_a_row_is_worth_counts(way) -> None:
    """Two rows with a child each: a token costs 0.5 seconds beyond 1 of any forward, so 2 tokens in 2 seconds without,
    and 2 + value in 2.5 with a child: it pays from a value of 0.5 on. Of the first row, which is worth 1.5, a child of
    0.4 does, and of the second one not of 0.9."""
    known = RoundModel(1 + 0.5 * np.arange(9), np.zeros(3))

    def kept(row_weights: list[float]) -> list[list[bool]]:
        own, parent = torch.tensor([[1.0, 0.4], [1.0, 0.9]]), torch.tensor([[-1, 0], [-1, 0]])
        tree = Candidates(own.log(), torch.ones(2, 2, dtype=torch.bool), parent, row_weights)
        return way(tree, parent[:, :0], known, 0.0, None).keep.tolist()

    assert kept([1.0, 1.0]) == [[True, False], [True, True]]
    assert kept([1.5, 0.5]) == [[True, True], [True, False]]


def test_no_node_is_above_its_parent() -> None:
    """A chain and a dead slot."""
    own = torch.tensor([[1.0, 0.5, 0.9, 0.2, 0.7]])
    alive = torch.tensor([[True, True, True, True, False]])
    tree = Candidates(own.log(), alive, torch.tensor([[-1, 0, 1, 2, 0]]), [1.0])
    assert probabilities(tree)[0] == figure([-1, 0.5, 0.5, 0.2, -1], 2, torch.float32)
