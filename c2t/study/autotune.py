"""Search for the fastest policy on this machine, by successive halving (Jamieson and Talwalkar, 2016).

All candidates decode a few texts in turns; the slower half leaves, and the others go on with more. Nothing is
predicted: the clock decides, on whole rounds of the real loop.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from c2t.costs.statistics import Statistics, total
from c2t.errors import InputError, at_least_one
from c2t.models.loading.load import Pair, with_ngrams
from c2t.models.wrappers.ngrams import NGRAMS
from c2t.output.progress import ProgressCallback
from c2t.policies.plain import Plain
from c2t.policies.spec import describe, tried_by
from c2t.protocols import Policy
from c2t.replay.prompts import Prompt
from c2t.replay.settings import RunSettings
from c2t.study.batches import Entrant, Group, Run, check_new_tokens, first_turns, grouped, race
from c2t.verification.compatibility import check_compatible

DEFAULT_CANDIDATES = tried_by("tune")
SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)  # of the batches that have been decoded after each heat
LAST = 4  # candidates that decode all texts
SHORTEST = 8  # new tokens of a text
PREPARED = 0.1  # share of the minutes for what happens besides the texts


@dataclass(frozen=True, kw_only=True)
class TuneSettings(RunSettings):
    """Settings of a tuning.

    max_new_tokens: of each text, whatever EOS says. batch: prompts decoded together. limit: prompts that the last
    candidates decode (None: 16, or as many as three batches need). ngrams: every policy is tried a second time, with
    the text's n-grams in the draft. minutes: about how long it may take; on a slow machine it decodes fewer or shorter
    texts.
    """

    max_new_tokens: int = 32
    temperature: float = 0.0  # as in `c2t generate`
    batch: int = 1
    limit: int | None = None
    ngrams: bool = False
    minutes: float = 4.0

    def __post_init__(self):
        super().__post_init__()
        at_least_one(self, "batch", "limit")
        if not self.minutes > 0:
            raise InputError(f"minutes = {self.minutes} must be more than 0")
        check_new_tokens(self.max_new_tokens)
        if self.prompts < self.batch:
            raise InputError(
                f"limit = {self.limit} prompts do not fill a batch of {self.batch}; use --limit {self.batch}"
            )

    @property
    def prompts(self) -> int:
        """Number of prompts to decode."""
        return self.limit or max(16, 3 * self.batch)


class Candidate(NamedTuple):
    """A policy and what it did on its first texts. ngrams: True if the draft has the text's. against_plain: its tokens
    per second over those of plain decoding on the same texts."""

    policy: Policy
    ngrams: bool
    texts: int
    tokens_per_second: float
    against_plain: float
    total: Statistics

    @property
    def name(self) -> str:
        """Name of the policy without its settings, with that of the n-grams if the draft has them."""
        return describe(self.policy).partition(":")[0] + NGRAMS * self.ngrams

    @property
    def label(self) -> str:
        """Name of the policy with the settings that shape its trees, and that of the n-grams if the draft has them."""
        return describe(self.policy, brief=True) + f" {NGRAMS}" * self.ngrams


class Tuning(NamedTuple):
    """Result of a tuning. rows: those that decoded the most texts first, of these the fastest first."""

    settings: TuneSettings
    rows: list[Candidate]

    @property
    def best(self) -> Candidate:
        """The fastest of those that decoded all texts."""
        return self.rows[0]

    @property
    def plain(self) -> Candidate:
        return next(row for row in self.rows if not row.policy.levels)

    @property
    def summary(self) -> str:
        """The choice and its speedup, in a line."""
        if not self.best.policy.levels:
            return "plain decoding is the fastest here: no tree is profitable"
        return f"{self.best.label}, {self.best.against_plain:.2f} times as fast as plain decoding"


class Heat(NamedTuple):
    """A part of the search: this many candidates decode these batches."""

    candidates: int
    groups: Sequence[Group]


def tune(
    pair: Pair,
    policies: Sequence[Policy],
    prompts: Sequence[Prompt],
    settings: TuneSettings = TuneSettings(),
    progress: ProgressCallback = lambda done, of, doing: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Tuning:
    """Find the fastest policy for these prompts. Plain decoding is always a candidate, and is never dropped.

    progress(done, of, doing) counts texts. Raises InputError for policies that are not exact or that do not suit the
    pair, and for less than a batch of prompts.
    """
    entrants = entrants_of(pair, policies, settings)
    ids = first_turns(pair, prompts, settings.prompts, settings)
    if len(ids) < settings.batch:
        raise InputError(f"{len(ids)} prompts do not fill a batch of {settings.batch}; give more with --prompts")
    groups = grouped(ids, settings.batch, len(ids) // settings.batch)
    progress(0, 1, "decodes a first text")
    tokens, heats = plan(len(entrants), groups, seconds_of(entrants[0], groups[0], settings, clock), settings)
    runs: list[list[Run]] = [[] for _ in entrants]
    left, done, of = list(range(len(entrants))), 0, sum(heat.candidates * len(heat.groups) for heat in heats)
    for heat in heats:
        left = fastest(left, runs, heat.candidates)
        limited = replace(settings, max_new_tokens=tokens)
        for number, run in race([entrants[entrant] for entrant in left], heat.groups, limited):
            runs[left[number]].append(run)
            done += 1
            progress(done, of, f"{len(left)} candidates are left")
    rows = [
        candidate(policy, drawn is not pair, its, runs[0]) for (drawn, policy), its in zip(entrants, runs, strict=True)
    ]
    return Tuning(settings, sorted(rows, key=lambda row: (-row.texts, -row.against_plain)))


def entrants_of(pair: Pair, policies: Sequence[Policy], settings: TuneSettings) -> list[Entrant]:
    """Return plain decoding, and the others with the pair's draft and, where asked for, with n-grams in it."""
    for policy in policies:
        check_compatible(policy, pair.target)
        if not policy.exact:
            raise InputError(f"{describe(policy, brief=True)} is not exact, so not tuned; give exact policies")
    trees = [policy for policy in policies if policy.levels]
    pairs = [pair, *([with_ngrams(pair)] if settings.ngrams else [])]
    return [Entrant(pair, Plain()), *(Entrant(drawn, policy) for drawn in pairs for policy in trees)]


