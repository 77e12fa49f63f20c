"""Batched trees against plain Python walks over the same nodes."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from c2t.tree import Nodes, Tree, best
from tests.rounding import assert_equal, assert_within, growth
from tests.toys import path_of


@st.composite
def trees(draw, max_rows: int = 3, max_size: int = 12) -> Tree:
    """Any parents-first trees of one batch; a slot under a dead one is dead. Tokens number the slots."""
    rows, size = draw(st.integers(1, max_rows)), draw(st.integers(1, max_size))
    parent, depth, alive = [], [], []
    for _ in range(rows):
        parents = [-1] + [draw(st.integers(0, slot - 1)) for slot in range(1, size)]
        depths, living = [-1], [True]
        for up in parents[1:]:
            depths.append(depths[up] + 1)
            living.append(living[up] and draw(st.integers(0, 3)) > 0)
        parent.append(parents)
        depth.append(depths)
        alive.append(living)
    token = torch.arange(size).expand(rows, size).contiguous()
    value = torch.zeros(rows, size)
    return Tree(
        token=token,
        parent=torch.tensor(parent),
        depth=torch.tensor(depth),
        rank=token,
        log_prob=value,
        log_joint=-torch.tensor(depth).float(),
        entropy=value,
        max_log_prob=value,
        score=value,
        alive=torch.tensor(alive),
        capped=torch.zeros(rows, dtype=torch.long),
    )


def ancestry(tree: Tree, row: int, slot: int) -> list[int]:
    line = [slot]
    while line[-1] > 0:
        line.append(int(tree.parent[row, line[-1]]))
    return line


def small_tree() -> Tree:
    """The tree of the module's docstring in row 0; another shape in row 1."""
    root = Tree.root(torch.tensor([9, 8]))
    level = Nodes(
        token=torch.tensor([[1, 2], [1, 2]]),
        parent=torch.zeros(2, 2, dtype=torch.long),
        depth=torch.zeros(2, 2, dtype=torch.long),
        rank=torch.tensor([[0, 1], [0, 1]]),
        log_prob=torch.tensor([[-0.5, -1.0], [-0.1, -3.0]]),
        log_joint=torch.tensor([[-0.5, -1.0], [-0.1, -3.0]]),
        entropy=torch.ones(2, 2),
        max_log_prob=torch.tensor([[-0.5, -0.5], [-0.1, -0.1]]),
        score=torch.zeros(2, 2),
        alive=torch.tensor([[True, True], [True, False]]),
    )
    return root.extend(level)


def test_root_is_a_tree_of_one() -> None:
    tree = Tree.root(torch.tensor([4, 7]))
    assert tree.size == 1
    assert tree.sizes.tolist() == [1, 1]
    assert tree.parent.tolist() == [[-1], [-1]]
    assert tree.depth.tolist() == [[-1], [-1]]
    assert tree.positions(torch.tensor([5, 0])).tolist() == [[5], [0]]
    assert tree.ancestors().tolist() == [[[True]], [[True]]]


def test_children_are_parent_major_and_inherit_from_their_parents() -> None:
    tree = small_tree()
    slots = torch.tensor([[2, 1], [1, 2]])
    token = torch.tensor([[[5, 6], [7, 8]], [[5, 6], [7, 8]]])
    prob = torch.tensor([[[-1.0, -2.0], [-3.0, -4.0]], [[-1.0, -2.0], [-3.0, -4.0]]])
    children = tree.children(slots, token, prob, torch.tensor([[0.3, 0.4], [0.5, 0.6]]))
    assert children.token.tolist() == [[5, 6, 7, 8]] * 2
    assert children.parent.tolist() == [[2, 2, 1, 1], [1, 1, 2, 2]]
    assert children.depth.tolist() == [[1] * 4] * 2
    assert children.rank.tolist() == [[0, 1, 0, 1]] * 2
    log_joint = torch.tensor([[-2.0, -3.0, -3.5, -4.5], [-1.1, -2.1, -6.0, -7.0]])
    assert_within(children.log_joint, log_joint, growth(3) * log_joint.abs())
    assert_equal(children.entropy[0], torch.tensor([0.3, 0.3, 0.4, 0.4]))
    assert children.alive.tolist() == [[True] * 4, [True, True, False, False]]


