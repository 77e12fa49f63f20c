"""The function in C against the twin in torch, which tests/models/test_ngrams.py holds against the definition."""

import pytest
import torch
from torch import Tensor

from c2t.kernels.ngrams import LONGEST, Paths, compiled, compiled_mix, torch_mix
from c2t.tree import Tree

TOKENS, CANDIDATES, ROWS = 4, 6, 5  # few tokens, so that long contexts are found too
PRIOR_WEIGHTS = [8.0, 2.0, 0.5]
pytestmark = pytest.mark.skipif(compiled() is None, reason="no C kernels here")


def tree_of(root: Tensor, levels: int = 3) -> Tree:
    """Trees in which every node has two children, of random tokens."""
    tree, slots = Tree.root(root), torch.zeros(len(root), 1, dtype=torch.long)
    for _ in range(levels):
        tokens = torch.randint(TOKENS, (*slots.shape, 2))
        nodes = tree.children(slots, tokens, torch.zeros(tokens.shape), torch.zeros(slots.shape))
        slots = tree.size + torch.arange(nodes.size).expand(len(root), -1)
        tree = tree.extend(nodes)
    return tree


def level(seed: int, shortest: int = 1, longest: int = 60) -> tuple[Paths, Tensor, Tensor]:
    """Random texts with trees behind them, some slots of every level, and what a draft says there."""
    torch.manual_seed(seed)
    text, lengths = torch.randint(TOKENS, (ROWS, longest)), torch.randint(shortest, longest + 1, (ROWS,))
    tree = tree_of(text.gather(1, lengths[:, None] - 1)[:, 0])
    slots = torch.randint(-1, tree.size, (ROWS, 7))
    tokens = torch.rand(ROWS, 7, 50).topk(CANDIDATES).indices % (2 * TOKENS)  # the same one may stand there twice
    log_probs = torch.randn(ROWS, 7, CANDIDATES).mul(3).log_softmax(-1)
    return Paths(text, lengths, tree.token, tree.parent, slots), tokens, log_probs


@pytest.mark.parametrize("longest", [3, 60])
def test_scores_are_those_of_torch(longest: int) -> None:
    for seed in range(20):
        paths, tokens, log_probs = level(seed, longest=longest)
        score, factor = compiled_mix(paths, tokens, log_probs, PRIOR_WEIGHTS)
        wanted_score, wanted_factor = torch_mix(paths, tokens, log_probs.double(), PRIOR_WEIGHTS)
        assert (wanted_factor < 0).any() or longest < LONGEST
        torch.testing.assert_close(score, wanted_score.float(), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(factor, wanted_factor.float(), rtol=1e-6, atol=1e-6)


def test_a_row_does_not_depend_on_the_others() -> None:
    paths, tokens, log_probs = level(1)
    score, factor = compiled_mix(paths, tokens, log_probs, PRIOR_WEIGHTS)
    for row in range(ROWS):
        own = Paths(*(part[row : row + 1] for part in paths))
        own = own._replace(text=own.text[:, : int(own.lengths)])
        alone = compiled_mix(own, tokens[row : row + 1], log_probs[row : row + 1], PRIOR_WEIGHTS)
        assert alone[0].equal(score[row : row + 1])
        assert alone[1].equal(factor[row : row + 1])


def test_equal_tokens_stay_equal_and_excluded_ones_excluded() -> None:
    paths, tokens, log_probs = level(2)
    tokens[..., 1], log_probs[..., 1] = tokens[..., 0], log_probs[..., 0]
    log_probs[..., 2] = float("-inf")
    score, _ = compiled_mix(paths, tokens, log_probs, PRIOR_WEIGHTS)
    assert score[..., 1].equal(score[..., 0])
    assert (score[..., 2] == float("-inf")).all()


def test_nan_stays_nan() -> None:
    paths, tokens, log_probs = level(3)
    score, _ = compiled_mix(paths, tokens, log_probs.fill_(float("nan")), PRIOR_WEIGHTS)
    assert score.isnan().all()


def test_rows_of_a_text_may_be_one_in_memory() -> None:
    """As those of a fork are."""
    paths, tokens, log_probs = level(4)
    shared = paths._replace(text=paths.text[:1].expand(ROWS, -1))
    copied = paths._replace(text=shared.text.contiguous())
    for one, other in zip(
        *(compiled_mix(each, tokens, log_probs, PRIOR_WEIGHTS) for each in (shared, copied)), strict=True
    ):
        assert one.equal(other)
