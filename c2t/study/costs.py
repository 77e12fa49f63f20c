"""Seconds that this machine takes for a forward of the target over n tokens, for one of the draft over a level of w,
and for the rest of a round. Both curves are step functions on a GPU, so they are measured, not modelled."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from c2t.batch_costs import Bench
from c2t.kernels.llama_layer import edges
from c2t.models.loading import Pair
from c2t.policies.round_costs import Curve
from c2t.replay.lockstep import Continuation
from c2t.study.rounds import Round

MOST = 256  # tokens a row in a measured forward of the target; larger ones are guessed from the last two
# Sizes at which forwards are measured, up to the largest that is asked for: some, and those on both sides of a step in
# the cost.
VERIFIED = tuple(sorted({1, 2, 4, 8, 64, 65, 80, 96, 128, 129, 160, 192, MOST} | edges(50)))
WIDTHS = tuple(sorted({1, 2, 3, 4, 8, 10, 24, 32, 48, 64} | edges(20)))


class Overhead(NamedTuple):
    """Seconds of a round outside the forwards (policy, acceptance, caches): fixed, and for each draft forward."""

    a_round: float
    a_pass: float


class Costs(NamedTuple):
    """Costs of rounds of `batch` prompts, behind a prefix of about `prefix` tokens. overhead: by name of the policy."""

    batch: int
    prefix: int
    verify: Curve
    draft: Curve
    overhead: dict[str, Overhead]

    def forwards(self, round: Round) -> float:
        """Return the seconds of a round's forwards. Where rows have left the batch, the tokens in all rows count."""
        share = round.rows / self.batch
        return self.verify.at(round.verified * share) + sum(self.draft.at(width * share) for width in round.widths)

    def seconds(self, policy: str, round: Round) -> float:
        """Return the seconds of a round of a policy of this name."""
        overhead = self.overhead[policy]
        return self.forwards(round) + overhead.a_round + overhead.a_pass * len(round.widths)


def measure(
    pair: Pair,
    texts: Sequence[Continuation],
    *,
    largest: int,
    widest: int,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Costs:
    """Measure both curves for these texts as one batch, in the middle of each. largest, widest: tokens a row of the
    largest forward of the target and of the draft.

    All sizes take turns, `repeats` times after a warm-up, so that a drifting machine treats all alike.
    """
    bench = Bench(pair, texts, clock)
    counts = (*(count for count in VERIFIED if count < largest), largest)
    widths = (*(width for width in WIDTHS if width < widest), widest)
    verify: list[list[float]] = [[] for _ in counts]
    draft: list[list[float]] = [[] for _ in widths]
    for repeat in range(repeats + 1):
        for measured, sizes, run in ((verify, counts, bench.verify), (draft, widths, bench.draft)):
            for seconds, size in zip(measured, sizes, strict=True):
                spent = run(size)
                if repeat:
                    seconds.append(spent)
    target, level = (
        Curve(sizes, tuple(map(statistics.median, seconds))) for sizes, seconds in ((counts, verify), (widths, draft))
    )
    return Costs(len(texts), int(bench.lengths.float().mean()), target, level, overhead={})


def fit_overhead(passes: Sequence[int], seconds: Sequence[float]) -> Overhead:
    """Fit a line through the seconds that real rounds took beyond their forwards.

    It goes through the median at each number of draft forwards, weighed by the number of rounds, so that a round in
    which the machine was busy with something else does not count.
    """
    groups: dict[int, list[float]] = {}
    for count, spent in zip(passes, seconds, strict=True):
        groups.setdefault(count, []).append(spent)
    medians = [statistics.median(group) for group in groups.values()]
    if len(groups) == 1:
        return Overhead(medians[0], 0.0)
    weights = [len(group) ** 0.5 for group in groups.values()]
    slope, intercept = np.polyfit(list(groups), medians, 1, w=weights)
    return Overhead(float(intercept), float(slope))
