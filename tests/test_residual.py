"""The residual rule against a loop over one tree at a time, and where arithmetic is at its limit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from c2t.errors import InputError
from c2t.policies import MCSD, Eagle2, SpecInfer
from c2t.protocols import Root
from c2t.tree import Tree
from c2t.verify import residual
from tests.toys import TableDraft, random_table, root_of

VOCABULARY = 6


def invert(distribution: list[float], point: float) -> int:
    total, threshold = 0.0, point * sum(distribution)
    for token, p in enumerate(distribution):
        total += p
        if total > threshold:
            return token
    return VOCABULARY - 1


def plain(tree: Tree, row: int, target, uniform) -> tuple[list[int], int]:
    """Accepted slots and bonus token. SpecInfer's and DySpec's loops, as in their papers."""
    path = [0]
    while True:
        node = path[-1]
        R = target(row, node)
        number = int(tree.proposals.row[row, node])
        D = tree.proposals.log_probs[row, number].exp().tolist() if number >= 0 else []
        offers = [
            s for s in range(1, tree.size) if number >= 0 and tree.parent[row, s] == node and tree.rank[row, s] >= 0
        ]
        for draw, slot in enumerate(sorted(offers, key=lambda s: int(tree.rank[row, s])), 1):
            y = int(tree.token[row, slot])
            if uniform(row, node, draw) < R[y] / D[y]:
                alive = [s for s in offers if tree.alive[row, s] and tree.token[row, s] == y]
                path.append(alive[0])
                break
            R = [max(r - d, 0.0) for r, d in zip(R, D, strict=True)]
            R = [r / sum(R) for r in R]
            if not tree.proposals.independent:
                D[y] = 0.0
                D = [d / sum(D) for d in D] if sum(D) else D
        else:
            return path, invert(R, uniform(row, node, 0))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([MCSD((3, 2, 1)), SpecInfer((3, 2, 2)), SpecInfer((1, 3)), MCSD((6, 6))]))
def test_paths_and_bonus_tokens_are_those_of_the_loop(seed: int, policy) -> None:
    table, other = random_table(VOCABULARY, seed), random_table(VOCABULARY, seed + 1, spread=1.0)
    root = Root(torch.tensor([1, 2, 3, 4]), torch.tensor([seed, seed + 1, seed + 2, seed + 3]))
    tree = policy(TableDraft(lambda row, path: table(row, path)), root)
    generator = torch.Generator().manual_seed(seed)
    dice = torch.rand(4, tree.size, 8, generator=generator, dtype=torch.float64)
    probs = torch.stack(
        [torch.stack([other(row, (slot,)).softmax(-1) for slot in range(tree.size)]) for row in range(4)]
    )
    every = torch.arange(4)
    accepted = residual(tree, lambda slots: probs[every, slots], lambda slots, draw: dice[every, slots, draw])
    for row in range(4):
        target = lambda r, slot: probs[r, slot].tolist()  # noqa: E731
        path, bonus = plain(tree, row, target, lambda r, slot, draw: dice[r, slot, draw].item())
        assert accepted.slots[row, : len(path)].tolist() == path
        assert accepted.length[row] == len(path) - 1
        assert accepted.bonus[row] == bonus


def one_level(draft: torch.Tensor, k: int, rows: int = 64) -> Tree:
    root = Root(torch.zeros(rows, dtype=torch.long), torch.arange(rows))
    return MCSD((k,))(TableDraft(lambda row, path: draft), root)


@pytest.mark.parametrize("shift", [0.0, 1e-7, 3e-7])
def test_a_draft_that_is_the_target_up_to_rounding_never_leaves_an_impossible_token(shift: float) -> None:
    """Even the unluckiest dice reject nothing, or leave what the target itself may draw."""
    logits = torch.tensor([1.0, 2.0, 0.5, float("-inf")])
    target = logits.double().softmax(-1)
    tree = one_level(logits + shift, 1)
    unlucky = torch.full((64,), 1 - 2.0**-53, dtype=torch.float64)
    accepted = residual(tree, lambda slots: target.expand(64, -1), lambda slots, draw: unlucky)
    tokens = torch.where(accepted.length > 0, tree.token[:, 1], accepted.bonus)
    assert (target[tokens] > 0).all()


def test_everything_may_be_rejected() -> None:
    """The target likes only what the draft hardly ever draws; all of its own tokens are then offered and refused."""
    logits = torch.tensor([0.0, 0.0, 0.0, -500.0])
    target = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    half = torch.full((64,), 0.5, dtype=torch.float64)
    tree = one_level(logits, 3)
    accepted = residual(tree, lambda slots: target.expand(64, -1), lambda slots, draw: half)
    assert accepted.length.tolist() == [0] * 64
    assert accepted.bonus.tolist() == [3] * 64
    every = one_level(logits, 4)
    accepted = residual(every, lambda slots: target.expand(64, -1), lambda slots, draw: half)
    assert accepted.length.tolist() == [1] * 64
    assert every.token.gather(1, accepted.slots[:, 1:]).tolist() == [[3]] * 64


def test_a_ranked_tree_is_refused() -> None:
    tree = Eagle2(2, 2, None)(TableDraft(random_table(VOCABULARY)), root_of(1))
    with pytest.raises(InputError, match="needs a tree of sampled candidates"):
        residual(tree, lambda slots: torch.ones(1, VOCABULARY).double(), lambda slots, draw: torch.zeros(1).double())
