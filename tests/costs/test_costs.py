"""Costs of rounds: what is timed, how it is fitted, the yield that goes with it, and where both are kept."""

import itertools
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from c2t.costs import measure as measuring
from c2t.costs import store
from c2t.costs.measure import (
    Forwards,
    ForwardTimer,
    OverheadSample,
    attention_costs,
    envelope,
    fit,
    measure,
    profile,
    regular,
    shallow_and_deep,
)
from c2t.costs.store import costs_of, measure_and_store, path_of, read_costs
from c2t.decoder import SpeculativeDecoder
from c2t.errors import InputError
from c2t.models.drafts.session import DraftSession
from c2t.models.loading.load import Pair
from c2t.models.target.target import TargetSession
from c2t.policies import Budget, Chain, Eagle2, JointThreshold, Plain, SpecInfer
from c2t.policies.round_costs import Attention, Curve, Overhead
from c2t.replay.lockstep import replay, write_continuations
from c2t.replay.prompts import Prompt
from c2t.sampling import Sampling
from c2t.study.evaluate import continuations
from tests.every_policy import toy_costs
from tests.rounding import figure
from tests.small_pair import TURNS
from tests.toys import PROMPTS, TableDraft, random_table, root_of, toy_drafts, toy_target

POLICY = Eagle2(K=3, levels=2, N=None)


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measuring, "VERIFIED", (1, 2, 8))
    monkeypatch.setattr(measuring, "DRAFTED", (1, 4))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("size", "seconds"), [(0.5, 1.0), (1, 1.0), (2.5, 1.5), (4, 2.0), (6, 6.0), (8, 10.0), (10, 14.0)]
)
def test_a_curve_is_interpolated_and_goes_on_as_it_ended(size: float, seconds: float) -> None:
    assert Curve((1, 4, 8), (1.0, 2.0, 10.0)).at(size) == figure(seconds)


def test_curves_that_end_falling_or_have_one_point_stay_level() -> None:
    assert Curve((1, 2), (2.0, 1.0)).at(9) == 1.0
    assert Curve((3,), (2.0,)).at(np.array([1, 9])).tolist() == [2.0, 2.0]


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
    one, two = (chain[measuring.NODES.index(nodes)] for nodes in (0.5, 1.0))
    assert 0 < two < 2 * one, "the more probable nodes are accepted more often"


def profile_of(texts, policy):
    class Toy(Pair):
        draft = toy_drafts()["perturbed"]

    return profile(object.__new__(Toy), policy, texts)


def test_a_busy_moment_does_not_bend_a_curve() -> None:
    assert envelope([1.0, 5.0, 2.0, 3.0, 9.0, 4.0]) == (1.0, 2.0, 2.0, 3.0, 4.0, 4.0)


def test_the_rest_is_fitted_without_negative_parts() -> None:
    def excess(rows: int, levels: int, seconds: float) -> OverheadSample:
        return OverheadSample(rows, levels, 5, seconds)

    known = Overhead(0.5, 0.25, 1.0, 2.0, 0.125)
    exact = [excess(rows, levels, known.seconds(rows, levels)) for rows in (1, 8) for levels in (0, 1, 3)]
    assert known.seconds(8, 3) == 0.5 + 8 * 0.25 + 1.0 + 3 * 2.0 + 24 * 0.125
    assert known.seconds(8, 0) == 2.5
    assert fit(exact) == figure(known)
    assert fit([excess(1, 0, 1.0), excess(8, 0, 1.0), excess(8, 2, 0.5)]).per_level == 0
    assert fit([excess(1, 0, -1.0)]) == fit([]) == Overhead()


@pytest.mark.parametrize(
    ("policy", "forwards"),
    [(Eagle2(K=3, levels=3, N=None), [1, 3]), (Chain(1), [1]), (Chain(4), [1, 4]), (Plain(), [])],
)
def test_rounds_that_are_timed_draft_every_level(policy, forwards: list[int]) -> None:
    rounds = []
    for budget in shallow_and_deep(policy, 8):
        draft = TableDraft(random_table(12))
        assert int(budget(draft, root_of(0, 1)).sizes.sum()) <= 8
        rounds.append(len(draft.expanded))
    assert rounds == forwards


def test_regular_trees() -> None:
    tree = regular(torch.tensor([7, 8]), 7, 2)
    assert tree.token.tolist() == [[7] * 7, [8] * 7]
    assert tree.parent.tolist() == [[-1, 0, 0, 1, 1, 2, 2]] * 2
    assert tree.depth.tolist() == [[-1, 0, 0, 1, 1, 1, 1]] * 2
    assert tree.sizes.tolist() == [7, 7]
    assert regular(torch.tensor([7]), 1, 4).size == 1


