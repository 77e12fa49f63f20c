"""EAGLE-1's published tree, written out here a second time."""

import torch

from c2t.policies import Eagle1
from c2t.policies.static import EAGLE1, grow_paths
from tests.policies.plain_trees import ROOT, paths_of, ranked, tables
from tests.toys import TableDraft

# Spec-Bench's mc_sim_7b_63, one digit a rank.
PUBLISHED = "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"


def test_the_paths_are_the_published_ones() -> None:
    assert [tuple(map(int, word)) for word in PUBLISHED.split()] == EAGLE1
    assert len(EAGLE1) == 25
    assert [sum(len(path) == length for path in EAGLE1) for length in range(1, 6)] == [4, 8, 8, 3, 2]


def test_nodes_are_those_ranks_in_that_order_in_five_passes() -> None:
    logits, policy = tables(0), Eagle1()
    draft = TableDraft(logits)
    tree = policy(draft, ROOT)
    assert tree.sizes.tolist() == [26] * 3
    for row in range(3):
        expected = []
        for ranks in EAGLE1:
            path = ()
            for rank in ranks:
                path = (*path, ranked(logits, row, path)[rank][1])
            expected.append(path)
        assert paths_of(tree, row) == expected
    assert [slots.shape[1] for slots in draft.expanded] == [1, 4, 4, 1, 1]
    assert policy.levels == 5


def test_any_set_of_paths_can_be_grown() -> None:
    draft = TableDraft(tables(1))

    def ranks_as_tokens(tree, frontier, width):
        token = torch.arange(width).expand(*frontier.shape, -1)
        return tree, tree.children(frontier, token, token * -1.0, torch.zeros(frontier.shape))

    paths = [(1,), (0,), (1, 2), (1, 0), (0, 1), (0, 0), (1, 2, 0)]
    tree = grow_paths(ROOT, paths, ranks_as_tokens)
    assert paths_of(tree, 0) == sorted(paths, key=lambda path: (len(path), path))
    assert draft.expanded == []
