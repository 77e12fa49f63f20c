"""DySpec's trees against the paper's algorithms, literally: a heap that is popped node by node, and layers of draws."""

import heapq
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from c2t.errors import InputError
from c2t.policies import DySpec, DySpecThreshold
from c2t.policies.dyspec import sample_value
from c2t.policies.sampled import path_key
from c2t.protocols import Root
from c2t.sampling import gumbel
from c2t.tree import Nodes, Tree
from tests.rounding import figure
from tests.test_tree import ancestry
from tests.toys import TableDraft, path_of, random_table

VOCABULARY = 12
TEMPERATURE = 0.6
KEYS = torch.tensor([101, 202, 303])
ROOT = Root(torch.tensor([1, 2, 3]), KEYS)


class Dice:
    """The draws of one row: the same random numbers as the policy takes, in the paper's sequential form."""

    def __init__(self, logits, row: int):
        self.logits, self.row = logits, row

    def distribution(self, path: tuple[int, ...]) -> list[float]:
        return (self.logits(self.row, path) / TEMPERATURE).softmax(-1).tolist()

    def order(self, path: tuple[int, ...]) -> list[int]:
        """Tokens in the order in which they are drawn without replacement after this path."""
        tree = Tree.root(torch.tensor([0]))
        for token in path:
            one = torch.zeros(1, 1, 1)
            slot = torch.tensor([[tree.size - 1]])
            tree = tree.extend(tree.children(slot, torch.tensor([[[token]]]), one, one[0]))
        key = path_key(tree, torch.tensor([[tree.size - 1]]), KEYS[self.row, None])
        log_probs = (self.logits(self.row, path) / TEMPERATURE).log_softmax(-1)
        return (log_probs + gumbel(key[0, 0], torch.arange(VOCABULARY))).argsort(descending=True).tolist()


def algorithm_1(dice: Dice, m: int, most: int) -> dict[tuple[int, ...], float]:
    """Nodes (as paths) with the values of the heap elements that gave them."""
    tree: dict[tuple[int, ...], float] = {}
    heap = [(-1.0, 0, (), dice.distribution(()), 0)]
    pushed = 1
    while len(tree) < m and heap:
        negative, _, path, R, drawn = heapq.heappop(heap)
        value = -negative
        y = dice.order(path)[drawn]
        tree[(*path, y)] = value
        v0, v1 = value * R[y], value * (1 - R[y])
        rest = [0.0 if token == y else p for token, p in enumerate(R)]
        total = sum(rest)
        if drawn + 1 < most and total > 0:
            heapq.heappush(heap, (-v1, pushed, path, [p / total for p in rest], drawn + 1))
        heapq.heappush(heap, (-v0, pushed + 1, (*path, y), dice.distribution((*path, y)), 0))
        pushed += 2
    return tree


def algorithm_2(dice: Dice, threshold: float, most: int, levels: int) -> dict[tuple[int, ...], float]:
    tree: dict[tuple[int, ...], float] = {}
    leaves = [((), 1.0)]
    for _ in range(levels):
        grown = []
        for path, value in leaves:
            R = dice.distribution(path)
            for y in dice.order(path)[:most]:
                if value < threshold:
                    break
                tree[(*path, y)] = value
                grown.append(((*path, y), value * R[y]))
                value *= 1 - R[y]
                R = [0.0 if token == y else p for token, p in enumerate(R)]
                R = [p / sum(R) for p in R]
        leaves = grown
    return tree


def values_of(tree: Tree, row: int) -> dict[tuple[int, ...], float]:
    slots = tree.alive[row].nonzero()[1:, 0].tolist()
    return {tuple(path_of(tree, row, slot)): math.exp(tree.score[row, slot]) for slot in slots}


def siblings_in_order(tree: Tree, row: int, dice: Dice) -> None:
    for slot in tree.alive[row].nonzero()[:, 0].tolist():
        children = [i for i in range(1, tree.size) if tree.alive[row, i] and tree.parent[row, i] == slot]
        drawn = dice.order(tuple(path_of(tree, row, slot)))[: len(children)]
        ranks = {int(tree.token[row, i]): int(tree.rank[row, i]) for i in children}
        assert ranks == {token: rank for rank, token in enumerate(drawn)}


@pytest.mark.parametrize(("m", "most", "spread"), [(12, 12, 2.0), (15, 4, 1.0), (9, 2, 0.3), (8, 6, 5.0), (1, 3, 1.0)])
def test_greedy_tree_is_that_of_algorithm_1(m: int, most: int, spread: float) -> None:
    logits = random_table(VOCABULARY, seed=m, spread=spread)
    draft = TableDraft(logits)
    tree = DySpec(N=m + 1, K=most)(draft, ROOT)
    for row in range(3):
        dice = Dice(logits, row)
        assert values_of(tree, row) == figure(algorithm_1(dice, m, most))
        siblings_in_order(tree, row, dice)
    assert len(draft.expanded) <= m  # the paper makes a forward for every node


