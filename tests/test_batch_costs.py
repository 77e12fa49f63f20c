"""Costs of rounds: what is timed, how it is fitted, the yield that goes with it, and where both are kept."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from c2t import batch_costs, kept_costs
from c2t.batch_costs import (
    Excess,
    Family,
    calibrate,
    eager,
    envelope,
    families,
    fit,
    measure,
    profile,
    promise,
)
from c2t.decoder import SpeculativeDecoder
from c2t.errors import InputError
from c2t.kept_costs import costs_of, measure_and_keep, path_of, read_costs
from c2t.models.loading import Pair
from c2t.policies import Budget, Chain, Eagle2, JointThreshold, Plain, SpecInfer
from c2t.policies.round_costs import Calibration, Rest
from c2t.prompts import Prompt
from c2t.replay.lockstep import replay, write_continuations
from c2t.sampling import Sampling
from tests.every_policy import toy_costs
from tests.rounding import figure, roughly, within
from tests.small_pair import TURNS
from tests.toys import PROMPTS, TableDraft, random_table, root_of, toy_drafts, toy_target

POLICY = Eagle2(K=3, levels=2, N=None)


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(batch_costs, "VERIFIED", (1, 2, 8))
    monkeypatch.setattr(batch_costs, "DRAFTED", (1, 4))
    return tmp_path / "cache"


def test_the_profile_counts_what_was_accepted() -> None:
    """With all nodes it is tau; fewer levels are those of the same trees."""
    texts = write_continuations(toy_target(), PROMPTS, max_new_tokens=12, beyond=3, sampling=Sampling())
    found = profile_of(texts, POLICY)
    steps = [step for step in replay(toy_drafts()["perturbed"], POLICY, texts) if step.tree is not None]
    accepted = torch.cat([step.accepted.length for step in steps]).double()
    assert found.accepted[1][-1] == figure(accepted.mean().item())
    assert found.accepted[0][-1] == figure(accepted.clamp(max=1).mean().item())
    assert found.widths == (1.0, 3.0)
    for gains in found.accepted:
        assert gains[0] == 0
        assert list(gains) == sorted(gains)
    chain = profile_of(texts, Chain(1)).accepted[0]
    one, two = (chain[batch_costs.NODES.index(nodes)] for nodes in (0.5, 1.0))
    assert 0 < two < 2 * one, "the nodes that the draft is surer of are accepted more often"


def test_confidence_is_calibrated_by_what_was_accepted() -> None:
    """Nodes called 0.9 are accepted half of the time, those called 0.6 one time in ten; order is kept."""
    sure = np.repeat([0.9, 0.6, 0.2], [320, 800, 1000]).astype(np.float64)
    accepted = np.concatenate([np.arange(320) % 2 == 1, np.arange(800) % 10 == 9, np.zeros(1000, bool)])
    found = calibrate(sure, accepted)
    # a group has some 32 of those that are called 0.9
    assert found.at(np.array([0.9, 0.6])) == within([0.5, 0.1], 1 / 32)
    assert found.at(np.array([0.2]))[0] < 0.06
    assert list(found.accepted) == sorted(found.accepted)
    assert list(found.confidence) == sorted(found.confidence)
    upside_down = calibrate(np.array([0.9] * 50 + [0.5] * 50), np.array([False] * 50 + [True] * 50))
    assert upside_down.at(np.array([0.9, 0.6])) == roughly([0.5, 0.5], 0.2), "never against the order"
    assert calibrate(np.array([0.9, 0.5]), np.array([False, False])).at(np.array([0.7, 1.0])).tolist() == [0, 0]
    assert calibrate(np.zeros(0), np.zeros(0, bool)).at(np.array([0.5])).tolist() == [0]


def test_families_are_the_expanded_nodes_with_their_children() -> None:
    """Slots: the root, three nodes of which the two surest were expanded, their children, a dead slot."""
    confidence = np.array([-1.0, 0.5, 0.2, 0.9, 0.3, 0.8, 0.4, -1.0])
    depth = np.array([-1, 0, 0, 0, 1, 1, 1, 1])
    parent = np.array([-1, 0, 0, 0, 1, 3, 3, 1])
    found = [(parent, sorted(children)) for parent, children in families(confidence, depth, parent, np.array([2, 1]))]
    assert found == [(0.9, [0.4, 0.8]), (0.5, [0.3]), (0.8, [])]


def test_children_promise_what_such_nodes_had() -> None:
    """Nodes called 0.9 have one child of 0.6, those called 0.3 two of 0.1; confidence is twice what is accepted."""
    known = [Family(0.9, np.array([0.6])), Family(0.3, np.array([0.1, 0.1]))] * 40
    found = promise(Calibration((0.0, 1.0), (0.0, 0.5)), known)
    assert found.of(np.array([0.0, 0.3, 0.6, 0.9, 1.0])) == figure(
        np.array([[0, 0], [0.05, 0.05], [0.175, 0.025], [0.3, 0], [0.3, 0]])
    )
    for nothing in ([], [Family(0.0, np.array([0.5]))], [Family(0.7, np.zeros(0))] * 20):
        assert promise(Calibration(), nothing).of(np.array([0.0, 0.5, 1.0])).tolist() == [[0], [0], [0]]


def test_children_of_a_profile_add_up_to_what_was_accepted() -> None:
    """Over the nodes that were expanded: their children's calibrated confidence is the share that was accepted."""
    texts = write_continuations(toy_target(), PROMPTS, max_new_tokens=24, beyond=3, sampling=Sampling())
    found = profile_of(texts, POLICY)
    drafts = toy_drafts()["perturbed"]
    steps = [step for step in replay(drafts, POLICY, texts, record=("slots",)) if step.tree is not None]
    budget = Budget(POLICY, nodes=1)
    sure = [budget.confidence(step.tree)[step.tree.depth.numpy() == 0] for step in steps]
    promised = found.children.of(np.concatenate(sure)).sum()
    below = sum(int((step.accepted.length > 1).sum()) for step in steps)
    assert promised == roughly(below, 0.35), "calibration and groups are coarse on so few rounds"
    assert below > 0


