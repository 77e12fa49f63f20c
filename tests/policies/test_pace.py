"""Real rounds decide whether a budget drafts, and the text stays what it is."""

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from c2t.batching import BatchDecoder
from c2t.models.loading import Pair
from c2t.policies import Budget, Eagle2, Plain, pace
from c2t.policies.pace import LONGEST, PATIENCE, SHORTEST, TRIAL, Pace, Ways
from c2t.policies.round_costs import DOUBT, Promise, RowCosts, best_promise
from c2t.policies.spec import parse
from c2t.replay.lockstep import replay, write_continuations
from c2t.sampling import Sampling
from c2t.target_verifier import generate
from tests.every_policy import toy_costs
from tests.rounding import within
from tests.small_pair import TURNS
from tests.toys import PROMPTS, emitted, toy_drafts, toy_target

ROWS = 8


@cache
def costs(rows: int) -> RowCosts:
    return RowCosts(toy_costs(2), rows)


def step(rows: int, count: torch.Tensor) -> SimpleNamespace:
    """A round with trees of three tokens."""
    tree = SimpleNamespace(alive=torch.ones(rows, 3, dtype=torch.bool), depth=torch.tensor([[-1, 0, 1]]))
    return SimpleNamespace(rows=[0] * rows, count=count, tree=tree, draft_passes=torch.full((rows,), 2))


