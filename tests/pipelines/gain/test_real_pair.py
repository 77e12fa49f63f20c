"""Trees of a real pair: recorded nodes are those of a replay, settings are searched on other prompts than they are
judged on, and the draft's reliability."""

import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from c2t.models.pairs import load_pair
from c2t.policies import Eagle2
from c2t.prompts import default_prompts, read_prompts
from c2t.protocols import POWERS, DraftVocabulary, NextTokenDistributions, RecordingDraft
from c2t.sampling import Sampling
from c2t.statistics import total
from c2t.study.evaluate import encode, evaluate
from c2t.study.points import Point
from c2t.tree import Tree
from pipelines.docs.real_pair import needed_prompts
from pipelines.gain import real_pair, recorded_trees
from pipelines.gain.real_pair import COUNTED, EAGLE2, PLAIN, TEMPERED, judged
from pipelines.gain.reliability import EVERYTHING, reliability
from pipelines.gain.subtrees import Nodes
from tests.rounding import assert_same_sums, figure, growth, roughly

POLICY = Eagle2(K=3, levels=3, N=None, M=100)


def test_log_sums_normalise_another_temperature() -> None:
    logits = torch.randn(2, 3, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = NextTokenDistributions(logits, vocabulary=DraftVocabulary(torch.arange(0, 22, 2), 25))
    for power, sums in zip((1.0, 0.5, 2.0), rows.log_sums((1.0, 0.5, 2.0)).unbind(-1), strict=True):
        sharpened = (power * logits).log_softmax(-1)
        own = power * logits.log_softmax(-1) - sums[..., None]
        assert (own - sharpened).abs().max() <= growth(11, torch.float64) * (1 + sharpened.abs().max())


class Distributions(NamedTuple):
    """Draft with distributions of its own after each slot."""

    logits: torch.Tensor

    def expand(self, tree: Tree, slots: torch.Tensor) -> NextTokenDistributions:
        rows = torch.arange(len(slots))[:, None]
        return NextTokenDistributions(self.logits[rows, slots.clamp(min=0)])


def test_sums_of_powers_are_those_of_the_slot_that_is_asked_for() -> None:
    logits = torch.randn(2, 5, 11, generator=torch.Generator().manual_seed(0))
    kept, tree = RecordingDraft(Distributions(logits), ["log_sums"]), Tree.root(torch.tensor([1, 2]))
    for slots in ([[0], [0]], [[2, 1], [3, -1]], [[4, -1], [1, 2]]):
        kept.expand(tree, torch.tensor(slots))
    asked = torch.tensor([[0, 1, 2, 4], [2, 0, 3, 1]])
    expected = [(power * logits.log_softmax(-1)).logsumexp(-1).gather(1, asked) for power in POWERS]
    assert_same_sums(kept.after(asked, "log_sums"), torch.stack(expected, -1))


@pytest.mark.slow
def test_recorded_nodes_are_those_of_a_replay(tmp_path: Path) -> None:
    pair, sampling = load_pair("tiny"), Sampling(0.4)
    prompts = [prompt for path in default_prompts("tiny", "bench") for prompt in read_prompts(path)[:6]]
    ids = encode(pair, prompts, 8, sampling).ids
    assert len(ids) > 16, "more than one batch of texts"
    nodes = recorded_trees.recorded(pair, ids, POLICY, 8, sampling, tmp_path / "nodes.npz")
    counts = evaluate(pair, POLICY, ids, max_new_tokens=8, sampling=sampling)
    assert np.bincount(nodes.prompt[nodes.accepted], minlength=len(ids)).tolist() == [sum(s.accepted) for s in counts]
    roots = total(counts).rounds
    assert len(nodes.tree) + roots == total(counts).verified_tokens
    assert len(np.unique(nodes.tree)) == roots
    above, first = nodes.above, nodes.above < 0
    assert (nodes.depth[first] == 0).all()
    assert (nodes.depth[~first] == nodes.depth[above[~first]] + 1).all()
    assert (nodes.tree[~first] == nodes.tree[above[~first]]).all()
    joint = nodes.columns["log_prob"] + np.where(first, 0, nodes.columns["log_joint"][above])
    assert_same_sums(joint.astype(np.float32), nodes.columns["log_joint"])
    for power in POWERS:  # siblings keep their order and their odds to that power
        gaps = (np.diff(nodes.columns[name][:3]) for name in ("log_prob", f"log_prob^{power:g}"))
        assert_same_sums((power * next(gaps)).astype(np.float32), next(gaps))
    with np.load(tmp_path / "nodes.npz") as kept:
        token, start = kept["texts_token"], kept["texts_start"]
    for row in np.flatnonzero(nodes.depth == 1)[::97]:
        here = start[nodes.prompt[row]]
        text = token[here : here + nodes.position[row] + 1].tolist()
        asked = (nodes.token[above[row]], nodes.token[row])
        assert nodes.columns["count_2"][row] == np.log1p(sum(two == asked for two in itertools.pairwise(text)))
    assert nodes.columns["count_2"].any()
    for row in np.flatnonzero(nodes.accepted):
        assert token[start[nodes.prompt[row]] + nodes.position[row] + nodes.depth[row] + 1] == nodes.token[row]
    again = recorded_trees.recorded(pair, [], POLICY, 8, sampling, tmp_path / "nodes.npz")  # read, not made
    assert again.columns.keys() == nodes.columns.keys()
    assert all((again.columns[name] == column).all() for name, column in nodes.columns.items())


def front(family: str, dearer: np.ndarray) -> list[Point]:
    """Trees of 0.1 to 4 accepted tokens a round at 4 tokens each, times `dearer` on each of 40 prompts of 10 rounds."""
    rounds = (10,) * len(dearer)
    return [
        Point(family, "", "", None, rounds, tuple(round(10 * tau) for _ in rounds), tuple(40 * tau * dearer), rounds)
        for tau in (0.1, 0.5, 1, 2, 4)
    ]


def test_settings_are_searched_on_other_prompts_than_judged() -> None:
    even = np.arange(40) % 2 == 0
    found = {
        PLAIN: {"": front(PLAIN, np.full(40, 2.0))},
        # The first setting is the better one on the prompts to search on, the second where it is judged.
        TEMPERED: {"a": front(TEMPERED, np.where(even, 1.0, 1.5)), "b": front(TEMPERED, np.where(even, 1.4, 0.5))},
        EAGLE2: {"2": front(EAGLE2, np.full(40, 1.2))},
        COUNTED: {"4": front(COUNTED, np.full(40, 1.7))},
        "learned": {"": front("learned", np.where(even, 9.0, 3.0))},
    }
    rows = {(row.family, row.tau): row for row in judged(found)}
    assert {family for family, _ in rows} == set(found)
    for tau in real_pair.TAUS:
        assert rows[TEMPERED, tau].setting == "a"
        assert rows[TEMPERED, tau].over_plain == figure((0.75,) * 3)
        assert rows["learned", tau].over_best == figure((2.0,) * 3)  # EAGLE-2 would be better: it was not chosen
        assert rows["learned", tau].gamma == figure(12 * tau)


def test_a_draft_that_reaches_no_tau_has_no_rows() -> None:
    nothing = [point._replace(accepted=(0,) * 40) for point in front(PLAIN, np.full(40, 1.0))]
    assert judged({family: {"": nothing} for family in real_pair.RIVALS}) == []


def test_a_draft_that_is_too_unsure_is_seen() -> None:
    rng = np.random.default_rng(0)
    n, true = 20_000, rng.uniform(0.05, 0.95, 20_000)
    logit = np.log(true / (1 - true))
    columns = {"log_prob": -np.log1p(np.exp(-logit / 1.5)), "rank": np.zeros(n)}
    columns |= {f"log_prob^{p:g}": -np.log1p(np.exp(-p * logit / 1.5)) for p in POWERS}
    nothing = np.zeros(0, int)
    number, prompt = np.arange(n), np.arange(n) % 2
    accepted = rng.random(n) < true
    nodes = Nodes(columns, np.full(n, -1), np.zeros(n, int), number, prompt, nothing, accepted, nothing, nothing, ())
    rows = {row.data_set: row for row in reliability(nodes, ["one", "two"])}
    assert set(rows) == {"one", "two", EVERYTHING}
    assert sum(tokens for tokens, _, _ in rows["one"].bins) == rows["one"].rounds == n // 2
    for row in rows.values():
        assert min(row.log_loss, key=lambda one: one[1])[0] == roughly(1 / 1.5, 2e-3)
        high = [accepted - probability for tokens, probability, accepted in row.bins[7:] if tokens]
        assert min(high) > 0.03  # what is called 0.8 is accepted more often


def test_prompts_that_are_needed_are_rounded_up() -> None:
    assert [needed_prompts(count) for count in (7.0, 41.2, 132.0, 1372.0)] == ["7", "42", "140", "1,400"]