def profile_of(texts, policy):
    class Toy(Pair):
        draft = toy_drafts()["perturbed"]

    return profile(object.__new__(Toy), policy, texts)


def test_a_busy_moment_does_not_bend_a_curve() -> None:
    assert envelope([1.0, 5.0, 2.0, 3.0, 9.0, 4.0]) == (1.0, 2.0, 2.0, 3.0, 4.0, 4.0)


def test_the_rest_is_fitted_without_negative_parts() -> None:
    def excess(rows: int, levels: int, seconds: float) -> Excess:
        return Excess(rows, levels, 5, seconds)

    known = Rest(0.5, 0.25, 1.0, 2.0, 0.125)
    exact = [excess(rows, levels, known.seconds(rows, levels)) for rows in (1, 8) for levels in (0, 1, 3)]
    assert known.seconds(8, 3) == 0.5 + 8 * 0.25 + 1.0 + 3 * 2.0 + 24 * 0.125
    assert known.seconds(8, 0) == 2.5
    assert fit(exact) == figure(known)
    assert fit([excess(1, 0, 1.0), excess(8, 0, 1.0), excess(8, 2, 0.5)]).a_level == 0
    assert fit([excess(1, 0, -1.0)]) == fit([]) == Rest()


@pytest.mark.parametrize(
    ("policy", "forwards"), [(Eagle2(K=3, levels=3, N=None), [1, 3]), (Chain(1), [1]), (Chain(4), [1, 4])]
)
def test_rounds_that_are_timed_draft_every_level(policy, forwards: list[int]) -> None:
    found = toy_costs(policy.levels).profile
    rounds = []
    for budget in eager(policy, found, 8):
        draft = TableDraft(random_table(12))
        assert int(budget(draft, root_of(0, 1)).sizes.sum()) <= 8
        rounds.append(len(draft.expanded))
    assert rounds == forwards


