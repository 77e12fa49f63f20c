"""Correction of measured costs by the rounds that are played.

A machine's memory and its arithmetic do not slow down together, least of all where others use them: trees of a size
that paid when the costs were measured may be too large, or too small, an hour later.
"""

import math

import numpy as np
from jaxtyping import Float, Int

MEMORY = 64  # rounds that the fit goes back
# What the spread of sizes is added to before the slope is taken, so that rounds of nearly one size say nothing: 64
# rounds whose sizes are an eighth above and below their mean count half.
PRIOR = 1.0
OUTLIER = 0.3  # logarithm of what a round may be off the line: beyond it the machine did something else
EVERY = 16  # rounds after which the line is fitted again
STEEPEST = 1.0


class Drift:
    """How much more rounds take than their costs say, by the tokens that they verify: a straight line between the
    logarithms of both, fitted to the rounds played, the last ones most.

    Only its slope counts: what slows all alike changes no decision. It is fitted to whole rounds and corrects the
    target's forwards, most of a round, so it finds a little less than their drift. fits: how often it was fitted.
    """

    def __init__(self) -> None:
        self.fits, self._rounds = 0, 0
        self._sums = (0.0,) * 5  # by hand: this is done between two rounds, and numpy's small arrays take longer
        self._slope = self._middle = 0.0

    def add(self, tokens: int, ratio: float) -> None:
        """Take in a round that verified so many tokens of all rows, and took `ratio` times what its costs say."""
        size, more = math.log(tokens), math.log(ratio)
        weight, sizes, total, squares, products = self._sums
        if weight:
            line = total / weight + self._slope * (size - self._middle)
            more = min(max(more, line - OUTLIER), line + OUTLIER)
        kept = 1 - 1 / MEMORY
        self._sums = (
            *(kept * weight + 1.0, kept * sizes + size, kept * total + more),
            *(kept * squares + size * size, kept * products + size * more),
        )
        self._rounds += 1
        if self._rounds % EVERY == 0:
            self._fit()

    def over(self, sizes: Int[np.ndarray, " n"] | Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return what the seconds of forwards over so many tokens are to be multiplied by."""
        return np.exp(self._slope * (np.log(np.maximum(sizes, 1)) - self._middle))

    def _fit(self) -> None:
        weight, size, more, squares, products = self._sums
        slope = (products - size * more / weight) / (squares - size * size / weight + PRIOR)
        self._slope, self._middle = min(max(slope, -STEEPEST), STEEPEST), size / weight
        self.fits += 1
