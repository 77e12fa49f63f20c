"""Rounds that are played correct the costs by which a budget chooses the size of its trees, and nothing in replay."""

from dataclasses import replace

import numpy as np
import pytest

from c2t.decoding import Step
from c2t.models.draft import DraftSession
from c2t.policies import Budget, Eagle2, pace
from c2t.policies.drift import EVERY, Drift
from c2t.policies.pace import Pace, Ways
from c2t.policies.round_costs import Curve, RoundCosts, RowCosts
from c2t.replay.lockstep import replay, write_continuations
from c2t.sampling import Sampling
from c2t.target_verifier import generate
from tests.every_policy import toy_costs
from tests.rounding import roughly
from tests.toys import PROMPTS, emitted, toy_drafts, toy_target

SIZES = np.array([4, 8, 16])


def played(slope: float, level: float = 1.0, sizes: tuple[int, ...] = (4, 8, 12, 16), rounds: int = 200) -> Drift:
    """A drift after rounds that took `level` (size / 8)^slope of their costs, some of them much longer."""
    drift, random = Drift(), np.random.default_rng(3)
    for _ in range(rounds):
        size = int(random.choice(sizes))
        slowed = 5 if random.random() < 0.03 else 1
        drift.add(size, level * (size / 8) ** slope * random.normal(1, 0.05) * slowed)
    return drift


@pytest.mark.parametrize("level", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("slope", [-0.4, 0.0, 0.4])
def test_the_slope_is_found_and_the_level_is_nothing(slope: float, level: float) -> None:
    found = played(slope, level).over(SIZES)
    assert found[2] / found[0] == roughly(4**slope, 0.1)
    assert found[0] < 1.35, "a machine that is slow alike for all sizes corrects none"


def test_a_slope_is_found_by_few_rounds_that_are_much_smaller() -> None:
    """They lie further below the mean than any outlier may, and on the line."""
    found = played(0.3, sizes=(40,) * 9 + (4,), rounds=400).over(np.array([4, 40]))
    assert found[1] / found[0] == roughly(10**0.3, 0.1)


def test_a_machine_that_becomes_twice_as_slow_keeps_the_slope() -> None:
    drift, random = played(0.4), np.random.default_rng(4)
    for _ in range(40):
        size = int(random.choice((4, 8, 12, 16)))
        drift.add(size, 2 * (size / 8) ** 0.4)
        found = drift.over(SIZES)
        assert found[2] / found[0] == roughly(4**0.4, 0.15)


def test_rounds_of_one_size_say_nothing() -> None:
    assert played(0.4, 3.0, sizes=(8,)).over(SIZES) == roughly(np.ones(3), 0.02)


def test_nothing_is_corrected_before_a_fit() -> None:
    assert played(0.4, rounds=EVERY - 1).over(SIZES).tolist() == [1.0, 1.0, 1.0]


def test_what_a_machine_does_now_counts() -> None:
    drift = played(0.4)
    for _ in range(200):
        for size in (4, 16):
            drift.add(size, (size / 8) ** -0.4)
    found = drift.over(SIZES)
    assert found[2] / found[0] == roughly(4**-0.4, 0.1)


def test_arrays_follow_the_drift_and_costs_without_one_stay() -> None:
    drift = Drift()
    corrected, plain = RowCosts(toy_costs(2), 4, drift), RowCosts(toy_costs(2), 4)
    before = corrected.yields(20, 0).verify
    assert np.array_equal(before, plain.yields(20, 0).verify)
    for _ in range(EVERY):
        drift.add(4, 1.0)
        drift.add(16, 2.0)
    after = corrected.yields(20, 0).verify
    assert after[16] / after[4] > 1.2 * before[16] / before[4]
    assert np.array_equal(plain.yields(20, 0).verify, before)


class Machine:
    """A clock on which a round takes what these costs say."""

    def __init__(self, costs: RoundCosts):
        self.costs, self.now = costs, 0.0

    def perf_counter(self) -> float:
        return self.now

    def end(self, step: Step) -> None:
        verified = int(step.tree.sizes.sum())
        self.now += RowCosts(self.costs, len(step.rows)).predicted(int(step.draft_passes.max()), verified)


def test_trees_become_as_small_as_the_machine_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The costs were measured where a token more is for nothing, and rounds are played where it is not. The text is the
    same, and replay goes by the costs."""
    believed = toy_costs(2, a_token=0.001)
    dear = believed._replace(verify=Curve((1, 101), (1.0, 21.0)))
    monkeypatch.setattr(Ways, "draft", lambda *_: True)
    sizes, texts = [], []
    for costs in (believed, dear):
        machine = Machine(costs)
        monkeypatch.setattr(pace, "time", machine)
        monkeypatch.setattr(DraftSession, "end", lambda _, step, machine=machine: machine.end(step))
        budget = Budget(Eagle2(K=3, levels=2, N=None), costs=believed, pace=Pace())
        drafts, settings = toy_drafts()["perturbed"], {"max_new_tokens": 160, "sampling": Sampling()}
        steps = list(generate(toy_target(), drafts, budget, PROMPTS, **settings))
        texts.append([text[:160] for text in emitted(steps, len(PROMPTS))])
        sizes.append([int(step.tree.sizes.sum()) for step in steps[1:] if len(step.rows) == len(PROMPTS)])
    assert np.mean(sizes[1][4 * EVERY :]) < 0.8 * np.mean(sizes[0][4 * EVERY :])
    assert texts[0] == texts[1]
    written = write_continuations(toy_target(), PROMPTS, max_new_tokens=20, beyond=3, sampling=Sampling())
    with_pace, without = (
        [int(step.tree.sizes.sum()) for step in replay(drafts, each, written) if step.tree is not None]
        for each in (budget, replace(budget, pace=None))
    )
    assert with_pace == without
