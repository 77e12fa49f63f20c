"""gamma at equal acceptance length (tau): fronts of policy families, read between their points, with paired bootstrap
intervals.

The front of a family is its lower envelope: a point is on it if no other one of the family has at least its tau with
at most its gamma. Between neighbouring points of the front gamma is interpolated linearly in tau. A tau that is
outside the range of the family's points is not reached. Shapes: R resamples, P points of a family, n prompts, t taus.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from c2t.errors import InputError
from c2t.study.interval import Interval, bootstrap
from c2t.study.points import Point

SUBJECT, LIMIT = "c2t", "oracle"  # the oracle bounds every family and is no rival
RIVALS_TOGETHER = "all rivals together"
MOST_TAUS = 5  # of a comparison without given taus


class Ratio(NamedTuple):
    """The subject's gamma over a rival's at one tau. gamma, rival_gamma: None where it does not reach the tau; ratio:
    both fronts, rebuilt from the same resampled prompts."""

    tau: float
    gamma: float | None
    rival_gamma: float | None
    ratio: Interval


class Comparison(NamedTuple):
    """subject: the family compared; taus; ratios: rival -> one Ratio per tau, all rivals together (the least of their
    fronts and of their common one), the oracle last if there is one. strongest: the rival with the smallest gamma at
    most of the taus that the subject reaches (of equals, the one of smaller mean log gamma there); None without a
    common tau."""

    subject: str
    taus: tuple[float, ...]
    ratios: dict[str, list[Ratio]]
    strongest: str | None


def on_front(tau: Float[np.ndarray, "R P"], gamma: Float[np.ndarray, "R P"]) -> Bool[np.ndarray, "R P"]:
    """Return True for the points that no other point of their row beats."""
    no_worse = (tau[:, None] >= tau[:, :, None]) & (gamma[:, None] <= gamma[:, :, None])
    better = (tau[:, None] > tau[:, :, None]) | (gamma[:, None] < gamma[:, :, None])
    return ~(no_worse & better).any(2) & ~np.isnan(tau)


def gamma_at(
    tau: Float[np.ndarray, "R P"], gamma: Float[np.ndarray, "R P"], taus: Sequence[float]
) -> Float[np.ndarray, "R t"]:
    """Return gamma of each row's front at these taus, NaN where no point has at most or none has at least that tau."""
    front = on_front(tau, gamma)[:, None]
    wanted = np.asarray(taus, dtype=float)[None, :, None]
    below = np.where(front & (tau[:, None] <= wanted), tau[:, None], -np.inf)
    above = np.where(front & (tau[:, None] >= wanted), tau[:, None], np.inf)
    left, right = below.argmax(2), above.argmin(2)
    start, end = below.max(2), above.min(2)
    reached = (tau[:, None] <= wanted).any(2) & np.isfinite(end)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(end > start, (wanted[..., 0] - start) / (end - start), 0.0)
    share = np.where(np.isfinite(start), share, 1.0)  # all points below are beaten by the front's first one
    rows = np.arange(len(tau))[:, None]
    return np.where(reached, gamma[rows, left] * (1 - share) + gamma[rows, right] * share, np.nan)