class Machine:
    """A clock, and rounds that take what they are told to, some of them much longer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slower: Callable[[int], float], tokens: float):
        self.time, self.slower, self.tokens = 0.0, slower, tokens
        self.random = np.random.default_rng(5)
        monkeypatch.setattr(pace, "time", SimpleNamespace(perf_counter=lambda: self.time))

    def play(
        self,
        subject: Pace,
        promised: Promise,
        rounds: int,
        load: Callable[[int], float] = lambda _: 1.0,
        usual: Callable[[int], bool] = lambda _: True,
    ):
        """Play rounds; return the ways that they went and the tokens of a row per second, in units of plain ones."""
        ways, won, spent = [], 0.0, 0.0
        for number in range(rounds):
            way = subject.drafts(costs(ROWS), promised)
            count = self.random.binomial(2, (self.tokens - 1) / 2, ROWS) + 1 if way else np.ones(ROWS)
            seconds = (self.slower(number) if way else 1.0) * self.random.normal(1.0, 0.05)
            seconds *= 4 if self.random.random() < 0.03 else 1  # the machine does something else
            self.time += seconds * load(number)
            subject.end(step(ROWS, torch.tensor(count)), usual(number))
            ways.append(way)
            won, spent = won + count.mean(), spent + seconds
        return ways, won / spent * 1.09  # what a plain round takes on average


@pytest.mark.parametrize(
    ("promised", "slower", "ends"),
    [
        (Promise(1.6, 1.25), 1.25, True),  # as promised
        (Promise(1.6, 1.25), 1.9, False),
        (Promise(1.6, 1.9), 1.9, False),
        (Promise(1.6, 1.9), 1.25, True),
    ],
)
def test_ends_up_going_the_faster_way(
    monkeypatch: pytest.MonkeyPatch, promised: Promise, slower: float, ends: bool
) -> None:
    machine = Machine(monkeypatch, lambda _: slower, tokens=1.6)
    subject = Pace()
    machine.play(subject, promised, 600)
    ways, rate = machine.play(subject, promised, 2000)
    assert np.mean([way == ends for way in ways]) > 0.95
    assert rate > 0.97 * max(1.0, 1.6 / slower)


def test_a_machine_that_changes_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, lambda number: 1.25 if number < 1000 else 1.9, tokens=1.6)
    ways, _ = machine.play(Pace(), Promise(1.6, 1.25), 3000)
    assert np.mean(ways[:1000]) > 0.95
    assert np.mean(ways[2000:]) < 0.1


def test_a_load_that_slows_all_rounds_alike_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trial compares rounds of the same minute."""
    machine = Machine(monkeypatch, lambda _: 1.25, tokens=1.6)
    ways, _ = machine.play(Pace(), Promise(1.6, 1.25), 3000, load=lambda number: 3.0 if number // 300 % 2 else 1.0)
    assert np.mean(ways) > 0.95


@pytest.mark.parametrize(("rows", "drafts"), [(1, True), (2, True), (16, False)])
def test_a_fixed_batch_asks_for_more(rows: int, drafts: bool) -> None:
    """With trees its rows end further apart, which no round shows."""
    subject, promised, asked = Pace(), Promise(1.6, 1.36), []
    for _ in range(5):
        asked.append(subject.drafts(costs(rows), promised, fixed=True))
        subject.end(step(rows, torch.full((rows,), 2)))
    assert asked == [drafts] * 5


@pytest.mark.parametrize("drafts", [True, False])
def test_the_drift_hears_what_a_round_verified(drafts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of plain rounds nothing: they all have one size."""
    subject, promised = Pace(), Promise(1.6, 1.25 if drafts else 1.9)
    asked, heard = costs(ROWS), []
    monkeypatch.setattr(asked, "predicted", lambda levels, verified: heard.append((levels, verified)) or 1.0)
    for _ in range(2):  # a first round is not counted
        subject.drafts(asked, promised)
        subject.end(step(ROWS, torch.ones(ROWS)))
    assert heard == [(2, 3 * ROWS)] * drafts


@pytest.mark.parametrize(
    ("fixed", "slower", "tries"), [(True, 1.6, False), (True, 1.5, True), (False, 1.6, True), (False, 1.5, True)]
)
def test_a_fixed_batch_tries_no_trees_that_the_promise_does_not_carry(fixed: bool, slower: float, tries: bool) -> None:
    """A trial would pull its rows apart. Among requests that come and go it costs little."""
    ways = Ways(Promise(1.68, slower))
    drafted = []
    for _ in range(300):
        drafted.append(ways.draft(0.05, fixed))
        ways.add(drafted[-1], 1.7 if drafted[-1] else 1.0, 1.68)
    assert any(drafted) is tries
    assert sum(drafted) <= 2 * TRIAL


@pytest.mark.parametrize(("slower", "drafts"), [(1.45, True), (1.6, False)])
def test_a_trial_confirms_what_the_promise_alone_does_not(slower: float, drafts: bool) -> None:
    """Trees that promised 1.1 and were found to be 1.1 or 1.0 times as good, in a batch that asks for 1.05."""
    ways, drafted = Ways(Promise(1.6, 1.45)), []
    for _ in range(400):
        drafted.append(ways.draft(0.03, fixed=True))
        ways.add(drafted[-1], slower if drafted[-1] else 1.0, 1.6)
    assert not any(drafted[:SHORTEST])
    later = drafted[SHORTEST + 2 * TRIAL :]
    assert np.mean(later) == within(1.0 if drafts else 0.0, 2 * TRIAL / len(later)), "but for a trial of the other way"


def test_what_is_left_of_a_fixed_batch_asks_for_as_much_as_its_rows() -> None:
    subject, promised, asked = Pace(), Promise(1.6, 1.36), []
    for rows in (16, 1, 16, 1):
        asked.append(subject.drafts(costs(rows), promised, fixed=True))
        subject.end(step(rows, torch.full((rows,), 2)))
    assert asked == [False, True] * 2


def test_what_is_promised_by_far_is_tried_late(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, lambda _: 1.0, tokens=1.6)
    early, _ = machine.play(Pace(), Promise(1.6, 1.6 / 1.3), LONGEST + PATIENCE)
    late, _ = machine.play(Pace(), Promise(1.6, 1.6 / 1.5), LONGEST + PATIENCE)
    assert early.index(False) < 2 * SHORTEST
    assert late.index(False) >= LONGEST


def test_what_was_promised_by_far_and_did_not_come_is_tried_soon_again() -> None:
    """The tokens of one text are far fewer than promised. Those of others are not counted as long as nothing drafts."""
    ways, drafted = Ways(Promise(1.6, 1.1)), []
    for number in range(200):
        drafted.append(ways.draft(0.0, False))
        way = drafted[-1]
        ways.add(way, 1.1 if way else 1.0, (1.0 if number < 100 else 1.6) if way else 1.0)
    off = drafted.index(False)
    assert drafted[:off].count(True) < SHORTEST
    assert True in drafted[off : off + SHORTEST + 2]


def test_trials_become_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, subject = Machine(monkeypatch, lambda _: 1.0, tokens=1.6), Pace()
    first, _ = machine.play(subject, Promise(1.6, 1.25), 100)
    later, _ = machine.play(subject, Promise(1.6, 1.25), 10_000)
    assert 0.8 < np.mean(first) < 1
    assert 0.99 < np.mean(later) < 1


def test_a_trial_that_learns_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests begin to arrive in every round, just when the other way is tried."""
    machine = Machine(monkeypatch, lambda _: 1.0, tokens=1.6)
    calm = SHORTEST + 2
    ways, _ = machine.play(Pace(), Promise(1.6, 1.25), 1000, usual=lambda number: number < calm)
    assert 0 < ways.count(False) <= PATIENCE
    assert all(ways[-100:])


def test_short_texts_seldom_go_the_wrong_way() -> None:
    """They end before a trial does, and the next one does not begin it again."""
    subject, promised, ways = Pace(), Promise(1.6, 1.25), []
    for number in range(200 * 9):
        if number % 9 == 0:
            subject.restart()
        ways.append(subject.drafts(costs(1), promised, fixed=True))
        subject.end(step(1, torch.full((1,), 2)))
    assert 0 < ways.count(False) < 0.02 * len(ways)


def test_rounds_after_a_change_are_not_counted() -> None:
    """Neither the first one nor those with other rows than the round before: they do more than others."""
    subject, promised = Pace(), Promise(1.6, 1.2)

    def play(rows: int) -> None:
        subject.drafts(costs(rows), promised)
        subject.end(step(rows, torch.ones(rows)))

    for number in range(60):
        play(4 + number % 2)
    assert [len(ways.seconds[True]) for ways in subject._ways.values()] == [0, 0]
    play(5)
    assert [len(ways.seconds[True]) for ways in subject._ways.values()] == [0, 1]


def restless(monkeypatch: pytest.MonkeyPatch) -> Budget:
    """A budget whose rounds go now one way and now the other."""
    for name in ("TRIAL", "SHORTEST", "LONGEST"):
        monkeypatch.setattr(pace, name, 2)
    return Budget(Eagle2(K=3, levels=2, N=None), costs=toy_costs(2, a_token=0.01), pace=Pace())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_text_is_plain_decodings(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    settings = {"max_new_tokens": 24, "sampling": Sampling(temperature=temperature, seed=2)}
    plain = emitted(list(generate(toy_target(), None, Plain(), PROMPTS, **settings)), 4)
    steps = list(generate(toy_target(), toy_drafts()["perturbed"], restless(monkeypatch), PROMPTS, **settings))
    assert [text[:24] for text in emitted(steps, 4)] == [text[:24] for text in plain]
    drafted = [bool(step.draft_passes.any()) for step in steps[1:]]
    assert {True, False} == set(drafted)


def test_requests_that_come_and_go_have_the_text_that_they_have_alone(
    monkeypatch: pytest.MonkeyPatch, small_pair: Pair
) -> None:
    prompts = [small_pair.tokenizer(turn)["input_ids"] for turn in TURNS]
    settings = {"max_new_tokens": 16, "sampling": Sampling(temperature=0.0), "eos": small_pair.target.eos}
    alone = [
        emitted(list(generate(small_pair.target, None, Plain(), [prompt], **settings)), 1)[0][:16] for prompt in prompts
    ]
    batch = BatchDecoder(small_pair, restless(monkeypatch), max_rows=3)
    requests, drafted = [], set()
    for prompt in prompts:
        requests.append(batch.submit(prompt, 16))
        batch.step()
        drafted.add(bool(batch.last.draft_passes.any()))
    while batch.step():
        drafted.add(bool(batch.last.draft_passes.any()))
    for request, text in zip(requests, alone, strict=True):
        assert request.tokens == text[: len(request.tokens)]
        assert request.finish == "stop" or len(request.tokens) == 16
    assert drafted == {True, False}


def test_replay_goes_by_the_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the middle of a trial, and it leaves that as it was."""
    policy = restless(monkeypatch)
    settings = {"max_new_tokens": 24, "sampling": Sampling()}
    drafts = toy_drafts()["perturbed"]
    texts = write_continuations(toy_target(), PROMPTS, max_new_tokens=20, beyond=3, sampling=Sampling())
    for step in generate(toy_target(), drafts, policy, PROMPTS, **settings):
        if step.tree is None or step.draft_passes.any():
            continue
        before = {rows: dict(vars(ways)) for rows, ways in policy.pace._ways.items()}
        replayed = list(replay(drafts, policy, texts))
        assert all(each.draft_passes.any() for each in replayed[1:])
        assert {rows: dict(vars(ways)) for rows, ways in policy.pace._ways.items()} == before
        break
    else:
        raise AssertionError("no trial")


@pytest.mark.parametrize(("a_level", "asked_for"), [(2.0, False), (0.3, False), (0.15, True)])
def test_of_what_is_hopeless_the_clock_is_not_asked(a_level: float, asked_for: bool) -> None:
    costs = toy_costs(2, a_level=a_level)
    promised = best_promise(costs, len(PROMPTS)).gain
    assert (promised > 1) == asked_for
    assert promised < 1 + DOUBT, "the costs alone would draft"
    asked = Pace()
    budget = Budget(Eagle2(K=3, levels=2, N=None), costs=costs, pace=asked)
    steps = list(
        generate(toy_target(), toy_drafts()["perturbed"], budget, PROMPTS, max_new_tokens=80, sampling=Sampling())
    )
    assert not any(step.draft_passes.any() for step in steps), "nor does a fixed batch try what is nearly so"
    assert bool(asked._ways) == asked_for
    assert budget.never_drafts(len(PROMPTS)) == (best_promise(costs, 1).gain < 1)


def no_network(*_: str) -> None:
    raise AssertionError("no network is asked for")


def test_budgets_by_measured_costs_keep_pace() -> None:
    assert parse("budget:of=eagle2:levels=6,N=none", no_network, costs=lambda *_: toy_costs(6)).pace is not None
    assert parse("budget:nodes=8,of=eagle2:N=none", no_network).pace is None
