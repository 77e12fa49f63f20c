"""Intervals: of figures whose spread is known, paired, and where a figure is not always defined."""

import numpy as np
import pytest

from c2t.study.interval import Interval, bootstrap
from tests.rounding import figure


def ratio(sums: np.ndarray) -> np.ndarray:
    return sums[:1] / sums[1:2]


def test_the_interval_of_a_mean_is_that_of_its_standard_error() -> None:
    values = np.random.default_rng(3).normal(5, 2, 400)
    (found,) = bootstrap(np.stack([values, np.ones(400)]), ratio, resamples=4000)
    error = values.std() / 20
    assert found.estimate == figure(values.mean())
    assert found.low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert found.high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)


def test_resamples_are_the_same_for_all_counts_and_in_every_call() -> None:
    one = np.random.default_rng(0).uniform(1, 9, 30)
    counts = np.stack([2 * one, one])
    assert bootstrap(counts, ratio) == [Interval(*[figure(2)] * 3)]
    alone = [bootstrap(np.stack([row, np.ones(30)]), ratio, seed=7)[0] for row in counts]
    assert alone[0] == figure([2 * value for value in alone[1]])
    assert bootstrap(np.stack([one, np.ones(30)]), ratio, seed=8)[0].low != alone[1].low
    together = bootstrap(np.stack([*counts, np.ones(30)]), lambda sums: sums[:2] / sums[2:], seed=7)
    assert together == [figure(interval) for interval in alone]


def test_what_is_not_defined_has_no_estimate_and_what_seldom_is_no_interval() -> None:
    def above(limit: float):
        return lambda sums: np.where(sums[:1] > limit, sums[:1], np.nan)

    counts = np.arange(20.0)[None]  # sums to 190; a resample's sum has a deviation of 26
    assert bootstrap(counts, above(200)) == [Interval(None, None, None)]
    assert bootstrap(counts, above(180)) == [Interval(190, None, None)]
    (found,) = bootstrap(counts, above(120))  # all but a few in a thousand
    assert 120 < found.low < 150 < 230 < found.high < 260


def test_one_prompt_has_no_interval() -> None:
    assert bootstrap(np.array([[4.0], [2.0]]), ratio) == [Interval(2, None, None)]


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (Interval(None, None, None), "out of reach"),
        (Interval(0.5, None, None), "0.500 (no interval)"),
        (Interval(0.5, 0.4, 0.61), "0.500 (95 % interval 0.400 to 0.610)"),
    ],
)
def test_text(interval: Interval, text: str) -> None:
    assert str(interval) == text
