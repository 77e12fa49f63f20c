"""EAGLE-2's tree against upstream's steps in plain Python, and its connectedness where upstream loses it."""

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from c2t.errors import InputError
from c2t.policies import Eagle2
from c2t.tree import Tree
from tests.rounding import entropy_bound, growth, log_prob_bound, within
from tests.toys import TableDraft, path_of, random_table, root_of

VOCABULARY = 20


def upstream(log_probs: Callable[[tuple[int, ...]], list[float]], K: int, levels: int, N: int | None):
    """Upstream's construction for one tree: (tokens, parents, mask, positions), the root in place 0 as token -1."""

    def top(path: tuple[int, ...]) -> list[tuple[float, int]]:
        return sorted(((p, token) for token, p in enumerate(log_probs(path))), reverse=True)[:K]

    # A candidate: cumulative score, path, flat index of the beam node that generated it.
    pool = [(score, (token,), None) for score, token in top(())]
    beam = list(range(K))
    for _ in range(levels - 1):
        first = len(pool)
        for index in beam:
            score, path, _ = pool[index]
            pool += [(score + p, (*path, token), index) for p, token in top(path)]
        beam = sorted(range(first, len(pool)), key=lambda i: pool[i][0], reverse=True)[:K]
    kept = range(len(pool))
    if N is not None:
        kept = sorted(sorted(kept, key=lambda i: pool[i][0], reverse=True)[: N - 1])
    tokens, parents, mask = [-1], [-1], [[0]]
    for index in kept:
        _, path, generator = pool[index]
        parents.append(0 if generator is None else 1 + list(kept).index(generator))
        tokens.append(path[-1])
        mask.append([*mask[parents[-1]], len(tokens) - 1])
    return tokens, parents, mask, [len(row) - 1 for row in mask]


@pytest.mark.parametrize(
    ("K", "levels", "N"),
    [(4, 5, 20), (4, 5, None), (3, 1, 3), (3, 1, None), (1, 5, 6), (1, 5, 4), (10, 3, 60), (2, 6, 1), (5, 3, 500)],
)
def test_tree_is_upstreams(K: int, levels: int, N: int | None) -> None:
    logits = random_table(VOCABULARY, seed=K + levels)
    tree = Eagle2(K, levels, N)(TableDraft(logits), root_of(11, 12, 13))
    for row in range(3):
        log_probs = lambda path, row=row: logits(row, path).log_softmax(-1).tolist()  # noqa: E731
        tokens, parents, mask, positions = upstream(log_probs, K, levels, N)
        assert tree.token[row].tolist() == [11 + row, *tokens[1:]]
        assert tree.parent[row].tolist() == parents
        assert [line.nonzero()[:, 0].tolist() for line in tree.ancestors()[row]] == mask
        assert tree.positions(torch.tensor([7] * 3))[row].tolist() == [7 + position for position in positions]
    assert tree.alive.all()
    assert not tree.capped.any()


def check_columns(tree: Tree, logits: Callable, M: int | None = None) -> None:
    """Every node hangs under its parent with that path's probability, rank and entropy."""
    for row in range(len(tree.token)):
        for slot in range(1, tree.size):
            path, parent = path_of(tree, row, slot), int(tree.parent[row, slot])
            distribution = logits(row, tuple(path[:-1])).double().log_softmax(-1)
            assert parent < slot
            assert tree.depth[row, slot] == len(path) - 1 == tree.depth[row, parent] + 1
            own = distribution[path[-1]].item()
            raw = logits(row, tuple(path[:-1]))
            step = log_prob_bound(raw, raw.dtype)
            assert tree.log_prob[row, slot].item() == within(own, step)
            above = tree.log_joint[row, parent].item() if parent else 0.0
            step += growth(1, raw.dtype) * abs(above + own)
            assert tree.log_joint[row, slot].item() == within(above + own, step)
            mine = raw[path[-1]]
            assert (raw > mine).sum() <= tree.rank[row, slot] <= (raw >= mine).sum() - 1
            if M is not None:
                p = distribution.exp().sort(descending=True).values[:M]
                entropy = -sum(x * math.log(x) for x in p.tolist() if x > 0)
                bound = entropy_bound(torch.tensor(entropy), raw, raw.dtype)
                assert tree.entropy[row, slot].item() == within(entropy, float(bound))


@pytest.mark.parametrize("M", [None, 0, 6, 1000])
def test_columns_are_those_of_the_nodes_paths(M: int | None) -> None:
    logits = random_table(VOCABULARY, seed=3)
    tree = Eagle2(4, 4, 25, M)(TableDraft(logits), root_of(1, 2))
    check_columns(tree, logits, None if M == 0 else M or VOCABULARY)
    assert tree.entropy[:, 1:].isnan().all() == (M == 0)


def test_full_tree_has_K_plus_levels_of_K_squared_nodes_and_a_pass_a_level() -> None:
    draft = TableDraft(random_table(VOCABULARY))
    tree = Eagle2(K=10, levels=11, N=None)(draft, root_of(1))
    assert tree.size - 1 == 10 + 10 * 10 * 10 == 1010
    assert torch.bincount(tree.depth[0] + 1).tolist() == [1, 10] + [100] * 10
    assert [slots.shape[1] for slots in draft.expanded] == [1] + [10] * 10


def test_reranked_tree_holds_the_best_of_the_full_tree() -> None:
    root = root_of(1, 2, 3)
    full = Eagle2(4, 4, None)(TableDraft(random_table(VOCABULARY)), root)
    small = Eagle2(4, 4, 17)(TableDraft(random_table(VOCABULARY)), root)
    best = full.log_joint[:, 1:].sort(dim=1, descending=True).values[:, :16]
    assert small.log_joint[:, 1:].sort(dim=1, descending=True).values.equal(best)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    K=st.integers(1, 4),
    levels=st.integers(1, 5),
    N=st.integers(1, 30),
    peak=st.sampled_from([0.0, 1.0, 20.0, 200.0]),
)
def test_tied_and_peaked_drafts_lose_no_parent(seed: int, K: int, levels: int, N: int, peak: float) -> None:
    table = random_table(6, seed)

    def logits(row: int, path: tuple[int, ...]) -> torch.Tensor:
        # whole multiples of the peak in float32: equal logits, and log-probabilities of exactly 0
        return (table(row, path) / 2).round().float() * peak

    tree = Eagle2(K, levels, N)(TableDraft(logits), root_of(1, 2))
    assert tree.size == min(N, 1 + K + (levels - 1) * K * K)
    check_columns(tree, logits)
    for row in range(2):
        paths = [tuple(path_of(tree, row, slot)) for slot in range(tree.size)]
        assert len(set(paths)) == tree.size
        assert {path[:-1] for path in paths[1:]} <= set(paths)
        ranks = [
            [int(tree.rank[row, i]) for i in range(1, tree.size) if tree.parent[row, i] == p] for p in range(tree.size)
        ]
        assert all(one < other for siblings in ranks for one, other in pairwise(siblings))


@pytest.mark.parametrize("name", ["K", "levels", "N"])
def test_settings_below_one_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} = 0"):
        Eagle2(**{name: 0})


def test_more_children_than_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="K = 21 is more than"):
        Eagle2(K=21)(TableDraft(random_table(VOCABULARY)), root_of(1))
