"""Chains cut by confidence against a loop that tries every length, and against CaDDTree's chains."""

import math

import pytest
import torch

from c2t.errors import InputError
from c2t.models.drafts.block_draft import BlockDraft
from c2t.policies import CaDDTree, ConfidenceChain
from c2t.protocols import NextTokenDistributions, Root
from c2t.tree import Tree
from tests.policies.plain_trees import ROOT, paths_of, ranked, tables
from tests.tiny_heads import tiny_head
from tests.toys import TableDraft

WEIGHTS, BIASES = (2.0, 0.5), (0.3, -0.4, 0.1)  # of positions, the last ones of all further


class ConfidentDraft(TableDraft):
    """Draft that trusts its most probable token as much as that is probable, to the power of `power`."""

    power = 1.0

    def expand(self, tree: Tree, slots: torch.Tensor) -> NextTokenDistributions:
        rows = super().expand(tree, slots)
        rows.confidence = rows.top(1)[1][..., 0].exp() ** self.power
        return rows


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def accepted(x: float, position: int) -> float:
    weight, bias = WEIGHTS[min(position, 1)], BIASES[min(position, 2)]
    return sigmoid(weight * x + bias)


def chain(logits: torch.Tensor, row: int, policy: ConfidenceChain) -> list[tuple[int, ...]]:
    path, nodes, survival, speeds = (), [], [1.0], [1.0]
    for position in range(policy.length):
        (p, token), (second, _) = ranked(logits, row, path)[:2]
        x = math.log(p / second) if policy.by == "margin" else math.log(p**0.5 / (1 - p**0.5))
        path = (*path, token)
        nodes.append(path)
        survival.append(survival[-1] * accepted(x, position))
        speeds.append(sum(survival) / (1 + policy.slope * (position + 1)))
    return nodes[: speeds.index(max(speeds))]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("slope", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("by", ["confidence", "margin"])
def test_the_chain_has_the_most_profitable_length(by: str, slope: float, seed: int) -> None:
    logits = tables(seed)
    draft = ConfidentDraft(logits)
    draft.power = 0.5
    policy = ConfidenceChain(by, slope=slope, length=6, weights=WEIGHTS, biases=BIASES)
    tree = policy(draft, ROOT)
    assert [paths_of(tree, row) for row in range(3)] == [chain(logits, row, policy) for row in range(3)]


@pytest.mark.parametrize("slope", [0.02, 0.1, 0.5])
def test_confidence_in_the_tokens_own_probability_gives_caddtrees_chain(slope: float) -> None:
    draft = ConfidentDraft(tables(0))
    ours = ConfidenceChain(slope=slope, length=5)(draft, ROOT)
    theirs = CaDDTree(slope=slope, N=6, K=1, levels=5)(draft, ROOT)
    assert [paths_of(ours, row) for row in range(3)] == [paths_of(theirs, row) for row in range(3)]


def test_a_draft_without_confidence_is_refused() -> None:
    with pytest.raises(InputError, match="no confidence head"):
        ConfidenceChain()(TableDraft(tables(0)), ROOT)


@pytest.mark.parametrize("by", ["confidence", "margin"])
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_no_chain_is_longer_than_what_the_draft_says(weight: float, by: str) -> None:
    """Below its last depth a block says nothing, whatever the calibration."""
    head = tiny_head("dspark").float()
    head.embed_tokens = torch.nn.Embedding(head.config.vocab_size, head.config.hidden_size)
    draft = BlockDraft(head, torch.nn.Linear(head.config.hidden_size, head.config.vocab_size, bias=False))
    session = draft.session()
    tokens = torch.tensor([[3, 4, 5]])
    session.observe(tokens, torch.randn(1, 2, head.fc.in_features), torch.tensor([2]))
    policy = ConfidenceChain(by, slope=0.001, length=9, weights=(weight,), biases=(4.0,))
    assert policy(session, Root(tokens[:, 2], None)).size == 1 + head.drafts


@pytest.mark.parametrize(
    "wrong",
    [
        {"slope": 0.0},
        {"slope": math.inf},
        {"weights": ()},
        {"weights": (math.nan,)},
        {"biases": ()},
        {"biases": (-math.inf,)},
        {"length": 0},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict) -> None:
    with pytest.raises(InputError):
        ConfidenceChain(**wrong)
