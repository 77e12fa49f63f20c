"""Depth-first order, heavy child first, against a recursive walk, and what it is for: fewer blocks of the tree mask
that are not empty (DySpec, table 5)."""

import pytest
import torch
from hypothesis import given, settings

from c2t.tree import Tree
from tests.rounding import roughly
from tests.test_tree import trees


def walk(tree: Tree, row: int) -> list[int]:
    children: dict[int, list[int]] = {slot: [] for slot in range(tree.size)}
    for slot in range(1, tree.size):
        if tree.alive[row, slot]:
            children[int(tree.parent[row, slot])].append(slot)

    def size(slot: int) -> int:
        return 1 + sum(map(size, children[slot]))

    def visit(slot: int) -> list[int]:
        return [slot, *(node for child in sorted(children[slot], key=lambda c: -size(c)) for node in visit(child))]

    return visit(0)


@settings(max_examples=80, deadline=None)
@given(trees())
def test_order_is_that_of_the_recursive_walk(tree: Tree) -> None:
    ordered = tree.heavy_first()  # tokens number the old slots
    for row in range(len(tree.token)):
        expected = walk(tree, row)
        assert ordered.token[row, : len(expected)].tolist() == expected
        assert ordered.alive[row].tolist() == [place < len(expected) for place in range(tree.size)]
        for place, slot in enumerate(expected[1:], 1):
            assert expected[int(ordered.parent[row, place])] == tree.parent[row, slot]


def random_trees(nodes: int, rows: int, seed: int = 0) -> Tree:
    """Parents uniform over the earlier nodes."""
    generator = torch.Generator().manual_seed(seed)
    tree = Tree.root(torch.zeros(rows, dtype=torch.long)).columns()
    uniform = torch.rand(rows, nodes, generator=generator)
    parent = (uniform * torch.arange(nodes)).long()
    parent[:, 0] = -1
    depth = torch.full_like(parent, -1)
    for slot in range(1, nodes):
        depth[:, slot] = depth.gather(1, parent[:, slot, None])[:, 0] + 1
    columns = {name: column.expand(rows, nodes).contiguous() for name, column in tree.items()}
    return Tree(**{**columns, "parent": parent, "depth": depth}, capped=torch.zeros(rows, dtype=torch.long))


def blocks(tree: Tree, side: int = 32) -> float:
    """Mean number of blocks of the mask that are not empty."""
    mask = tree.ancestors().unflatten(1, (-1, side)).unflatten(3, (-1, side))
    return mask.any(4).any(2).sum((1, 2)).double().mean().item()


@pytest.mark.parametrize(("nodes", "unordered", "ordered"), [(256, 36, 21), (512, 134, 51)])
@pytest.mark.slow
def test_blocks_of_random_trees_are_those_of_table_5(nodes: int, unordered: int, ordered: int) -> None:
    tree = random_trees(nodes, rows=40)
    assert blocks(tree) == roughly(unordered, 0.03)
    assert blocks(tree.heavy_first()) == roughly(ordered, 0.06)
