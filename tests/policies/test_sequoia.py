"""Sequoia's dynamic programme against all trees of a size, and the tree that it shapes."""

import pytest
import torch

from c2t.errors import InputError
from c2t.policies import Sequoia
from c2t.policies.sequoia import best_shape
from c2t.protocols import Root
from tests.rounding import figure
from tests.toys import TableDraft, path_of, random_table

RATES = [(0.6, 0.2, 0.1), (0.4, 0.3, 0.2, 0.1), (0.9,), (0.5, 0.0, 0.0), (0.0, 0.0), (0.3, 0.35, 0.05)]


def worth(rates: tuple[float, ...], paths) -> float:
    """Expected number of tokens a round, the root counted."""
    total = 1.0
    for path in paths:
        product = 1.0
        for rank in path:
            product *= rates[rank]
        total += product
    return total


def all_trees(nodes: int, children: int, levels: int):
    """Every shape of `nodes` tokens whose siblings have the ranks 0, 1, ..., as sets of paths."""
    shapes = {frozenset()}
    for _ in range(nodes - 1):
        grown = set()
        for shape in shapes:
            for parent in [(), *shape]:
                rank = sum(path[:-1] == parent and len(path) == len(parent) + 1 for path in shape)
                if rank < children and len(parent) < levels:
                    grown.add(shape | {(*parent, rank)})
        shapes = grown or shapes
    return shapes


@pytest.mark.parametrize("levels", [1, 2, 4])
@pytest.mark.parametrize("size", [1, 2, 4, 7])
@pytest.mark.parametrize("rates", RATES, ids=str)
def test_no_tree_of_that_size_is_worth_more(rates: tuple[float, ...], size: int, levels: int) -> None:
    paths = best_shape(rates, size, levels)
    shapes = all_trees(size, len(rates), levels)
    assert frozenset(paths) in shapes
    assert worth(rates, paths) == figure(max(worth(rates, shape) for shape in shapes))


def test_the_tree_has_the_shape_and_distinct_siblings() -> None:
    rates = (0.5, 0.25, 0.1, 0.05)
    policy = Sequoia(rates, N=20, levels=5)
    draft = TableDraft(random_table(12))
    tree = policy(draft, Root(torch.tensor([1, 2]), torch.tensor([5, 6])))
    shape = best_shape(rates, 20, 5)
    for row in range(2):
        ranks = {0: ()}
        for slot in range(1, tree.size):
            ranks[slot] = (*ranks[int(tree.parent[row, slot])], int(tree.rank[row, slot]))
        assert sorted(path for slot, path in ranks.items() if slot) == sorted(shape)
        assert len({tuple(path_of(tree, row, slot)) for slot in range(tree.size)}) == 20
    assert len(draft.expanded) == max(map(len, shape))
    assert tree.token[0].tolist() != tree.token[1].tolist()


@pytest.mark.parametrize("rates", [(), (0.5, -0.1), (0.7, 0.6)], ids=str)
def test_rates_that_are_none_are_refused(rates: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="acceptance rates"):
        Sequoia(rates)


def test_more_siblings_than_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="5 samples without replacement from the draft's 4 tokens"):
        Sequoia((0.2,) * 5, N=6, levels=1)(TableDraft(random_table(4)), Root(torch.tensor([1]), torch.tensor([1])))