def families(points: Iterable[Point]) -> dict[str, list[Point]]:
    """Return the points of each family, in order of appearance."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.family, []).append(point)
    return groups


def front(points: Sequence[Point]) -> list[Point]:
    """Return the points on their common front, by tau."""
    chosen = on_front(np.array([[point.tau for point in points]]), np.array([[point.gamma for point in points]]))[0]
    return sorted((point for point, on in zip(points, chosen, strict=True) if on), key=lambda point: point.tau)


def shared_taus(points: Sequence[Point], rivals: Sequence[Point]) -> list[float]:
    """Return up to MOST_TAUS round numbers in the range of tau that both lists of points reach; [] if there is none.

    Their distance is 1, 2, 2.5 or 5 times a power of ten, the smallest that gives so few. A rival has no ratio at a tau
    that it does not reach, which is no reason to drop the tau for other rivals.
    """
    reaches = [[point.tau for point in group] for group in (points, rivals)]
    if not all(reaches):
        return []
    low, high = max(map(min, reaches)), min(map(max, reaches))
    if high <= low:
        return [low] if high == low else []
    power = 10.0 ** math.floor(math.log10((high - low) / MOST_TAUS))
    for step in (power * factor for factor in (1, 2, 2.5, 5, 10, 20)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < MOST_TAUS:
            break
    # Rounding must not put the ends of the range out of reach.
    return [min(max(round(number * step, 12), low), high) for number in range(first, last + 1)]


def compare(
    points: Sequence[Point],
    subject: str = SUBJECT,
    taus: Sequence[float] | None = None,
    resamples: int | None = None,
    seed: int = 0,
) -> Comparison:
    """Return the subject's gamma over every other family's at equal acceptance length; taus default to `shared_taus`.

    The bootstrap is paired: the same resampled prompts for all families, whose fronts are rebuilt each time. Raises
    InputError for an unknown subject and for points that do not count the same prompts.
    """
    groups = families(points)
    if subject not in groups:
        raise InputError(f"no points of {subject!r} to compare; there are: {', '.join(groups) or 'none'}")
    if len({len(point.rounds) for point in points}) != 1:
        raise InputError("the points count different prompts; compare points of one condition only")
    rivals = {name: group for name, group in groups.items() if name not in (subject, LIMIT)}
    limit = {LIMIT: groups[LIMIT]} if LIMIT in groups and subject != LIMIT else {}
    if taus is None:
        taus = shared_taus(groups[subject], [point for group in (rivals or limit).values() for point in group])
    names = [*rivals, *([RIVALS_TOGETHER] if len(rivals) > 1 else []), *limit]
    if not taus:
        return Comparison(subject, (), {name: [] for name in names}, None)

    def figures(sums: Float[np.ndarray, "C R"]) -> Float[np.ndarray, "F R"]:
        """Return the subject's gammas, the rivals' and the ratios: one row per tau of each."""
        gamma, *rival_gammas = _gammas(points, subject, tuple(rivals), tuple(limit), taus, sums)
        return np.concatenate([gamma, *rival_gammas, *(gamma / rival for rival in rival_gammas)], axis=1).T

    counts = np.array([getattr(point, name) for name in ("rounds", "accepted", "verified") for point in points], float)
    intervals = bootstrap(counts, figures, resamples, seed)
    gammas, *rest = (intervals[start : start + len(taus)] for start in range(0, len(intervals), len(taus)))
    ratios = {
        name: [
            Ratio(tau, gamma.estimate, rival.estimate, interval)
            for tau, gamma, rival, interval in zip(taus, gammas, rival_gammas, quotients, strict=True)
        ]
        for name, rival_gammas, quotients in zip(names, rest[: len(names)], rest[len(names) :], strict=True)
    }
    return Comparison(subject, tuple(taus), ratios, _strongest({name: ratios[name] for name in rivals}))


def _gammas(
    points: Sequence[Point],
    subject: str,
    rivals: Sequence[str],
    limit: Sequence[str],
    taus: Sequence[float],
    sums: Float[np.ndarray, "C R"],
) -> list[Float[np.ndarray, "R t"]]:
    """Return gamma at the taus, from sums of the points' counts: the subject's, each rival's, that of all rivals
    together if there are several, the limit's."""
    rounds, accepted, verified = sums.reshape(3, len(points), -1)
    tau, gamma = (accepted / rounds).T, (verified / rounds).T

    def at(*families: str) -> Float[np.ndarray, "R t"]:
        chosen = [point.family in families for point in points]
        return gamma_at(tau[:, chosen], gamma[:, chosen], taus)

    separate = [at(rival) for rival in rivals]
    # A point of high gamma between two of another family raises the common front, so that a rival could beat it.
    together = [np.fmin.reduce([at(*rivals), *separate])] if len(rivals) > 1 else []
    return [at(subject), *separate, *together, *(at(name) for name in limit)]


def _strongest(ratios: Mapping[str, list[Ratio]]) -> str | None:
    estimates = {
        name: {ratio.tau: ratio.ratio.estimate for ratio in rows if ratio.ratio.estimate is not None}
        for name, rows in ratios.items()
    }
    estimates = {name: by_tau for name, by_tau in estimates.items() if by_tau}
    largest: dict[float, float] = {}
    for by_tau in estimates.values():
        largest |= {tau: max(ratio, largest.get(tau, 0)) for tau, ratio in by_tau.items()}

    def strength(name: str) -> tuple[int, float]:
        wins = sum(ratio == largest[tau] for tau, ratio in estimates[name].items())
        return wins, float(np.mean(np.log(list(estimates[name].values()))))

    return max(estimates, key=strength, default=None)
