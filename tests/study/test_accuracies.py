"""Accuracies by depth and rank: counted as the plainest loop counts them, on drafts that read the path and on one that
does not, and kept in a file that shapes a tree."""

from pathlib import Path

import pytest
import torch

from c2t.errors import InputError
from c2t.policies import Chain, MedusaTree
from c2t.policies.medusa_tree import Accuracies
from c2t.replay.lockstep import Continuation, write_continuations
from c2t.sampling import Sampling
from c2t.study.accuracies import MeasuredAccuracies, accuracies, write
from tests.marks import slow_except
from tests.rounding import assert_same_sums
from tests.toys import PROMPTS, deep_pairs, root_of

LEVELS, RANKS = 3, 4


def texts(kind: str) -> list[Continuation]:
    target, _ = deep_pairs()[kind]
    sampling = Sampling(temperature=0.8, seed=2)
    return write_continuations(target, PROMPTS[:3], max_new_tokens=12, beyond=LEVELS + 1, sampling=sampling)


def counted(kind: str) -> torch.Tensor:
    """Hits of each depth and rank, one position at a time."""
    draft, hits = deep_pairs()[kind][1], torch.zeros(LEVELS, RANKS)
    for text in texts(kind):
        tokens = text.tokens.tolist()
        for root in range(text.prompt, text.end - 1):
            session = draft.session()
            session.observe(text.tokens[None, : root + 1], text.features[None, :root], torch.tensor([root]))
            tree = Chain(LEVELS)(session, root_of(tokens[root])) if kind == "medusa" else None
            for depth in range(LEVELS):
                if tree is not None:  # a path of its own guesses: a parallel draft does not read it
                    logits = session.expand(tree, torch.tensor([[depth]])).logits[0, 0]
                else:
                    logits = draft.model.model(text.tokens[None, : root + depth + 1]).logits[0, -1]
                ranked = logits.sort(descending=True, stable=True).indices[:RANKS].tolist()
                if tokens[root + depth + 1] in ranked:
                    hits[depth, ranked.index(tokens[root + depth + 1])] += 1
    return hits


@pytest.mark.parametrize("kind", slow_except(["lm", "medusa"], "medusa"))
@torch.no_grad()
def test_each_position_counts_once(kind: str) -> None:
    measured = accuracies(deep_pairs()[kind][1], texts(kind), LEVELS, RANKS)
    assert measured.positions == sum(text.end - 1 - text.prompt for text in texts(kind))
    hits = counted(kind)
    assert hits.sum() > 5  # or this would say nothing
    assert_same_sums(torch.tensor(measured.rates) * measured.positions, hits, 2)


def test_what_is_written_shapes_a_tree(tmp_path: Path) -> None:
    place = tmp_path / "new" / "accuracies.json"
    write(place, MeasuredAccuracies(((0.5, 0.05), (1 / 3, 0.2)), 30), pair="toy", temperature=0.0)
    assert Accuracies.read(place) == Accuracies(((0.5, 0.05), (0.333333, 0.2)), str(place))
    assert MedusaTree(Accuracies.read(place), N=4).paths == ((0,), (0, 0), (0, 1))


def test_more_ranks_than_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="vocabulary of 48 tokens"):
        accuracies(deep_pairs()["lm"][1], texts("lm"), 1, 49)
