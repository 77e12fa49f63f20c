"""The walk along the target's choices against a plain loop over one tree at a time."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from c2t.tree import Tree
from c2t.verify import target_only
from tests.test_tree import trees


def walk(tree: Tree, row: int, choices: list[int]) -> tuple[list[int], int]:
    path = [0]
    while True:
        wanted = choices[path[-1]]
        children = [
            node
            for node in range(1, tree.size)
            if tree.parent[row, node] == path[-1] and tree.token[row, node] == wanted and tree.alive[row, node]
        ]
        if not children:
            return path, wanted
        path.append(children[0])


@settings(max_examples=80, deadline=None)
@given(trees(), st.data())
def test_path_and_bonus_of_every_row(tree: Tree, data) -> None:
    tree.token.remainder_(3)  # few tokens, so that paths are long
    choices = torch.tensor([[data.draw(st.integers(0, 3)) for _ in range(tree.size)] for _ in tree.token])
    asked: list[tuple[int, int]] = []

    def choose(rows, slots):
        asked.extend(zip(rows.tolist(), slots.tolist(), strict=True))
        return choices[rows, slots]

    accepted = target_only(tree, choose)
    paths = []
    for row in range(len(tree.token)):
        path, bonus = walk(tree, row, choices[row].tolist())
        paths.append(path)
        assert accepted.slots[row, : len(path)].tolist() == path
        assert (accepted.slots[row, len(path) :] == -1).all()
        assert accepted.length[row] == len(path) - 1
        assert accepted.bonus[row] == bonus
    assert accepted.slots.shape[1] == max(map(len, paths))
    # Asked once for each node of the path, and for no other.
    for row, path in enumerate(paths):
        assert [slot for its, slot in asked if its == row] == path


def test_root_alone_yields_the_bonus_token() -> None:
    accepted = target_only(Tree.root(torch.tensor([3, 4])), lambda rows, slots: torch.tensor([8, 9]))
    assert accepted.slots.tolist() == [[0], [0]]
    assert accepted.length.tolist() == [0, 0]
    assert accepted.bonus.tolist() == [8, 9]
