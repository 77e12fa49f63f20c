"""Choice between drafting and plain decoding by the clock: what rounds really take corrects what costs promise."""

import math
import time
from collections import deque
from statistics import median
from typing import Any, NamedTuple

from c2t.policies.drift import Drift
from c2t.policies.round_costs import Promise, RowCosts

# By how much trees must be ahead: by a promise that no trial has confirmed (with eight prompts 1.2 was promised, and
# 0.92 to 1.1 came out), and when the clock has compared rounds, if only a few.
DOUBT_OF_PROMISE, DOUBT_OF_TRIALS = 0.15, 0.02
WORTH_A_TRIAL = 0.05  # by how much they must be ahead to be tried in a fixed batch, whose rows a trial pulls apart
# By how much more, for every doubling of the rows, where no row takes the place of one that has ended: with trees the
# rows end further apart, which no round shows. Eight texts of 48 tokens in rounds 1.05 to 1.07 times as good as plain
# ones were 1.00 to 1.02 in all.
DOUBT_OF_ENDS = 0.015
TRIAL = 5  # rounds of the other way, whose median is compared with that of as many rounds before them
PATIENCE = 4 * TRIAL  # rounds that a trial may take: one round in which a request arrives does not count
SHORTEST, LONGEST = 50, 800  # rounds before the first trial, and in the end
LONGER = 4  # times the last pause: a trial pulls the rows of a batch apart, which costs that batch its last rounds
# Trees whose promised tokens per second are less than so many times plain decoding's are never tried, and if they are
# more than so many times, the first trial can wait: promises were seen to be too high by up to 1.4, since they are of
# texts that a draft may know, and never too low.
HOPELESS, SURE = 1.0, 1.4
PROMISED = 16  # rounds that the promised tokens count as
MEMORY = 64  # rounds that the mean of the tokens goes back
TRIALS = 2  # that the mean of the seconds goes back


class Ways:
    """Rounds of some number of rows, with trees and without, as far as they are known.

    slower: seconds of a round with trees over those of one without; tokens: that a round with trees adds to a row; both
    as promised, until the clock has been asked. left: rounds up to the next trial of the way that is not taken; tried:
    rounds of the present trial, None where there is none.
    """

    def __init__(self, promise: Promise):
        self.tokens, self.slower = promise
        self.drafting = False
        self.rounds, self.trials = PROMISED, 0
        self.pause = self.left = SHORTEST if promise.gain <= SURE else LONGEST
        self.tried: int | None = None
        self.forget()

    def forget(self) -> None:
        """Drop the rounds that a trial would compare. One that runs has ended, with or without a result: if it went on
        with the next text, short texts would go the wrong way again and again."""
        if self.tried is not None:
            self.pause = self.left = min(LONGER * self.pause, LONGEST)
        self.tried = None
        self.seconds: dict[bool, deque[float]] = {way: deque(maxlen=TRIAL) for way in (True, False)}

    def draft(self, ends: float, fixed: bool) -> bool:
        """Return True if the coming round has trees. ends: by how much these must be ahead for the ends of a fixed
        batch; see DOUBT_OF_PROMISE for what they must be ahead by besides."""
        if self.tried is None:
            ahead = self.tokens / self.slower - 1 - ends
            drafting = ahead > (DOUBT_OF_TRIALS if self.trials else DOUBT_OF_PROMISE)
            if drafting != self.drafting:
                self.drafting = drafting
                self.forget()
                if not (drafting or self.trials):  # tokens are not counted now, so nothing but a trial leads back
                    self.pause = self.left = SHORTEST
            if fixed and not self.trials and ahead <= WORTH_A_TRIAL:
                self.left = self.pause
        else:
            self.tried += 1
            if self.tried > PATIENCE:
                self.forget()
        return self.drafting if self.tried is None else not self.drafting

    def add(self, way: bool, seconds: float, tokens: float) -> None:
        """Take in a round with trees (True) or without, which added so many tokens to a row."""
        mine, base = self.seconds[way], self.seconds[self.drafting]
        mine.append(seconds)
        if way:
            self.rounds = min(self.rounds + 1, MEMORY)
            self.tokens += (tokens - self.tokens) / self.rounds
        if self.tried is None:
            self.left -= 1
            if self.left <= 0 and len(base) == TRIAL:
                self.tried = 0
        elif mine is not base and len(mine) == TRIAL:
            self.trials += 1
            slower = median(self.seconds[True]) / median(self.seconds[False])
            self.slower += (slower - self.slower) / min(self.trials, TRIALS)  # the first one replaces what was promised
            self.forget()


class Asked(NamedTuple):
    """A round that is timed. drafting: the way that it goes; costs: of its number of rows."""

    ways: Ways
    drafting: bool
    costs: RowCosts


class Pace:
    """Memory of what rounds of a budget took, by the number of rows: it says whether the next one drafts, and, as the
    drift of the costs, how many tokens are to be verified then.

    Every so often a few rounds go the other way, so that both are known from the same minute of the machine. Which
    tokens are verified then depends on the clock, and still not on what the target is about to say, so the text's law
    is kept. For one thread.
    """

    def __init__(self) -> None:
        self.drift = Drift()
        self._ways: dict[int, Ways] = {}
        self._start = 0.0  # of the present round
        self._asked: Asked | None = None  # that round, if it was asked for
        self._before: Asked | None = None  # the round before

    def restart(self) -> None:
        """Note that a batch begins, whose rounds are not compared with those of another one."""
        self._before = None
        for ways in self._ways.values():
            ways.forget()

    def drafts(self, costs: RowCosts, promise: Promise, fixed: bool = False) -> bool:
        """Return True if the round that begins should draft. costs, promise: of rounds of its number of rows. fixed: no
        row takes the place of one that ends."""
        self._start = time.perf_counter()
        if costs.rows not in self._ways:
            self._ways[costs.rows] = Ways(promise)
        ways = self._ways[costs.rows]
        ends = DOUBT_OF_ENDS * math.log2(costs.rows) if fixed else 0.0
        self._asked = Asked(ways, ways.draft(ends, fixed), costs)
        return self._asked.drafting

    def end(self, step: Any, usual: bool = True) -> None:
        """Note that the round was verified. usual: no request arrived in it.

        Only rounds count that went the way of the round before, with as many rows: others also read what the draft has
        not seen, or found caches cold.
        """
        asked, self._asked = self._asked, None
        if asked is not None:
            new = step.count.tolist()  # which waits for the device; a reduction of a tensor takes ten times as long
            seconds = time.perf_counter() - self._start
            if usual and self._before == asked:
                ways, drafting, costs = asked
                ways.add(drafting, seconds, sum(new) / len(new))
                if drafting:  # rounds of one size say nothing
                    levels, verified = sizes(step)
                    self.drift.add(verified, seconds / costs.predicted(levels, verified))
        self._before = asked


def sizes(step: Any) -> tuple[int, int]:
    """Return the levels of a round's trees and the tokens of all of them, roots included. Levels, not forwards: a
    parallel draft makes one for all, and a draft without a model none."""
    # Lists: the budget's trees are small, and a reduction, by torch or numpy, takes 0.04 ms behind a forward.
    depth, alive = step.tree.depth.tolist(), step.tree.alive.tolist()
    return max(*step.draft_passes.tolist(), *(max(row) + 1 for row in depth)), sum(map(sum, alive))