def test_each_forward_is_timed_at_its_size(small_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that only forwards advance: the target's by 1 s a token, the draft's by 10 s a token. Of five repeats
    three take the target a hundred times as long."""
    now, calls = [0.0], Counter()
    verify, expand = TargetSession.verify, DraftSession.expand

    def slowly_verify(session: TargetSession, tree):
        calls[tree.size] += 1
        now[0] += tree.token.numel() * (1 if calls[tree.size] in (2, 4) else 100)
        return verify(session, tree)

    def slowly_expand(session: DraftSession, tree, slots):
        now[0] += 10 * slots.shape[1]
        return expand(session, tree, slots)

    [text] = continuations(small_pair, [small_pair.tokenizer(TURNS[0]).input_ids], 8, 1, Sampling())
    monkeypatch.setattr(TargetSession, "verify", slowly_verify)
    monkeypatch.setattr(DraftSession, "expand", slowly_expand)
    forwards = Forwards(ForwardTimer(small_pair, text, lambda: now[0]), (1, 2, 5, 7), (1, 2, 3))
    for _ in range(5):
        forwards.time()
    assert calls == {1: 5, 2: 5, 5: 5, 7: 5}
    assert forwards.curve("draft") == Curve((1, 2, 3), (10.0, 20.0, 30.0))
    assert forwards.curve("verify") == Curve((1, 2, 5, 7), (1.0, 2.0, 5.0, 7.0))


def test_attention_is_what_a_longer_prefix_adds() -> None:
    """Half a second for the row of each ten tokens, and 0.1 for each verified token, in forwards of 1 and 5 tokens."""
    near, far = Curve((1, 2, 8), (1.0, 2.0, 8.0)), Curve((1, 5), (1.0 + 6.0, 5.0 + 10.0))
    assert attention_costs(near, far, 20, 30) == Attention(0.5, 0.1, 20)
    assert attention_costs(near, far, 20, 20) == attention_costs(near, near, 20, 30) == Attention(after=20)


def test_every_forward_is_timed_(small_pair: Pair) -> None:
    ticks = itertools.count()
    ids = [small_pair.tokenizer(turn).input_ids for turn in TURNS[:3]]
    costs = measure(small_pair, POLICY, ids, repeats=2, clock=lambda: float(next(ticks)))
    assert costs.verify == ((1, 2, 8), (1.0, 1.0, 1.0))
    assert costs.draft == ((1, 4), (1.0, 1.0))
    assert costs.overhead == Overhead(), "a round took one tick, as its forward did"
    costs.check()
    assert len(costs.profile.accepted) == POLICY.levels


def test_costs_are_kept_by_pair_and_policy(
    small_pair: Pair, quick: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    prompts = [Prompt(number, "", [turn], "f") for number, turn in enumerate(TURNS[:2])]
    costs = measure_and_store(small_pair, POLICY, prompts, repeats=1)
    assert "measured the costs of rounds in " in capsys.readouterr().err
    [path] = quick.iterdir()
    assert path == path_of(small_pair, POLICY)
    assert costs_of(small_pair, POLICY) == read_costs(path) == costs_of(small_pair, Chain(1), path) == costs
    assert path_of(small_pair, Chain(2)) != path
    decoder = SpeculativeDecoder(small_pair, POLICY, budget="auto")
    assert decoder.policy == Budget(POLICY, costs=costs)
    monkeypatch.setattr(store, "device_name", lambda _device: "another")
    assert path_of(small_pair, POLICY) != path


def test_costs_of_an_older_format_are_measured_anew(small_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FORMAT", store.FORMAT - 1)
    path = path_of(small_pair, POLICY)
    path.parent.mkdir()
    path.write_text("{}")
    monkeypatch.undo()
    monkeypatch.setenv("C2T_CACHE", str(path.parent))
    prompts: list[Prompt] = []
    monkeypatch.setattr(
        store, "measure_and_store", lambda pair, policy, given, **_: prompts.extend(given) or toy_costs(2)
    )
    costs_of(small_pair, POLICY)
    assert len(prompts) > 16, "of the default pair, as this one brings none"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: "{}", "key is missing"),
        (lambda text: text[:50], "no JSON"),
        (lambda text: text.replace('"policy"', '"law"'), "costs of another machine, pair or policy"),
        (lambda text: json.dumps({**json.loads(text), "costs": None}), "costs"),
        (lambda text: text.replace('"per_row": ', '"per_row": -1'), "positive numbers of seconds"),
    ],
)
def test_a_damaged_file_is_one_clear_line(small_pair: Pair, quick: Path, damage, message: str) -> None:
    path = path_of(small_pair, POLICY)
    path.parent.mkdir()
    entry = {"key": store._key(small_pair, POLICY), "costs": store._as_json(toy_costs(2))}
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


@pytest.mark.parametrize(("worked", "busy"), [(9.0, False), (7.0, True)])
def test_costs_of_a_busy_machine_are_not_stored(
    small_pair: Pair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    worked: float,
    busy: bool,
) -> None:
    """They may call large trees cheap."""
    clocks = SimpleNamespace(
        perf_counter=itertools.cycle([0.0, 10.0]).__next__, process_time=itertools.cycle([0.0, worked]).__next__
    )
    monkeypatch.setattr(store, "time", clocks)
    monkeypatch.setattr(store, "measure", lambda *_: toy_costs(2))
    monkeypatch.setenv("C2T_CACHE", str(tmp_path))
    monkeypatch.setattr(store, "timing_prompts", lambda _: [])
    costs_of(small_pair, POLICY)
    begun, line = capsys.readouterr().err.splitlines()
    assert begun.startswith("measuring the costs of rounds for eagle2")
    assert ("run c2t tune --policies budget:of=eagle2" in line) == busy
    assert path_of(small_pair, POLICY).exists() != busy, "those of a busy machine are used once"
    measure_and_store(small_pair, POLICY, [Prompt(0, "", ["a"], "f")])
    assert ("run c2t tune --policies budget:of=eagle2" in capsys.readouterr().err) == busy
    assert path_of(small_pair, POLICY).exists(), "who asks for it gets them"
