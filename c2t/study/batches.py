"""Tokens per second of policies over the number of prompts that are decoded together, all in one run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from c2t.costs.measure import now
from c2t.costs.statistics import Statistics, Trace, total
from c2t.errors import InputError, at_least_one
from c2t.models.loading.load import Pair
from c2t.output.progress import ProgressCallback
from c2t.policies.plain import Plain
from c2t.policies.spec import describe
from c2t.protocols import Policy
from c2t.replay.prompts import Prompt, spread
from c2t.replay.settings import RunSettings
from c2t.study.evaluate import encode
from c2t.study.interval import Figures, Interval, Sums, bootstrap
from c2t.verification.target_verifier import generate

WARM_UP_TOKENS = 4
MOST_ROWS_TOGETHER = 256  # rows of all policies that take turns, at most
TURN = 8  # rounds of a policy's turn: enough to be warm, too few for the machine to drift
MOST_ROWS = 4096  # in a batch
DEFAULT_POLICIES = "plain,eagle2:N=8,levels=3,K=4,eagle2:N=26,threshold:threshold=0.1,c2t,budget"


@dataclass(frozen=True, kw_only=True)
class BatchSettings(RunSettings):
    """Settings of a run. batches: numbers of prompts to decode together. timed: prompts to measure each of them on, in
    two batches at least; fewer prompts are repeated."""

    batches: tuple[int, ...] = (1, 4, 16)
    timed: int = 16

    def __post_init__(self):
        super().__post_init__()
        at_least_one(self, "timed")
        check_new_tokens(self.max_new_tokens)
        if not self.batches or min(self.batches) < 1 or max(self.batches) > MOST_ROWS:
            raise InputError(f"batch sizes = {self.batches} must be whole numbers from 1 to {MOST_ROWS:,}")
        if len(set(self.batches)) < len(self.batches):
            raise InputError(f"batch sizes = {self.batches} name one of them twice: give each once")

    def groups(self, batch: int) -> int:
        """Return the number of batches to decode at a batch size."""
        return max(2, -(-self.timed // batch))


class Group(NamedTuple):
    """Prompts that are decoded as one batch, the numbers of their random streams, and the new tokens of each; None:
    max_new_tokens."""

    ids: Sequence[Sequence[int]]
    numbers: Sequence[int]
    new_tokens: Sequence[int] | None = None


class Entrant(NamedTuple):
    """A pair and the policy that it is decoded with, in a race."""

    pair: Pair
    policy: Policy


class Run(NamedTuple):
    """One batch by one policy. new: tokens after the first of each prompt; seconds: from the first tokens to the last,
    without the prefill."""

    new: int
    seconds: float
    statistics: Statistics


class Speed(NamedTuple):
    """Speed of one policy at one batch size. policy: all of its settings. label: those that shape its trees.
    tokens_per_second, against_plain: with their 95 % intervals, by a bootstrap over batches."""

    batch: int
    policy: str
    label: str
    tokens_per_second: Interval
    against_plain: Interval
    total: Statistics


def check_new_tokens(count: int) -> None:
    """Raise InputError if texts of so many new tokens have no rounds to time: the first is the prompt's own forward."""
    if count < 2:
        raise InputError(f"max_new_tokens = {count} is too short to time: give 2 or more")


def measure(
    pair: Pair,
    policies: Sequence[Policy],
    prompts: Sequence[Prompt],
    settings: BatchSettings = BatchSettings(),
    progress: ProgressCallback = lambda done, of, doing: None,
) -> list[Speed]:
    """Return the measured speed of every policy at every batch size. Plain decoding is always among them.

    All policies take turns on each batch, in a random order, because a machine may drift. EOS does not end these runs,
    so that a batch keeps its size: all texts have max_new_tokens.
    """
    if Plain() not in policies:
        policies = [Plain(), *policies]
    ids = first_turns(pair, prompts, max(settings.groups(batch) * batch for batch in settings.batches), settings)
    of = sum(settings.groups(batch) for batch in settings.batches) * len(policies)
    progress(0, of, "warms up")
    speeds: list[Speed] = []
    done = 0
    for batch in settings.batches:
        groups = grouped(ids, batch, settings.groups(batch))
        runs: list[list[Run]] = [[] for _ in policies]
        for number, run in race([Entrant(pair, policy) for policy in policies], groups, settings):
            runs[number].append(run)
            done += 1
            progress(done, of, f"batches of {batch}")
        plain = runs[policies.index(Plain())]
        speeds += [speed(batch, *policy_runs, plain) for policy_runs in zip(policies, runs, strict=True)]
    return speeds