def test_every_forward_is_timed_(small_pair: Pair) -> None:
    ticks = itertools.count()
    ids = [small_pair.tokenizer(turn).input_ids for turn in TURNS[:3]]
    costs = measure(small_pair, POLICY, ids, repeats=2, clock=lambda: float(next(ticks)))
    assert costs.verify == ((1, 2, 8), (1.0, 1.0, 1.0))
    assert costs.draft == ((1, 4), (1.0, 1.0))
    assert costs.rest == Rest(), "a round took one tick, as its forward did"
    costs.check()
    assert len(costs.profile.accepted) == POLICY.levels


def test_costs_are_kept_by_pair_and_policy(
    small_pair: Pair, quick: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    prompts = [Prompt(number, "", [turn], "f") for number, turn in enumerate(TURNS[:2])]
    with pytest.raises(InputError, match=r"run c2t tune --policies budget:of=eagle2:.* --prompts FILE"):
        costs_of(small_pair, POLICY)
    costs = measure_and_keep(small_pair, POLICY, prompts, repeats=1)
    assert "what rounds cost here, and kept it in" in capsys.readouterr().err
    [path] = quick.iterdir()
    assert path == path_of(small_pair, POLICY)
    assert costs_of(small_pair, POLICY) == read_costs(path) == costs_of(small_pair, Chain(1), path) == costs
    assert path_of(small_pair, Chain(2)) != path
    decoder = SpeculativeDecoder(small_pair, POLICY, budget="auto")
    assert decoder.policy == Budget(POLICY, costs=costs)
    monkeypatch.setattr(kept_costs, "device_name", lambda _device: "another")
    assert path_of(small_pair, POLICY) != path


def test_costs_of_an_older_format_are_measured_anew(small_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_costs, "FORMAT", kept_costs.FORMAT - 1)
    path = path_of(small_pair, POLICY)
    path.parent.mkdir()
    path.write_text("{}")
    monkeypatch.undo()
    monkeypatch.setenv("C2T_CACHE", str(path.parent))
    with pytest.raises(InputError, match="no costs were measured"):
        costs_of(small_pair, POLICY)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: "{}", "key is missing"),
        (lambda text: text[:50], "no JSON"),
        (lambda text: text.replace('"policy"', '"law"'), "costs of another machine, pair or policy"),
        (lambda text: json.dumps({**json.loads(text), "costs": None}), "costs"),
        (lambda text: text.replace('"a_row": ', '"a_row": -1'), "positive numbers of seconds"),
    ],
)
def test_a_damaged_file_is_one_clear_line(small_pair: Pair, quick: Path, damage, message: str) -> None:
    path = path_of(small_pair, POLICY)
    path.parent.mkdir()
    entry = {"key": kept_costs._key(small_pair, POLICY), "costs": kept_costs._as_json(toy_costs(2))}
    path.write_text(json.dumps(entry))
    assert costs_of(small_pair, POLICY) == toy_costs(2)
    path.write_text(damage(path.read_text()))
    with pytest.raises(InputError, match=f"{message}.*; delete .* to measure again"):
        costs_of(small_pair, POLICY)


def test_the_decoder_takes_a_budget(small_pair: Pair, tmp_path: Path) -> None:
    decoder = SpeculativeDecoder(small_pair, POLICY, budget=7)
    assert decoder.policy == Budget(POLICY, 7)
    plain = SpeculativeDecoder(small_pair, Plain()).generate(TURNS[:3], max_new_tokens=10)
    assert decoder.generate(TURNS[:3], max_new_tokens=10).texts == plain.texts
    with pytest.raises(InputError, match="SpecInfer has sampled candidates"):
        SpeculativeDecoder(small_pair, SpecInfer(), budget="auto")
    with pytest.raises(InputError, match="nodes = 0 must be at least 1"):
        SpeculativeDecoder(small_pair, POLICY, budget=0)
    with pytest.raises(InputError, match=r"none\.json: cannot be read as costs of rounds"):
        SpeculativeDecoder(small_pair, JointThreshold(), budget=tmp_path / "none.json")
