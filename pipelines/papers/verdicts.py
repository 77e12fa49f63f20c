"""Whether a conclusion of a paper holds on a pair.

A conclusion is a comparison of two figures of the same texts. It holds, or does not, where the 95 % interval of a
paired bootstrap over the texts lies on one side of the limit; where the limit is inside, it is not decided.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from c2t.study.pareto import MOST, gamma_at, resample, tau_gamma
from pipelines.papers.study import Counted

HOLDS, FAILS, OPEN = "holds", "does not hold", "is not decided"


class Estimate(NamedTuple):
    """A figure and its 95 % interval; None where it is not defined (a tau out of reach)."""

    value: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.value is None:
            return "out of reach"
        if self.low is None:
            return f"{self.value:.3f} (no interval: out of reach in many resamples)"
        return f"{self.value:.3f} (95 % interval {self.low:.3f} to {self.high:.3f})"


class Conclusion(NamedTuple):
    """A statement of the paper, and what the counts say of it."""

    statement: str
    verdict: str
    comparison: str


def estimate(counted: Sequence[Counted], figure: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Estimate:
    """`figure(tau, gamma)`, each resamples x policies and gamma per round, with its paired bootstrap interval."""
    points = [one.point for one in counted]
    tau, gamma = tau_gamma(points, resample(len(points[0].rounds), 1000))
    with np.errstate(invalid="ignore", divide="ignore"):
        return _interval(np.asarray(figure(tau, gamma), dtype=float))


def _interval(values: Float[np.ndarray, " R"]) -> Estimate:
    """The estimate in row 0 and the interval of the resamples in the others; NaN where it is not defined."""
    drawn = values[1:][~np.isnan(values[1:])]
    if np.isnan(values[0]):
        return Estimate(None, None, None)
    if len(drawn) < MOST * (len(values) - 1):
        return Estimate(float(values[0]), None, None)
    return Estimate(float(values[0]), *map(float, np.percentile(drawn, [2.5, 97.5])))


def tau_ratio(one: Counted, other: Counted) -> Estimate:
    """tau of the first over that of the second."""
    return estimate([one, other], lambda tau, _: tau[:, 0] / tau[:, 1])


def gamma_ratio(one: Counted, other: Counted) -> Estimate:
    """All tokens verified for the same texts, of the first over the second."""
    return mean_ratio(one.point.verified, other.point.verified)


def mean_ratio(one: Sequence[float], other: Sequence[float]) -> Estimate:
    """The first's mean over the second's; a figure of every text each."""
    sums = resample(len(one), 1000) @ np.array([one, other], dtype=float).T
    return _interval(np.divide(sums[:, 0], sums[:, 1], out=np.full(len(sums), np.nan), where=sums[:, 1] > 0))


def at_equal_tau(subject: Sequence[Counted], rival: Sequence[Counted], goal: Counted) -> Estimate:
    """gamma of the subject's front over the rival's, both at the tau of `goal` (in every resample its own)."""
    split = len(subject)

    def ratio(tau: np.ndarray, gamma: np.ndarray) -> np.ndarray:
        mine, theirs = (
            front(tau[:, part], gamma[:, part], tau[:, -1]) for part in (slice(split), slice(split, tau.shape[1] - 1))
        )
        return mine / theirs

    return estimate([*subject, *rival, goal], ratio)


def front(
    tau: Float[np.ndarray, "R P"], gamma: Float[np.ndarray, "R P"], goal: Float[np.ndarray, " R"]
) -> Float[np.ndarray, " R"]:
    """gamma of each row's front at that row's own tau, NaN out of its reach."""
    rows = zip(tau[:, None], gamma[:, None], goal, strict=True)
    return np.array([gamma_at(t, g, [wanted])[0, 0] for t, g, wanted in rows])


def below(statement: str, what: str, found: Estimate, limit: float = 1.0) -> Conclusion:
    """The statement means: the figure is below `limit`; out of reach means that it does not hold."""
    return _judge(statement, f"{what} = {found}, holds below {limit:g}", found, limit, -1, FAILS)


def above(statement: str, what: str, found: Estimate, limit: float = 1.0) -> Conclusion:
    """The statement means: the figure is above `limit`; a gamma for which the tau is out of reach is."""
    return _judge(statement, f"{what} = {found}, holds above {limit:g}", found, limit, 1, HOLDS)


def _judge(statement: str, comparison: str, found: Estimate, limit: float, sign: int, unreached: str) -> Conclusion:
    if found.value is None:
        return Conclusion(statement, unreached, comparison)
    ends = [sign * (end - limit) for end in (found.low, found.high) if end is not None]
    if len(ends) == 2 and min(ends) > 0:
        return Conclusion(statement, HOLDS, comparison)
    return Conclusion(statement, FAILS if len(ends) == 2 and max(ends) <= 0 else OPEN, comparison)


def apart(statement: str, what: str, smaller: Estimate, larger: Estimate) -> Conclusion:
    """The statement means: the first figure is smaller than the second, which was counted on another pair. Holds where
    the intervals do not touch."""
    comparison = f"{what} = {smaller} and {larger}, holds if the first interval is below the second"
    if None in (*smaller, *larger):
        return Conclusion(statement, OPEN, comparison)
    verdict = HOLDS if smaller.high < larger.low else FAILS if larger.high <= smaller.low else OPEN
    return Conclusion(statement, verdict, comparison)


def all_of(statement: str, parts: Sequence[Conclusion]) -> Conclusion:
    """A statement about several figures: holds if all do, fails if one does."""
    verdicts = {part.verdict for part in parts}
    verdict = FAILS if FAILS in verdicts else OPEN if OPEN in verdicts else HOLDS
    return Conclusion(statement, verdict, "; ".join(part.comparison for part in parts))