@pytest.mark.parametrize(
    ("threshold", "most", "levels", "spread"), [(0.05, 12, 8, 2.0), (0.1, 3, 8, 1.0), (0.02, 4, 2, 1.5)]
)
def test_threshold_tree_is_that_of_algorithm_2(threshold: float, most: int, levels: int, spread: float) -> None:
    logits = random_table(VOCABULARY, seed=levels, spread=spread)
    tree = DySpecThreshold(threshold, most, levels, max_width=1000)(TableDraft(logits), ROOT)
    for row in range(3):
        dice = Dice(logits, row)
        assert values_of(tree, row) == figure(algorithm_2(dice, threshold, most, levels))
        siblings_in_order(tree, row, dice)
    assert not tree.capped.any()


def test_a_level_that_is_cut_keeps_the_draws_of_highest_value_and_says_so() -> None:
    logits = random_table(VOCABULARY, spread=1.0)
    wide, narrow = (DySpecThreshold(0.02, 8, 3, max_width=w)(TableDraft(logits), ROOT) for w in (1000, 4))
    for row in range(3):
        first = sorted(values_of(wide, row).items(), key=lambda node: (len(node[0]), -node[1]))[:4]
        kept = [path for path in values_of(narrow, row) if len(path) == 1]
        assert sorted(kept) == sorted(path for path, _ in first)
        assert narrow.capped[row] > 0


def test_distributions_of_the_tree_are_those_drawn_from() -> None:
    logits = random_table(VOCABULARY, seed=4)
    tree = DySpec(N=14, K=4)(TableDraft(logits), ROOT)
    for row in range(3):
        for slot in tree.alive[row].nonzero()[:, 0].tolist():
            if (tree.parent[row] == slot).any():
                expected = Dice(logits, row).distribution(tuple(path_of(tree, row, slot)))
                stored = tree.proposals.log_probs[row, tree.proposals.row[row, slot]].exp().tolist()
                assert stored == figure(expected)


def test_nodes_stand_depth_first_and_heavy_children_first() -> None:
    tree = DySpec(N=16, K=6)(TableDraft(random_table(VOCABULARY, spread=1.0)), ROOT)
    for row in range(3):
        slots = tree.alive[row].nonzero()[:, 0].tolist()
        weight = {slot: sum(slot in ancestry(tree, row, other) for other in slots) for slot in slots}

        def walk(slot: int, weight=weight, row=row) -> list[int]:
            children = [i for i in weight if i and tree.parent[row, i] == slot]
            return [slot, *(node for child in sorted(children, key=lambda i: -weight[i]) for node in walk(child))]

        assert [weight[slot] for slot in walk(0)] == [weight[slot] for slot in slots]
        assert all(tree.parent[row, b] == a or weight[a] == 1 for a, b in pairwise(slots))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-80.0, 0.0, width=32), min_size=2, max_size=8), st.floats(0.0, 4.0))
def test_values_fall_along_siblings_and_are_never_below_a_childs(logits: list[float], sharp: float) -> None:
    """In float32, where 1 minus a sum of probabilities is not the sum of the others."""
    own = (torch.tensor(logits) * sharp).log_softmax(-1)
    tree, columns = Tree.root(torch.tensor([0])), torch.arange(len(own))[None]
    children = tree.children(torch.tensor([[0]]), columns[None], own[None, None], torch.zeros(1, 1))
    value = sample_value(Nodes(**children.columns()), tree, len(own))[0]
    assert (value[1:] <= value[:-1]).all()
    assert (value >= children.log_joint[0]).all()
    assert value[0] == 0


@pytest.mark.parametrize("settings_", [{"N": 0}, {"K": 0}, {"passes": 0}, {"temperature": 0.0}])
def test_wrong_settings_of_the_greedy_tree_are_refused(settings_: dict) -> None:
    with pytest.raises(InputError, match=next(iter(settings_))):
        DySpec(**settings_)


@pytest.mark.parametrize(
    "settings_", [{"threshold": 0.0}, {"threshold": 1.5}, {"K": 0}, {"levels": 0}, {"max_width": 0}]
)
def test_wrong_settings_of_the_threshold_tree_are_refused(settings_: dict) -> None:
    with pytest.raises(InputError, match=next(iter(settings_))):
        DySpecThreshold(**settings_)
