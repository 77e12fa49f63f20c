"""Verdicts: whether a conclusion of a paper holds on a pair.

A conclusion is a comparison of two figures of the same texts. It holds, or does not, where the 95 % interval of a
paired bootstrap over the texts lies on one side of the limit; where the limit is inside, it is not decided.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from c2t.study.interval import Interval, bootstrap
from c2t.study.pareto import gamma_at
from pipelines.papers.study import Counted

HOLDS, FAILS, OPEN = "holds", "does not hold", "is not decided"


class Conclusion(NamedTuple):
    """Statement of a paper, and the verdict of the counts on it.

    figures: what was compared. more: where it is not decided, how many times as many texts would decide it if the
    figure stayed as it is; None where there is no interval to tell it from, or the figure lies on the limit.
    """

    statement: str
    verdict: str
    comparison: str
    figures: tuple[Interval, ...] = ()
    more: float | None = None


def interval(counted: Sequence[Counted], figure: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Interval:
    """Return `figure(tau, gamma)` with its interval; both arguments are (resamples, policies), gamma per round."""
    points = [count.point for count in counted]
    counts = np.array([getattr(point, name) for name in ("rounds", "accepted", "verified") for point in points], float)

    def of(sums: Float[np.ndarray, "3P R"]) -> Float[np.ndarray, "1 R"]:
        rounds, accepted, verified = sums.reshape(3, len(points), -1).transpose(0, 2, 1)
        return np.asarray(figure(accepted / rounds, verified / rounds))[None]

    (result,) = bootstrap(counts, of)
    return result


def tau_ratio(first: Counted, second: Counted) -> Interval:
    """Return the ratio of the first's tau to the second's."""
    return interval([first, second], lambda tau, _: tau[:, 0] / tau[:, 1])


def gamma_ratio(first: Counted, second: Counted) -> Interval:
    """Return the ratio of the tokens verified for the same texts, of the first to the second."""
    counts = np.array([first.point.verified, second.point.verified], dtype=float)
    (ratio,) = bootstrap(counts, lambda sums: sums[:1] / sums[1:])
    return ratio


def at_equal_tau(subject: Sequence[Counted], rival: Sequence[Counted], goal: Counted) -> Interval:
    """Return gamma of the subject's front over the rival's, both at the tau of `goal` (in every resample its own)."""
    split = len(subject)

    def ratio(tau: np.ndarray, gamma: np.ndarray) -> np.ndarray:
        mine, theirs = (
            front(tau[:, part], gamma[:, part], tau[:, -1]) for part in (slice(split), slice(split, tau.shape[1] - 1))
        )
        return mine / theirs

    return interval([*subject, *rival, goal], ratio)


def front(
    tau: Float[np.ndarray, "R P"], gamma: Float[np.ndarray, "R P"], goal: Float[np.ndarray, " R"]
) -> Float[np.ndarray, " R"]:
    """Return gamma of each row's front at that row's own tau, NaN out of its reach."""
    rows = zip(tau[:, None], gamma[:, None], goal, strict=True)
    return np.array([gamma_at(t, g, [wanted])[0, 0] for t, g, wanted in rows])


def below(statement: str, what: str, figure: Interval, limit: float = 1.0) -> Conclusion:
    """Judge a statement that the figure is below `limit`. A gamma whose tau is out of reach counts as not below it."""
    return _judge(statement, f"{what} = {figure}, holds below {limit:g}", figure, limit, -1, FAILS)


def above(statement: str, what: str, figure: Interval, limit: float = 1.0) -> Conclusion:
    """Judge a statement that the figure is above `limit`. A gamma whose tau is out of reach counts as above it."""
    return _judge(statement, f"{what} = {figure}, holds above {limit:g}", figure, limit, 1, HOLDS)


def _judge(statement: str, comparison: str, figure: Interval, limit: float, sign: int, unreached: str) -> Conclusion:
    if figure.estimate is None:
        return Conclusion(statement, unreached, comparison, (figure,))
    ends = [sign * (end - limit) for end in (figure.low, figure.high) if end is not None]
    if len(ends) == 2 and min(ends) > 0:
        return Conclusion(statement, HOLDS, comparison, (figure,))
    if len(ends) == 2 and max(ends) <= 0:
        return Conclusion(statement, FAILS, comparison, (figure,))
    return Conclusion(statement, OPEN, comparison, (figure,), times_as_many(figure, limit))


def times_as_many(figure: Interval, limit: float) -> float | None:
    """Return how many times as many texts the interval needs to end at the limit, if its width falls with the root of
    their number."""
    distance = abs(figure.estimate - limit)
    if figure.low is None or figure.high is None or not distance:
        return None
    width = figure.estimate - figure.low if figure.estimate > limit else figure.high - figure.estimate
    return (width / distance) ** 2


def fact(statement: str, holds: bool | None, comparison: str) -> Conclusion:
    """Return a conclusion from figures without a sampling error of their own: of one network, or of clocks. None means
    that there is too little to compare."""
    return Conclusion(statement, OPEN if holds is None else HOLDS if holds else FAILS, comparison)


def apart(statement: str, what: str, smaller: Interval, larger: Interval) -> Conclusion:
    """Judge a statement that the first figure is smaller than the second, which was counted on another pair. It holds
    where the intervals do not touch."""
    comparison = f"{what} = {smaller} and {larger}, holds if the first interval is below the second"
    if None in (*smaller, *larger):
        return Conclusion(statement, OPEN, comparison, (smaller, larger))
    verdict = HOLDS if smaller.high < larger.low else FAILS if larger.high <= smaller.low else OPEN
    return Conclusion(statement, verdict, comparison, (smaller, larger))


def all_of(statement: str, parts: Sequence[Conclusion]) -> Conclusion:
    """Judge a statement about several figures: it holds if all do, fails if one does."""
    verdicts = {part.verdict for part in parts}
    verdict = FAILS if FAILS in verdicts else OPEN if OPEN in verdicts else HOLDS
    needed = [part.more for part in parts if part.verdict == OPEN]
    more = max(needed) if verdict == OPEN and None not in needed else None
    figures = tuple(figure for part in parts for figure in part.figures)
    return Conclusion(statement, verdict, "; ".join(part.comparison for part in parts), figures, more)