def test_extend_appends_and_adds_up_what_was_cut() -> None:
    tree = small_tree()
    more = tree.children(torch.tensor([[1], [1]]), torch.full((2, 1, 1), 5), torch.zeros(2, 1, 1), torch.zeros(2, 1))
    grown = tree.extend(more, torch.tensor([2, 0])).extend(more, 1)
    assert grown.size == 5
    assert grown.capped.tolist() == [3, 1]
    assert grown.token[:, :3].equal(tree.token)
    assert path_of(grown, 0, 3) == [1, 5]


@settings(max_examples=60, deadline=None)
@given(trees())
def test_mask_is_self_ancestors_and_root(tree: Tree) -> None:
    mask = tree.ancestors()
    for row in range(len(tree.token)):
        for slot in range(tree.size):
            assert mask[row, slot].nonzero()[:, 0].tolist() == sorted(ancestry(tree, row, slot))
    assert mask.sum(2).equal(tree.depth + 2)


@settings(max_examples=60, deadline=None)
@given(trees())
def test_packed_keeps_alive_nodes_in_order_with_their_paths(tree: Tree) -> None:
    packed = tree.packed()
    assert packed.size == int(tree.sizes.max())
    assert packed.sizes.equal(tree.sizes)
    for row, size in enumerate(packed.sizes.tolist()):
        alive = tree.alive[row].nonzero()[:, 0].tolist()
        assert packed.token[row, :size].tolist() == alive
        for slot in range(size):
            assert path_of(packed, row, slot) == path_of(tree, row, alive[slot])
            assert packed.parent[row, slot] < slot
        assert (packed.parent[row, 1:] >= 0).all()
    assert (packed.ancestors().sum(2) == packed.depth + 2)[packed.alive].all()


@settings(max_examples=60, deadline=None)
@given(trees(max_rows=1), st.data())
def test_select_keeps_parents(tree: Tree, data) -> None:
    kept = [0]
    for slot in range(1, tree.size):
        if int(tree.parent[0, slot]) in kept and data.draw(st.booleans()):
            kept.append(slot)
    selected = tree.select(torch.tensor([kept]))
    assert selected.token.tolist() == [kept]
    for place, slot in enumerate(kept):
        assert path_of(selected, 0, place) == path_of(tree, 0, slot)


@settings(max_examples=40, deadline=None)
@given(trees(), st.data())
def test_child_is_the_alive_child_with_that_token(tree: Tree, data) -> None:
    tree.token.copy_(torch.tensor([[data.draw(st.integers(0, 2)) for _ in range(tree.size)] for _ in tree.token]))
    slot = torch.tensor([data.draw(st.integers(0, tree.size - 1)) for _ in tree.token])
    token = torch.tensor([data.draw(st.integers(0, 2)) for _ in tree.token])
    for row, found in enumerate(tree.child(slot, token).tolist()):
        fitting = [
            node
            for node in range(1, tree.size)
            if tree.alive[row, node] and tree.parent[row, node] == slot[row] and tree.token[row, node] == token[row]
        ]
        assert found == (fitting[0] if fitting else -1)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-3, 0), st.booleans()), min_size=1, max_size=12), st.data())
def test_best_is_by_score_then_joint_then_creation(nodes: list[tuple[int, int, bool]], data) -> None:
    count = data.draw(st.integers(1, len(nodes)))
    score, joint, alive = (torch.tensor([column]) for column in zip(*nodes, strict=True))
    places = best(score.float(), joint.float(), alive, count)[0].tolist()
    living = [place for place, node in enumerate(nodes) if node[2]]
    expected = sorted(living, key=lambda place: (-nodes[place][0], -nodes[place][1], place))[:count]
    assert places[: len(expected)] == expected
    assert len(places) == count
    assert not any(nodes[place][2] for place in places[len(expected) :])


def test_positions_follow_the_committed_length() -> None:
    assert small_tree().positions(torch.tensor([10, 3])).tolist() == [[10, 11, 11], [3, 4, 4]]