def first_turns(pair: Pair, prompts: Sequence[Prompt], most: int, settings: RunSettings) -> list[list[int]]:
    """Return the first turns of at most so many prompts as token ids."""
    chosen = [prompt._replace(turns=prompt.turns[:1]) for prompt in spread(prompts, most)]
    return encode(pair, chosen, settings.max_new_tokens, settings.sampling).ids


def grouped(ids: Sequence[Sequence[int]], batch: int, groups: int) -> list[Group]:
    """Return so many batches of prompts, which are repeated if there are too few."""
    numbers = [range(group * batch, (group + 1) * batch) for group in range(groups)]
    return [Group([ids[number % len(ids)] for number in batch_numbers], batch_numbers) for batch_numbers in numbers]


def race(entrants: Sequence[Entrant], groups: Sequence[Group], settings: RunSettings) -> Iterator[tuple[int, Run]]:
    """Decode every batch with every entrant; yield the entrant's number and its run. All are warmed up first.

    On a CPU they take turns of TURN rounds in each batch, so that other load on the machine affects all of them. At
    most MOST_ROWS_TOGETHER rows take turns, because each entrant has caches of its own. The order is random in every
    turn, because one entrant leaves its data in the processor's caches for the next. On CUDA one follows the other.
    """
    for entrant in entrants:
        single = Group(groups[0].ids[:1], groups[0].numbers[:1], [WARM_UP_TOKENS])
        TimedBatch(entrant, single, settings).run_rounds(WARM_UP_TOKENS)
    order = list(range(len(entrants)))
    rng = np.random.default_rng(0)
    for group in groups:
        rng.shuffle(order)
        on_a_cpu = entrants[0].pair.target.device.type == "cpu"
        together = max(1, MOST_ROWS_TOGETHER // len(group.ids)) if on_a_cpu else 1
        for first in range(0, len(order), together):
            turn = order[first : first + together]
            running = {number: TimedBatch(entrants[number], group, settings) for number in turn}
            while running:
                for number in rng.permutation(list(running)):
                    run = running[number].run_rounds(TURN)
                    if run:
                        del running[number]
                        yield int(number), run


class TimedBatch:
    """A batch of prompts that an entrant decodes to their ends, a few timed rounds at a time."""

    def __init__(self, entrant: Entrant, group: Group, settings: RunSettings):
        pair, policy = entrant
        self.device, rows = pair.target.device, len(group.ids)
        self.ends = list(group.new_tokens or [settings.max_new_tokens] * rows)
        self.trace, self.seconds = Trace(rows), 0.0
        self.steps = generate(
            pair.target,
            pair.draft,
            policy,
            group.ids,
            max_new_tokens=self.ends,
            sampling=settings.sampling,
            sequences=group.numbers,
        )
        self.trace.add(next(self.steps))  # the prefill, which is not timed

    def run_rounds(self, rounds: int) -> Run | None:
        """Run at most so many rounds; return the run if it has ended."""
        start = now(self.device)
        steps = list(islice(self.steps, rounds))
        self.seconds += now(self.device) - start
        for step in steps:
            self.trace.add(step)
        if len(steps) == rounds:
            return None
        self.trace.finish(self.ends)
        return Run(sum(self.ends) - len(self.ends), self.seconds, total(self.trace.statistics))


def speed(batch: int, policy: Policy, runs: Sequence[Run], plain: Sequence[Run]) -> Speed:
    """Return the speed over all runs, and the ratio to plain decoding's on the same batches."""
    counts = np.array([(run.new, run.seconds, base.new, base.seconds) for run, base in zip(runs, plain, strict=True)])

    def rates(sums: Sums) -> Figures:
        new, seconds, plain_new, plain_seconds = sums
        return np.stack([new / seconds, new / seconds * plain_seconds / plain_new])

    rate, ratio = bootstrap(counts.T, rates)
    counted = total(run.statistics for run in runs)
    return Speed(batch, describe(policy), describe(policy, brief=True), rate, ratio, counted)


def figures(row: Speed) -> dict:
    """Return a row as JSON."""
    values = {**row._asdict(), **row.total.figures()}
    del values["total"]
    return values


def best_rival(rows: Sequence[Speed], name: str = "budget") -> dict[int, float]:
    """Return, for each batch size, the speed of a policy over that of the fastest other one; none where it did not
    run."""
    ratios = {}
    for batch in dict.fromkeys(row.batch for row in rows):
        at_size = [row for row in rows if row.batch == batch]
        speeds, rival_speeds = (
            [row.tokens_per_second.estimate for row in at_size if (row.label.partition(":")[0] == name) is named]
            for named in (True, False)
        )
        if speeds and rival_speeds:
            ratios[batch] = max(speeds) / max(rival_speeds)
    return ratios
