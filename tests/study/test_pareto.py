"""Fronts by hand, and bootstrap intervals on counts whose true ratio is known."""

import numpy as np
import pytest

from c2t.errors import InputError
from c2t.study.pareto import LIMIT, RIVALS_TOGETHER, compare, front, gamma_at, on_front, shared_taus
from c2t.study.points import Point
from tests.rounding import figure


def point(family: str, tau: float, gamma: float, prompts: int = 4, label: str = "", rounds: int = 10) -> Point:
    """The same tau and gamma on every prompt."""
    counts = ((rounds,) * prompts, (round(tau * rounds),) * prompts, (round(gamma * rounds),) * prompts)
    return Point(family, f"{family}:{label or f'{tau},{gamma}'}", label, None, *counts, (rounds,) * prompts)


def test_a_point_is_on_the_front_if_no_other_has_at_least_its_tau_with_at_most_its_gamma() -> None:
    tau = np.array([[1.0, 2.0, 1.5, 2.0, 3.0, 1.0]])
    gamma = np.array([[5.0, 10.0, 11.0, 12.0, 30.0, 5.0]])
    assert on_front(tau, gamma).tolist() == [[True, True, False, False, True, True]]
    points = [point("a", t, g) for t, g in zip(tau[0], gamma[0], strict=True)]
    assert [(p.tau, p.gamma) for p in front(points)] == [(1, 5), (1, 5), (2, 10), (3, 30)]


def test_gamma_between_the_points_of_a_front_and_none_beyond_its_ends() -> None:
    tau, gamma = np.array([[1.0, 2.0, 3.0, 2.5]]), np.array([[5.0, 10.0, 30.0, 40.0]])
    found = gamma_at(tau, gamma, [0.9, 1.0, 1.5, 2.0, 2.5, 3.0, 3.1])[0]
    assert found.tolist() == figure([np.nan, 5, 7.5, 10, 20, 30, np.nan])


def test_a_tau_below_the_front_but_not_below_all_points_costs_what_the_fronts_first_point_costs() -> None:
    tau, gamma = np.array([[1.0, 2.0, 3.0]]), np.array([[8.0, 7.0, 20.0]])
    assert gamma_at(tau, gamma, [0.9, 1.0, 1.5, 2.0])[0].tolist() == figure([np.nan, 7, 7, 7])


def test_rows_are_fronts_of_their_own() -> None:
    tau, gamma = np.array([[1.0, 2.0, 3.0], [1.0, 3.0, 2.0]]), np.array([[4.0, 8.0, 20.0], [4.0, 8.0, 20.0]])
    assert gamma_at(tau, gamma, [2.0])[:, 0].tolist() == figure([8.0, 6.0])


def test_ratios_at_equal_tau_by_hand() -> None:
    """The rival's front is (1, 10), (2, 20), (3, 60); the subject's (1, 5), (2.5, 20)."""
    rival = [point("eagle2", t, g) for t, g in ((1, 10), (2, 20), (3, 60), (2, 30))]
    subject = [point("c2t", t, g) for t, g in ((1, 5), (2.5, 20))]
    found = compare([*subject, *rival], resamples=20)
    assert found.taus == (1.0, 1.5, 2.0, 2.5)
    assert [r.rival_gamma for r in found.ratios["eagle2"]] == figure([10, 15, 20, 40])
    assert [r.ratio.estimate for r in found.ratios["eagle2"]] == figure([0.5, 10 / 15, 15 / 20, 0.5])
    # All prompts are alike, so resampling changes nothing.
    assert all(tuple(r.ratio) == figure((r.ratio.estimate,) * 3) for r in found.ratios["eagle2"])
    assert found.strongest == "eagle2"
    assert RIVALS_TOGETHER not in found.ratios, "there is one rival only"


def test_a_tau_not_reached_gives_none() -> None:
    points = [point("c2t", t, g) for t, g in ((1, 5), (3, 20))] + [
        point("chain", t, g) for t, g in ((0.5, 2), (1.2, 6))
    ]
    found = compare(points, taus=[0.6, 1.1, 2.0, 4.0], resamples=20).ratios["chain"]
    assert [r.ratio.estimate is None for r in found] == [True, False, True, True]
    assert (found[0].gamma, found[2].rival_gamma, found[2].ratio.low) == (None, None, None)
    assert found[0].rival_gamma is not None
    assert found[2].gamma is not None


@pytest.mark.parametrize(
    ("own", "others", "taus"),
    [
        ((0.3, 0.9), (0.2, 0.8), [0.4, 0.6, 0.8]),
        ((0.32, 0.9), (0.2, 0.78), [0.4, 0.5, 0.6, 0.7]),
        ((1, 3), (0.9, 2.6), [1, 1.5, 2, 2.5]),
        ((0.9, 2.52), (1.1, 1.7, 2.7), [1.5, 2, 2.5]),
        ((1.31, 1.34), (1, 2), [1.31, 1.32, 1.33, 1.34]),
        ((0, 12), (0, 40), [0, 2.5, 5, 7.5, 10]),
        ((1, 2), (2, 3), [2]),
        ((0.5,), (0.5, 0.7), [0.5]),
        ((0.5,), (0.6, 0.7), []),
        ((1, 2), (3, 4), []),
        ((1, 2), (), []),
    ],
    ids=str,
)
def test_the_default_taus_are_round_and_in_reach_of_both(own, others, taus) -> None:
    points = [[point("p", tau, 5, rounds=100) for tau in taus] for taus in (own, others)]
    found = shared_taus(*points)
    assert found == figure(taus)
    assert all(max(min(own), min(others)) <= tau <= min(max(own), max(others)) for tau in found)


