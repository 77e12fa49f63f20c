"""Seconds that a round of a batch takes on a machine, and the accepted tokens that its draft wins there: what a budget
over all requests decides by."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from c2t.errors import InputError
from c2t.kernels.paying import Yields, between
from c2t.policies.drift import Drift

DOUBT = 0.05  # what costs and yields may be wrong by: they were measured on other texts, and machines vary by as much


class Curve(NamedTuple):
    """Seconds of a forward over each of `sizes` tokens, in rising order."""

    sizes: tuple[int | float, ...]
    seconds: tuple[float, ...]

    def at(self, size: int | float) -> float:
        """Return the seconds at any size, as `over` does."""
        return float(self.over(np.array([size]))[0])

    def over(self, sizes: Int[np.ndarray, " n"] | Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return the seconds at these sizes: interpolated between those measured, constant below the first one, and
        beyond the last one with the slope of the last two."""
        found = np.interp(sizes, self.sizes, self.seconds)
        if len(self.sizes) == 1:
            return found
        rise = (self.seconds[-1] - self.seconds[-2]) / (self.sizes[-1] - self.sizes[-2])
        return found + max(rise, 0.0) * np.maximum(sizes - self.sizes[-1], 0)


class Calibration(NamedTuple):
    """Share of the nodes of each confidence that were accepted, both rising; between them it is interpolated. A
    network that was trained on as many accepted nodes as others calls many probable that are not."""

    confidence: tuple[float, ...] = (0.0, 1.0)
    accepted: tuple[float, ...] = (0.0, 1.0)

    def at(self, confidence: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return the probability that nodes of these confidences are accepted."""
        return np.interp(confidence, self.confidence, self.accepted)


class Children(NamedTuple):
    """Probabilities that the children of an expanded node are accepted, the most probable child first, by the node's
    own confidence. The defaults promise one child, which is as good as its parent.

    confidence: of nodes, rising from 0. accepted[i]: of the children of a node of confidence[i], on average; between
    two confidences it is interpolated.
    """

    confidence: tuple[float, ...] = (0.0, 1.0)
    accepted: tuple[tuple[float, ...], ...] = ((0.0,), (1.0,))

    def of(self, confidence: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n k"]:
        """Return the children's probabilities for nodes of these confidences."""
        return between(confidence, np.array(self.confidence), np.array(self.accepted))


class Profile(NamedTuple):
    """Yield of a policy's drafts with 1, 2, ... levels, measured on texts that nothing is judged on.

    widths: drafted tokens a row that each level is expanded from; the first level's is the root. nodes: drafted nodes a
    row, in rising order from 0. accepted[L - 1][i]: accepted tokens a row, if the nodes[i] most confident of L levels
    are verified.
    """

    widths: tuple[float, ...]
    nodes: tuple[float, ...]
    accepted: tuple[tuple[float, ...], ...]
    children: Children
    calibration: Calibration = Calibration()


class Rest(NamedTuple):
    """Seconds of a round outside its forwards: of any round and each of its rows; more if there are trees; for each
    draft forward, and for each row of it."""

    a_round: float = 0.0
    a_row: float = 0.0
    trees: float = 0.0
    a_level: float = 0.0
    a_level_row: float = 0.0

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
    rest: Rest
    profile: Profile

    def seconds(
        self, rows: int, widths: Sequence[int | float], verified: Float[np.ndarray, " n"] | Int[np.ndarray, " n"]
    ) -> Float[np.ndarray, " n"]:
        """Return the seconds of rounds that verify so many tokens of all rows, roots included, after draft forwards
        over `widths` tokens of all rows."""
        rest = self.rest.seconds(rows, len(widths))
        return rest + sum(self.draft.at(width) for width in widths) + self.verify.over(verified)

    def check(self) -> None:
        """Raise InputError for costs that no machine has, and for a profile whose parts do not fit each other."""
        times = [*self.verify.seconds, *self.draft.seconds]
        if not all(0 < each < float("inf") for each in times) or not 0 <= min(self.rest) <= max(self.rest) < float(
            "inf"
        ):
            raise InputError("the costs of a round must be positive numbers of seconds")
        for curve in (self.verify, self.draft):
            if not curve.sizes or len(curve.sizes) != len(curve.seconds) or sorted(set(curve.sizes)) != [*curve.sizes]:
                raise InputError("a curve of costs needs rising sizes, each with its seconds")
        widths, nodes, accepted, children, (confidence, share) = self.profile
        if len(widths) != len(accepted) or {len(row) for row in accepted} - {len(nodes)} or nodes[:1] != (0.0,):
            raise InputError(
                "a profile of accepted tokens needs for each level a width, and a row of them from 0 nodes"
            )
        amounts = [*widths, *(each for row in accepted for each in row)]
        if sorted(set(nodes)) != [*nodes] or not all(0 <= each < float("inf") for each in amounts):
            raise InputError("a profile of accepted tokens needs rising numbers of nodes, and no negative number")
        rising = all(sorted(each) == [*each] for each in (confidence, share))
        if not confidence or len(confidence) != len(share) or not rising:
            raise InputError("a calibration needs rising confidences, each with its share of accepted nodes")
        if (
            len(children.confidence) < 2
            or len(children.confidence) != len(children.accepted)
            or len({len(each) for each in children.accepted}) != 1
            or not children.accepted[0]
        ):
            raise InputError("the children of a profile need two confidences at least, each with as many shares")
        if sorted(set(children.confidence)) != [*children.confidence]:
            raise InputError("the children of a profile need rising confidences")
        if not all(0 <= each <= 1 for row in (share, *children.accepted) for each in row):
            raise InputError("a profile needs shares between 0 and 1")


class Promise(NamedTuple):
    """Promise of rounds with trees. tokens: that a round adds to a row, on average; slower: its seconds over those of
    a round of plain decoding."""

    tokens: float
    slower: float

    @property
    def gain(self) -> float:
        """Tokens per second over those of plain decoding."""
        return self.tokens / self.slower


def best_promise(costs: RoundCosts, rows: int) -> Promise:
    """Return the promise of the profile for so many rows, with the number of levels and of verified nodes that promise
    most."""
    profile = costs.profile
    nodes = np.array(profile.nodes)
    plain = costs.seconds(rows, (), np.array([rows]))[0]
    promises = []
    for levels, accepted in enumerate(profile.accepted, 1):
        widths = [rows * width for width in profile.widths[:levels]]
        slower = costs.seconds(rows, widths, rows * (1 + nodes)) / plain
        promises += map(Promise, (1 + np.array(accepted)).tolist(), slower.tolist())
    return max(promises, key=lambda each: each.gain)


class RowCosts:
    """Costs and yield of rounds of so many rows, as arrays: a budget reads them at every level of every round.

    drift: of the rounds that are played, which corrects the target's forwards. start: seconds of a round with trees but
    for its forwards.
    """

    def __init__(self, costs: RoundCosts, rows: int, drift: Drift | None = None):
        self.costs, self.rows, self.drift = costs, rows, drift
        self.fits = 0  # of the drift, when the arrays were made
        self._predicted: dict[tuple[int, int], float] = {}
        self.start = costs.rest.seconds(rows, 1) - costs.rest.a_level - rows * costs.rest.a_level_row
        calibration, children = costs.profile.calibration, costs.profile.children
        sure, accepted, parents, promised = (np.array(each, dtype=float) for each in (*calibration, *children))
        self._yields = Yields(sure, accepted, parents, promised, verify=np.zeros(0), draft=np.zeros(0))

    def predicted(self, levels: int, verified: int) -> float:
        """Return the seconds that a round with so many levels takes by the costs alone, if these are as wide as those
        of the profile; verified: tokens of all rows, roots included."""
        if (levels, verified) not in self._predicted:  # asked for after every round
            widths = [self.rows * width for width in self.costs.profile.widths[:levels]]
            seconds = self.costs.seconds(self.rows, widths, np.array([verified]))
            self._predicted[levels, verified] = float(seconds[0])
        return self._predicted[levels, verified]

    def level(self, width: int) -> float:
        """Return the seconds of a level that is expanded from so many tokens of all rows."""
        return float(self.yields(0, width).draft[width])

    def yields(self, drafted: int, width: int) -> Yields:
        """Return the arrays that decisions are made by, for trees of so many slots in all and a level of at most so
        many tokens more. They grow where more is asked for than before."""
        known = self._yields
        most = self.rows + drafted + width * known.promised.shape[1]
        moved = self.drift is not None and self.drift.fits > self.fits
        if moved or most >= len(known.verify):
            sizes = np.arange(max(2.0 * most + 1, len(known.verify)))
            seconds = self.costs.verify.over(sizes)
            if self.drift is not None:
                seconds, self.fits = seconds * self.drift.over(sizes), self.drift.fits
            known = replace(known, verify=seconds)
        if width >= len(known.draft):
            rest = self.costs.rest.a_level + self.rows * self.costs.rest.a_level_row
            known = replace(known, draft=rest + self.costs.draft.over(np.arange(2.0 * width + 1)))
        self._yields = known
        return known
