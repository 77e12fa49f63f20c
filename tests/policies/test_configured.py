"""Sampled trees of a configuration: their shape, where their tokens come from, and that repeats keep their place."""

import pytest
import torch

from c2t.errors import InputError
from c2t.policies import MCSD, SampledChain, SpecInfer
from c2t.policies.sampled import sample_children
from c2t.protocols import Root
from c2t.tree import Tree
from tests.rounding import proportion_bound, within
from tests.toys import TableDraft, path_of, random_table

ROWS = 4000
ROOT = Root(torch.zeros(ROWS, dtype=torch.long), torch.arange(ROWS) * 7919)
TABLE = random_table(5, seed=2, spread=1.0)
DRAFT = TableDraft(lambda row, path: TABLE(0, path))  # rows differ by their random bits only


def frequencies(tokens: torch.Tensor) -> list[float]:
    return (torch.bincount(tokens, minlength=5) / len(tokens)).tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_siblings_without_replacement_follow_successive_draws(temperature: float) -> None:
    _, children = sample_children(
        Tree.root(ROOT.token), DRAFT, ROOT, torch.zeros(ROWS, 1, dtype=torch.long), 3, temperature
    )
    p = (TABLE(0, ()) / temperature).softmax(-1)
    assert frequencies(children.token[:, 0]) == within(p.tolist(), proportion_bound(0.5, ROWS))
    second = sum(p[first] * p.scatter(0, torch.tensor([first]), 0) / (1 - p[first]) for first in range(5))
    assert frequencies(children.token[:, 1]) == within(second.tolist(), proportion_bound(0.5, ROWS))
    assert all(len(set(tokens)) == 3 for tokens in children.token.tolist())


def test_independent_siblings_all_follow_the_draft_and_repeats_are_dead() -> None:
    _, children = sample_children(
        Tree.root(ROOT.token), DRAFT, ROOT, torch.zeros(ROWS, 1, dtype=torch.long), 3, 1.0, True
    )
    for rank in range(3):
        p = TABLE(0, ()).softmax(-1).tolist()
        assert frequencies(children.token[:, rank]) == within(p, proportion_bound(0.5, ROWS))
    for tokens, alive, ranks in zip(
        *(c.tolist() for c in (children.token, children.alive, children.rank)), strict=True
    ):
        assert alive == [token not in tokens[:place] for place, token in enumerate(tokens)]
        assert ranks == [0, 1, 2]


@pytest.mark.parametrize("independent", [True, False])
def test_absent_slots_draw_nothing(independent: bool) -> None:
    """Else their children, which hang from the root for want of a parent, would be offered as the root's own."""
    frontier = torch.where(torch.arange(ROWS) % 2 == 0, 0, -1)[:, None]
    tree, children = sample_children(Tree.root(ROOT.token), DRAFT, ROOT, frontier, 2, 1.0, independent)
    assert (children.rank[1::2] == -1).all()
    assert not children.alive[1::2].any()
    assert tree.proposals.row[:, 0].tolist() == [0, -1] * (ROWS // 2)


def test_impossible_tokens_are_not_drawn() -> None:
    logits = torch.tensor([0.0, -1.0, -2000.0, float("-inf"), -900.0])
    draft = TableDraft(lambda row, path: logits)
    root = Root(torch.zeros(50, dtype=torch.long), torch.arange(50))
    tree, children = sample_children(Tree.root(root.token), draft, root, torch.zeros(50, 1, dtype=torch.long), 4, 1.0)
    assert children.rank.tolist() == [[0, 1, -1, -1]] * 50
    assert children.alive.sum(1).tolist() == [2] * 50
    assert torch.isfinite(tree.proposals.log_probs).sum(-1).flatten().tolist() == [2] * 50


@pytest.mark.parametrize(
    "policy", [MCSD((3, 2, 1)), SpecInfer((3, 2, 1)), SampledChain(3)], ids=lambda p: type(p).__name__
)
def test_shape_is_the_configuration(policy) -> None:
    config = (1, 1, 1) if isinstance(policy, SampledChain) else policy.config
    root = Root(torch.tensor([1, 2]), torch.tensor([11, 12]))
    draft = TableDraft(random_table(9, seed=1))
    tree = policy(draft, root)
    for row in range(2):
        for slot in tree.alive[row].nonzero()[:, 0].tolist():
            level = int(tree.depth[row, slot]) + 1
            drawn = (tree.parent[row] == slot) & (tree.rank[row] >= 0)
            assert int(drawn.sum()) == (config[level] if level < len(config) else 0)
    assert len(draft.expanded) == policy.levels == 3
    if isinstance(policy, MCSD):
        assert tree.sizes.tolist() == [1 + 3 + 6 + 6] * 2


def test_draws_depend_on_the_path_and_the_round_only() -> None:
    """Two rows with the same key draw the same subtree, wherever it stands in the tree."""
    root = Root(torch.tensor([1, 1, 1]), torch.tensor([5, 5, 6]))
    tree = MCSD((3, 2))(DRAFT, root)
    paths = [[tuple(path_of(tree, row, slot)) for slot in range(1, tree.size)] for row in range(3)]
    assert paths[0] == paths[1] != paths[2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: MCSD(()),
        lambda: MCSD((2, 0)),
        lambda: SpecInfer((0,)),
        lambda: SampledChain(0),
        lambda: SampledChain(temperature=0.0),
        lambda: MCSD(temperature=float("nan")),
        lambda: SpecInfer(temperature=-1.0),
    ],
)
def test_wrong_settings_are_refused(make) -> None:
    with pytest.raises(InputError):
        make()


def test_more_siblings_than_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="6 samples without replacement"):
        MCSD((6,))(DRAFT, ROOT)