def test_fronts_below_tau_1_are_compared() -> None:
    """The rival's front is (0.2, 4), (0.8, 10); the subject's (0.3, 3), (0.9, 9)."""
    points = [point("c2t", 0.3, 3), point("c2t", 0.9, 9), point("a", 0.2, 4), point("a", 0.8, 10)]
    found = compare(points, resamples=20)
    assert found.taus == (0.4, 0.6, 0.8)
    assert [r.ratio.estimate for r in found.ratios["a"]] == figure([4 / 6, 6 / 8, 8 / 10])
    assert found.strongest == "a"


def test_a_rival_that_stays_low_takes_no_tau_from_the_others() -> None:
    lines = {"c2t": (1, 2, 3), "a": (1, 2, 3), "low": (0.5, 1)}
    found = compare([point(name, tau, 5 * tau) for name, taus in lines.items() for tau in taus], resamples=20)
    assert found.taus == (1, 1.5, 2, 2.5, 3)
    assert [r.ratio.estimate is None for r in found.ratios["low"]] == [False, True, True, True, True]


def test_families_that_share_no_tau_have_nothing_to_compare() -> None:
    found = compare([point("c2t", 0.5, 5), point("a", 0.6, 6), point("b", 0.7, 6)])
    assert (found.taus, found.strongest) == ((), None)
    assert found.ratios == {"a": [], "b": [], RIVALS_TOGETHER: []}


def test_no_interval_where_many_resamples_do_not_reach_a_tau() -> None:
    """One prompt in four has all the tau: a resample without it does not reach 2."""
    uneven = Point("c2t", "c2t", "", None, (10,) * 4, (0, 0, 0, 100), (100,) * 4, (10,) * 4)
    low = point("c2t", 0, 2)
    [found] = compare([low, uneven, point("a", 0, 2), point("a", 9, 90)], taus=[2.0], resamples=200).ratios["a"]
    assert found.ratio.estimate is not None
    assert (found.ratio.low, found.ratio.high) == (None, None)


def test_the_strongest_rival_is_best_at_most_taus_and_the_oracle_is_nobodys_rival() -> None:
    lines = {"c2t": 10, "weak": 20, "strong": 8, LIMIT: 3}
    points = [point(name, t, g * t) for name, g in lines.items() for t in (1, 2, 3)]
    points.append(point("lucky", 2, 7))  # best at its only tau
    found = compare(points, resamples=10)
    assert found.strongest == "strong"
    assert list(found.ratios) == ["weak", "strong", "lucky", RIVALS_TOGETHER, LIMIT]
    together = [r.ratio.estimate for r in found.ratios[RIVALS_TOGETHER]]
    assert together[0] == figure(10 / 7), "what reaches tau 2 reaches tau 1"
    assert together[2] == figure(20 / 7)
    assert found.ratios[LIMIT][0].ratio.estimate == figure(10 / 3)


def sampled(family: str, size: float, seed: np.random.Generator, difficulty: np.ndarray) -> list[Point]:
    """Three settings whose gamma is `size` times 4 at tau 1, 10 at 2, 30 at 3 on average, on prompts of different
    difficulty, with noise of their own."""
    points = []
    for tau, gamma in ((0.5, 3), (1, 4), (2, 10), (3, 30), (3.5, 60)):
        rounds = seed.integers(15, 40, len(difficulty))
        accepted = seed.poisson(rounds * tau * difficulty)
        verified = (rounds * gamma * size * seed.uniform(0.8, 1.2, len(difficulty))).astype(int)
        counts = (tuple(map(int, column)) for column in (rounds, accepted, verified, rounds))
        points.append(Point(family, f"{family}:{tau}", "", None, *counts))
    return points


def test_intervals_cover_the_known_ratio() -> None:
    """80 experiments; a 95 % interval misses about 4 times, and more than 14 times with probability below 1e-4."""
    generator = np.random.default_rng(1)
    missed = {1.0: 0, 1.5: 0, 2.5: 0}
    widths = []
    for number in range(80):
        difficulty = generator.gamma(20, 1 / 20, 40)
        points = sampled("c2t", 0.8, generator, difficulty) + sampled("eagle2", 1.0, generator, difficulty)
        for found in compare(points, taus=list(missed), resamples=200, seed=number).ratios["eagle2"]:
            missed[found.tau] += not found.ratio.low <= 0.8 <= found.ratio.high
            widths.append(found.ratio.high - found.ratio.low)
    assert max(missed.values()) <= 14, missed
    assert sum(missed.values()) >= 1, "intervals that never miss are too wide"
    assert np.mean(widths) < 0.4


def test_pairing_narrows_the_interval() -> None:
    """Two families that differ by a constant factor on every prompt: the ratio is certain, however prompts differ."""
    generator = np.random.default_rng(0)
    difficulty = generator.gamma(2, 1 / 2, 30)
    base = sampled("a", 1.0, generator, difficulty)
    same = [p._replace(family="c2t", verified=tuple(2 * count for count in p.verified)) for p in base]
    for found in compare([*base, *same], taus=[1.0, 2.0], resamples=100).ratios["a"]:
        assert tuple(found.ratio) == figure((2, 2, 2))


def test_wrong_comparisons() -> None:
    with pytest.raises(InputError, match="no points of 'c2t' to compare; there are: a"):
        compare([point("a", 1, 5)])
    with pytest.raises(InputError, match="different prompts"):
        compare([point("c2t", 1, 5), point("a", 1, 5, prompts=3)])