def seconds_of(entrant: Entrant, group: Group, settings: TuneSettings, clock: Callable[[], float]) -> float:
    """Return the seconds of a text, its prompt's forward included, when everything is warm."""
    seconds = 0.0
    for _ in range(2):
        start = clock()
        list(race([entrant], [group], settings))
        seconds = clock() - start
    return seconds


def plan(entrants: int, groups: Sequence[Group], seconds: float, settings: TuneSettings) -> tuple[int, list[Heat]]:
    """Return the new tokens of a text, and the heats that fit into the minutes. seconds: of one batch of texts."""
    room = settings.minutes * 60 * (1 - PREPARED)
    for count in range(len(groups), 0, -1):
        planned = heats(entrants, groups[:count])
        needed = seconds * sum(heat.candidates * len(heat.groups) for heat in planned)
        if needed <= room:
            return settings.max_new_tokens, planned
    return min(settings.max_new_tokens, max(SHORTEST, int(settings.max_new_tokens * room / needed))), planned


def heats(entrants: int, groups: Sequence[Group]) -> list[Heat]:
    """Return the heats of a search: in each, half of the candidates go on, to twice the texts."""
    planned: list[Heat] = []
    begin = 0
    for share in SHARES:
        end = ceil(share * len(groups))
        if end > begin:
            planned.append(Heat(entrants, groups[begin:end]))
            entrants, begin = max(min(entrants, LAST), ceil(entrants / 2)), end
    return planned


def fastest(left: Sequence[int], runs: Sequence[Sequence[Run]], count: int) -> list[int]:
    """Return plain decoding, which is 0, and the fastest others: `count` in all."""
    if not runs[0]:
        return list(left)
    others = sorted((number for number in left if number), key=lambda number: -rate(runs[number]))
    return [0, *sorted(others[: count - 1])]


def rate(runs: Sequence[Run]) -> float:
    """Return the new tokens per second of all runs."""
    return sum(run.new for run in runs) / sum(run.seconds for run in runs)


def candidate(policy: Policy, ngrams: bool, runs: Sequence[Run], plain: Sequence[Run]) -> Candidate:
    """Return a row. plain: the runs of plain decoding, which has decoded the same batches and more."""
    speed, counts = rate(runs), total(run.statistics for run in runs)
    return Candidate(policy, ngrams, len(runs), speed, speed / rate(plain[: len(runs)]), counts)
