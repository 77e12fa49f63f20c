"""A figure with its 95 % interval, by a bootstrap over prompts. It is paired: all policies are resampled alike."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

RESAMPLES = 1000
LEVEL = 0.95  # confidence level of the interval
LEAST_DEFINED = 0.95  # share of the resamples in which a figure must be defined to have an interval

Sums = Float[np.ndarray, "C R"]
Figures = Float[np.ndarray, "F R"]


class Interval(NamedTuple):
    """Figure and the ends of its 95 % interval. estimate: None where the figure is not defined (a tau out of reach).
    low, high: None also where too many resamples do not define it, and where there is one prompt only."""

    estimate: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.estimate is None:
            return "out of reach"
        if self.low is None:
            return f"{self.estimate:.3f} (no interval)"
        return f"{self.estimate:.3f} (95 % interval {self.low:.3f} to {self.high:.3f})"


def bootstrap(
    counts: Float[np.ndarray, "C n"],
    figures: Callable[[Sums], Figures],
    resamples: int | None = None,
    seed: int = 0,
) -> list[Interval]:
    """Return each figure of these prompts with the percentile interval of its bootstrap.

    counts: C counts of each of n prompts. figures: function from sums of the counts over prompts, a column for each
    resample, to F figures, NaN or infinite where one is not defined; it is called once for the prompts as they are and
    once for all resamples. resamples: their number, RESAMPLES by default. The same seed and n give the same resamples
    in every call.
    """
    from scipy import stats  # noqa: PLC0415 - of an extra; reports read Interval without it

    prompts = np.arange(counts.shape[1])

    def resampled(resamples: Int[np.ndarray, "R n"], axis: int = -1) -> Figures:
        return _finite(figures, counts @ _times(resamples).T)

    estimates = _finite(figures, counts.sum(1, keepdims=True))[:, 0]
    if len(prompts) < 2:
        return [Interval(_number(value), None, None) for value in estimates]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # a figure that is NaN somewhere: see _interval
        result = stats.bootstrap(
            (prompts,),
            resampled,
            n_resamples=resamples or RESAMPLES,
            vectorized=True,
            confidence_level=LEVEL,
            method="percentile",
            rng=np.random.default_rng(seed),
        )
    return [_interval(*pair) for pair in zip(estimates, result.bootstrap_distribution, strict=True)]


def _interval(estimate: float, values: Float[np.ndarray, " R"]) -> Interval:
    """Return the interval of the resamples that define the figure: scipy gives NaN if a single one does not."""
    defined = values[~np.isnan(values)]
    if np.isnan(estimate) or len(defined) < LEAST_DEFINED * len(values):
        return Interval(_number(estimate), None, None)
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(estimate), float(low), float(high))


def _times(resamples: Int[np.ndarray, "R n"]) -> Float[np.ndarray, "R n"]:
    """Return how often each resample has each prompt: sums over prompts become one product of matrices."""
    rows, prompts = resamples.shape
    index = resamples + prompts * np.arange(rows)[:, None]
    return np.bincount(index.ravel(), minlength=rows * prompts).reshape(rows, prompts).astype(float)


def _finite(figures: Callable[[Sums], Figures], sums: Sums) -> Figures:
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.asarray(figures(sums), dtype=float)
    return np.where(np.isfinite(values), values, np.nan)  # division by zero leaves a figure undefined


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
