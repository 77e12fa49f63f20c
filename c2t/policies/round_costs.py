"""Seconds that a round of a batch takes on a machine, and the accepted tokens that its draft wins there: what a budget
over all requests decides by."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from c2t.errors import InputError
from c2t.kernels.budget import RoundModel

# By how much trees must be ahead of plain decoding: costs are of another minute of the machine, and yields of texts
# that a draft may know (on others smollm2's were 0.86 to 0.96 of them).
DOUBT = 0.15


class Curve(NamedTuple):
    """Seconds of a forward over each of `sizes` tokens, in rising order."""

    sizes: tuple[int | float, ...]
    seconds: tuple[float, ...]

    def at(self, sizes: Any) -> Any:
        """Return the seconds at a size, or at each of an array: interpolated between those measured, constant below the
        first one, and beyond the last one with the slope of the last two."""
        found = np.interp(sizes, self.sizes, self.seconds)
        if len(self.sizes) == 1:
            return found
        rise = (self.seconds[-1] - self.seconds[-2]) / (self.sizes[-1] - self.sizes[-2])
        return found + max(rise, 0.0) * np.maximum(sizes - self.sizes[-1], 0)


class Profile(NamedTuple):
    """Yield of a policy's drafts with 1, 2, ... levels, measured on texts that nothing is judged on.

    widths: drafted tokens a row that each level is expanded from; the first level's is the root. nodes: drafted nodes a
    row, in rising order from 0. accepted[L - 1][i]: accepted tokens a row, if the nodes[i] most probable of L levels
    are verified.
    """

    widths: tuple[float, ...]
    nodes: tuple[float, ...]
    accepted: tuple[tuple[float, ...], ...]


class Overhead(NamedTuple):
    """Seconds of a round outside its forwards: of any round and each of its rows; more if there are trees; for each
    draft forward, and for each row of it."""

    per_round: float = 0.0
    per_row: float = 0.0
    trees: float = 0.0
    per_level: float = 0.0
    per_level_row: float = 0.0

    def seconds(self, rows: int, levels: int) -> float:
        """Return the sum for so many rows and draft forwards."""
        return sum(part * count for part, count in zip(self, counts(rows, levels), strict=True))


def counts(rows: int, levels: int) -> tuple[int, int, int, int, int]:
    """Return how often each part of the rest occurs in a round."""
    return 1, rows, int(levels > 0), levels, rows * levels


class RoundCosts(NamedTuple):
    """Costs and yield of rounds of any number of rows. verify, draft: forwards over so many tokens of all rows
    together."""

    verify: Curve
    draft: Curve
    overhead: Overhead
    profile: Profile

    def seconds(self, rows: int, widths: Sequence[int | float], verified: Any) -> Any:
        """Return the seconds of a round that verifies so many tokens of all rows, roots included, or of rounds (an
        array), after draft forwards over `widths` tokens of all rows."""
        rest = self.overhead.seconds(rows, len(widths))
        return rest + sum(self.draft.at(width) for width in widths) + self.verify.at(verified)

    def check(self) -> None:
        """Raise InputError for costs that no machine has, and for a profile whose parts do not fit each other."""
        times = [*self.verify.seconds, *self.draft.seconds]
        overhead = min(self.overhead), max(self.overhead)
        if not all(0 < seconds < float("inf") for seconds in times) or not 0 <= overhead[0] <= overhead[1] < float(
            "inf"
        ):
            raise InputError("the costs of a round must be positive numbers of seconds")
        for curve in (self.verify, self.draft):
            if not curve.sizes or len(curve.sizes) != len(curve.seconds) or sorted(set(curve.sizes)) != [*curve.sizes]:
                raise InputError("a curve of costs needs rising sizes, each with its seconds")
        widths, nodes, accepted = self.profile
        if len(widths) != len(accepted) or {len(row) for row in accepted} - {len(nodes)} or nodes[:1] != (0.0,):
            raise InputError(
                "a profile of accepted tokens needs for each level a width, and a row of them from 0 nodes"
            )
        amounts = [*widths, *(each for row in accepted for each in row)]
        if sorted(set(nodes)) != [*nodes] or not all(0 <= each < float("inf") for each in amounts):
            raise InputError("a profile of accepted tokens needs rising numbers of nodes, and no negative number")


def best_gain(costs: RoundCosts, rows: int) -> float:
    """Return the tokens per second of rounds with trees over those of plain decoding for so many rows, with the number
    of levels and of verified nodes of the profile that make most."""
    nodes, plain, gains = np.array(costs.profile.nodes), costs.seconds(rows, (), rows), [0.0]
    for levels, accepted in enumerate(costs.profile.accepted, 1):
        seconds = costs.seconds(rows, [rows * width for width in costs.profile.widths[:levels]], rows * (1 + nodes))
        gains.append(float(((1 + np.array(accepted)) * plain / seconds).max()))
    return max(gains)


class RowCosts:
    """Costs of rounds of so many rows, as arrays: a budget reads them at every level of every round.

    start: seconds of a round with trees but for its forwards. drafts: whether trees pay for so many rows.
    """

    def __init__(self, costs: RoundCosts, rows: int):
        self.costs, self.rows, overhead = costs, rows, costs.overhead
        self.start = overhead.per_round + rows * overhead.per_row + overhead.trees
        self.drafts = best_gain(costs, rows) > 1 + DOUBT
        self._model = RoundModel(verify=np.zeros(0), draft=np.zeros(0))

    def level(self, width: int) -> float:
        """Return the seconds of a level that is expanded from so many tokens of all rows."""
        return float(self.model(0, width).draft[width])

    def model(self, drafted: int, width: int) -> RoundModel:
        """Return what decisions are made by, for trees of so many slots in all and a level of at most so many tokens
        more. Its arrays grow where more is asked for than before."""
        known, most, overhead = self._model, self.rows + drafted + width, self.costs.overhead
        if most >= len(known.verify):
            known = replace(known, verify=self.costs.verify.at(np.arange(2.0 * most + 1)))
        if width >= len(known.draft):
            per_level = overhead.per_level + self.rows * overhead.per_level_row
            known = replace(known, draft=per_level + self.costs.draft.at(np.arange(2.0 * width + 1)))
        self._model = known
        return known
