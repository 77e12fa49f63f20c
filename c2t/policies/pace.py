"""Choice between drafting and plain decoding by the clock: what rounds really take corrects what costs promise."""

import time
from collections import deque
from collections.abc import Iterator
from statistics import median
from typing import Any

from c2t.policies.round_costs import Promise

EDGE = 0.05  # by which trees must be ahead: rounds do not show that a draft reads prompts
# The same where no row takes the place of one that has ended: with trees the rows of a batch end further apart. With 16
# texts of one length, rounds 1.09 times as good as plain ones were 0.97 in all; 1.2 were 1.05 with 8 texts.
EDGE_OF_A_BATCH = 0.15
TRIAL = 5  # rounds of the other way, whose median is compared with that of as many rounds before them
SHORTEST, LONGEST = 50, 800  # rounds before the first trial, and later: each pause is twice as long as the last one
HOPELESS = 1.5  # promises were seen to be wrong by 1.4, so what promises less than 1 / HOPELESS is never tried
PROMISED = 16  # rounds that the promised tokens count as
MEMORY = 64  # rounds that the mean of the tokens goes back
TRIALS = 2  # that the mean of the seconds goes back


class Ways:
    """Rounds of some number of rows, with trees and without, as far as they are known.

    slower: seconds of a round with trees over those of one without; tokens: that a round with trees adds to a row; both
    as promised, until the clock has been asked. left: rounds up to the next trial of the way that is not taken.
    """

    def __init__(self, promise: Promise):
        self.tokens, self.slower = promise
        self.drafting = self.trying = False
        self.rounds, self.trials = PROMISED, 0
        self.pause = self.left = SHORTEST
        self.seconds: dict[bool, deque[float]] = {way: deque(maxlen=TRIAL) for way in (True, False)}

    def draft(self, edge: float) -> bool:
        """Return True if the coming round has trees, which must be ahead by so much."""
        if not self.trying:
            self.drafting = self.tokens / self.slower > 1 + edge
        return self.drafting != self.trying

    def add(self, way: bool, seconds: float, tokens: float) -> None:
        """Take in a round with trees (True) or without, which added so many tokens to a row."""
        self.seconds[way].append(seconds)
        if way:
            self.rounds = min(self.rounds + 1, MEMORY)
            self.tokens += (tokens - self.tokens) / self.rounds
        if not self.trying:
            self.left -= 1
            if self.left <= 0 and len(self.seconds[way]) == TRIAL:
                self.trying = True
                self.seconds[not way].clear()
        elif len(self.seconds[way]) == TRIAL:
            self._conclude()

    def _conclude(self) -> None:
        """End a trial: its rounds and those before it say how much slower trees are, and so which way to go."""
        self.trials += 1
        slower = median(self.seconds[True]) / median(self.seconds[False])
        self.slower += (slower - self.slower) / min(self.trials, TRIALS)  # the first one replaces what was promised
        self.trying = False
        self.pause = self.left = min(2 * self.pause, LONGEST)


class Pace:
    """Memory of what rounds of a budget took, by the number of rows: it says whether the next one drafts.

    Every so often a few rounds go the other way, so that both are known from the same minute of the machine. Which
    tokens are verified then depends on the clock, and still not on what the target is about to say, so the text's law
    is kept. Rounds that nobody times, such as replayed ones, change nothing.
    """

    def __init__(self) -> None:
        self.edge = EDGE
        self._ways: dict[int, Ways] = {}
        self._asked: tuple[Ways, bool] | None = None  # the round that is being played, and the way that it goes
        self._before: tuple[Ways, bool] | None = None  # the round before

    def drafts(self, rows: int, promise: Promise) -> bool:
        """Return True if a round of so many rows should draft."""
        ways = self._ways.get(rows)
        if ways is None:
            ways = self._ways[rows] = Ways(promise)
        self._asked = ways, ways.draft(self.edge)
        return self._asked[1]

    def took(self, step: Any, start: float) -> None:
        """Take in a round that began at `start` of `time.perf_counter`, and has just ended.

        Only rounds count that went the way of the round before, with as many rows: others also read what the draft has
        not seen, or found caches cold.
        """
        asked, self._asked = self._asked, None
        if asked is None:
            return
        tokens = int(step.count.sum())  # which waits for the device
        seconds = time.perf_counter() - start
        if self._before == asked:
            ways, way = asked
            ways.add(way, seconds, tokens / len(step.rows))
        self._before = asked

    def interrupted(self) -> None:
        """Note that the coming round is not to be compared with those before it."""
        self._before = None

    def watch(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Yield the Steps of a batch of texts and time their rounds, without what the reader does in between."""
        self.edge = EDGE_OF_A_BATCH
        self.interrupted()
        start = time.perf_counter()
        for step in steps:
            if self._asked:
                self.took(step, start)
            yield step
            start = time.perf_counter()
