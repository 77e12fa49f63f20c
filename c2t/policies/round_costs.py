"""Seconds of a batch's round on a machine, and the accepted tokens of its draft: the input of a budget's decisions."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from c2t.errors import InputError
from c2t.kernels.budget import RoundModel

# Trees are drafted only if they are expected to be faster than plain decoding by more than this: costs drift with the
# machine's load, and acceptance is measured on in-domain texts (out of domain smollm2's was 0.86 to 0.96 of it).
LEAD = 0.15


class Curve(NamedTuple):
    """Seconds of a forward over each of `sizes` tokens, in rising order."""

    sizes: tuple[int | float, ...]
    seconds: tuple[float, ...]

    def at(self, sizes: Any) -> Any:
        """Return the seconds at a size, or at each of an array: interpolated between those measured, constant below the
        first one, and beyond the last one with the slope of the last two."""
        seconds = np.interp(sizes, self.sizes, self.seconds)
        if len(self.sizes) == 1:
            return seconds
        rise = (self.seconds[-1] - self.seconds[-2]) / (self.sizes[-1] - self.sizes[-2])
        return seconds + max(rise, 0.0) * np.maximum(sizes - self.sizes[-1], 0)


class Profile(NamedTuple):
    """Acceptance of a policy's drafts with 1, 2, ... levels, measured on texts that no benchmark uses.

    widths: expanded tokens per row of each level; the first level expands the root. nodes: drafted nodes per row, in
    rising order from 0. accepted[L - 1][i]: accepted tokens per row, if the nodes[i] most probable of L levels are
    verified.
    """

    widths: tuple[float, ...]
    nodes: tuple[float, ...]
    accepted: tuple[tuple[float, ...], ...]


class Overhead(NamedTuple):
    """Seconds of a round outside its forwards: per round, per row, once more if it has trees, per draft forward, and
    per row of a draft forward."""

    per_round: float = 0.0
    per_row: float = 0.0
    trees: float = 0.0
    per_level: float = 0.0
    per_level_row: float = 0.0

    def seconds(self, rows: int, levels: int) -> float:
        """Return the sum for so many rows and draft forwards."""
        return sum(part * count for part, count in zip(self, counts(rows, levels), strict=True))


def counts(rows: int, levels: int) -> tuple[int, int, int, int, int]:
    """Return how often each part of the overhead occurs in a round."""
    return 1, rows, int(levels > 0), levels, rows * levels


class Attention(NamedTuple):
    """Seconds that each token before a row's tree adds to a forward of the target, beyond the first `after`: for the
    row, whose keys and values are read, and for each of its verified tokens, which attends to them."""

    per_row: float = 0.0
    per_verified: float = 0.0
    after: int = 0

    def seconds(self, rows: int, verified: Any, prefix: int) -> Any:
        """Return the sum for rows after `prefix` tokens each, and so many verified tokens of all rows."""
        return max(prefix - self.after, 0) * (self.per_row * rows + self.per_verified * verified)


class RoundCosts(NamedTuple):
    """Costs and acceptance of rounds of any number of rows. verify, draft: forwards over so many tokens of all rows
    together, after texts of `attention.after` tokens. attention: what longer ones add."""

    verify: Curve
    draft: Curve
    overhead: Overhead
    profile: Profile
    attention: Attention = Attention()

    def seconds(self, rows: int, widths: Sequence[int | float], verified: Any, prefix: int = 0) -> Any:
        """Return the seconds of a round: draft forwards over `widths` tokens, then `verified` tokens in the target's
        forward, roots included, all of all rows. An array for an array of `verified`. prefix: tokens before a tree."""
        overhead = self.overhead.seconds(rows, len(widths))
        return overhead + sum(self.draft.at(width) for width in widths) + self.forward(rows, verified, prefix)

    def forward(self, rows: int, verified: Any, prefix: int) -> Any:
        """Return the seconds of the target's forward in `seconds`."""
        return self.verify.at(verified) + self.attention.seconds(rows, verified, prefix)

    def check(self) -> None:
        """Raise InputError for costs that no machine has, and for a profile whose parts do not fit each other."""
        times = [*self.verify.seconds, *self.draft.seconds]
        amounts = [*self.overhead, *self.attention, *self.verify.sizes, *self.draft.sizes]
        if not all(0 < time < math.inf for time in times) or not all(0 <= amount < math.inf for amount in amounts):
            raise InputError("the costs of a round must be positive numbers of seconds")
        for curve in (self.verify, self.draft):
            if not curve.sizes or len(curve.sizes) != len(curve.seconds) or sorted(set(curve.sizes)) != [*curve.sizes]:
                raise InputError("a curve of costs needs rising sizes, each with its seconds")
        widths, nodes, accepted = self.profile
        if len(widths) != len(accepted) or {len(row) for row in accepted} - {len(nodes)} or nodes[:1] != (0.0,):
            raise InputError(
                "a profile of accepted tokens needs for each level a width, and a row of them from 0 nodes"
            )
        amounts = [*widths, *nodes, *(gain for row in accepted for gain in row)]
        if sorted(set(nodes)) != [*nodes] or not all(0 <= amount < math.inf for amount in amounts):
            raise InputError("a profile of accepted tokens needs rising numbers of nodes, and no negative number")


def best_gain(costs: RoundCosts, rows: int, prefix: int = 0) -> float:
    """Return the expected speedup of trees over plain decoding for so many rows after `prefix` tokens, at the profile's
    most profitable numbers of levels and of verified nodes."""
    nodes, plain, gains = np.array(costs.profile.nodes), costs.seconds(rows, (), rows, prefix), [0.0]
    for levels, accepted in enumerate(costs.profile.accepted, 1):
        widths = [rows * width for width in costs.profile.widths[:levels]]
        seconds = costs.seconds(rows, widths, rows * (1 + nodes), prefix)
        gains.append(float(((1 + np.array(accepted)) * plain / seconds).max()))
    return max(gains)


class RowCosts:
    """Costs of rounds of so many rows after so many tokens each, as arrays: a budget reads them at every level of every
    round.

    start: seconds of a round with trees, without its forwards. drafts: True if trees are profitable.
    """

    def __init__(self, costs: RoundCosts, rows: int, prefix: int = 0):
        self.costs, self.rows, self.prefix, overhead = costs, rows, prefix, costs.overhead
        self.start = overhead.per_round + rows * overhead.per_row + overhead.trees
        self.drafts = best_gain(costs, rows, prefix) > 1 + LEAD
        self._model = RoundModel(verify=np.zeros(0), draft=np.zeros(0))

    def level(self, width: int) -> float:
        """Return the seconds of a level that is expanded from so many tokens of all rows."""
        return float(self.model(0, width).draft[width])

    def model(self, drafted: int, width: int) -> RoundModel:
        """Return the input of decisions, for trees of `drafted` slots in all and a further level of up to `width`
        tokens. Its arrays are stored and grow on demand."""
        model, most, overhead = self._model, self.rows + drafted + width, self.costs.overhead
        if most >= len(model.verify):
            model = replace(model, verify=self.costs.forward(self.rows, np.arange(2.0 * most + 1), self.prefix))
        if width >= len(model.draft):
            per_level = overhead.per_level + self.rows * overhead.per_level_row
            model = replace(model, draft=per_level + self.costs.draft.at(np.arange(2.0 * width + 1)))
        self._model = model
        return model
