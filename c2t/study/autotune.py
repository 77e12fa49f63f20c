"""Search for the fastest policy on this machine. Exact replay gives the sizes of each candidate's rounds, measured
costs turn them into seconds, and a few prompts decoded against the clock decide among the best predictions."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, NamedTuple

from c2t.errors import InputError, at_least_one
from c2t.models.loading import Pair, with_ngrams
from c2t.models.ngrams import NGRAMS
from c2t.playable import check_playable, live_only
from c2t.policies.plain import Plain
from c2t.policies.spec import describe, tried_by
from c2t.prompts import Prompt, spread
from c2t.protocols import Policy
from c2t.replay.lockstep import Continuation
from c2t.settings import RunSettings
from c2t.statistics import Totals
from c2t.study.costs import MOST, Costs, Overhead, fit_overhead, measure
from c2t.study.evaluate import continuations, encode
from c2t.study.rounds import Round, replayed, timed, together

MOST_REPEATS = 10_000  # of each forward; a median needs no more
DEFAULT_CANDIDATES = tried_by("tune")


@dataclass(frozen=True, kw_only=True)
class TuneSettings(RunSettings):
    """Settings of a tuning.

    batch: prompts decoded together. limit: prompts to replay (None: 16, or as many as three batches need). repeats:
    measurements of each forward. timed: batches decoded against the clock, by the `compared` best candidates and plain
    decoding. ngrams: every policy is tried a second time, with the text's n-grams in the draft.
    """

    temperature: float = 0.0  # at which c2t generate decodes
    batch: int = 1
    limit: int | None = None
    repeats: int = 15
    timed: int = 4
    compared: int = 3
    ngrams: bool = False

    def __post_init__(self):
        super().__post_init__()
        at_least_one(self, "batch", "limit", "repeats", "timed", "compared")
        if self.repeats > MOST_REPEATS:
            raise InputError(f"repeats = {self.repeats} must be at most {MOST_REPEATS:,}")
        if self.prompts < 2 * self.batch:
            raise InputError(
                f"limit = {self.limit} prompts are less than two batches of {self.batch}, one to fit the costs and "
                f"one to check them; use --limit {3 * self.batch}"
            )

    @property
    def prompts(self) -> int:
        """Number of prompts to replay."""
        return self.limit or max(16, 3 * self.batch)


class Candidate(NamedTuple):
    """Policy and its rounds: those of each prompt alone, and those of each batch without the first one, in which the
    draft reads the prompts. mixed: the pair with n-grams in its draft, if these are its rounds."""

    policy: Policy
    alone: list[list[Round]]
    batches: list[list[Round]]
    mixed: Pair | None = None

    @property
    def name(self) -> str:
        """Name of the policy, without its settings, and whether the draft has n-grams."""
        return describe(self.policy).partition(":")[0] + NGRAMS * bool(self.mixed)

    @property
    def label(self) -> str:
        """Name of the policy with the settings that shape its trees, and whether the draft has n-grams."""
        return describe(self.policy, brief=True) + f" {NGRAMS}" * bool(self.mixed)

    @property
    def total(self) -> Totals:
        """Counts of the rounds that each prompt takes alone."""
        rounds = [round for prompt in self.alone for round in prompt]
        columns = ((1, round.accepted, round.verified, len(round.widths)) for round in rounds)
        return Totals(*map(sum, zip(*columns, strict=True))) if rounds else Totals(0, 0, 0, 0)


class Row(NamedTuple):
    """Result of one candidate.

    total: counts of the replayed rounds of each prompt. predicted: new tokens per second on all prompts.
    predicted_there, measured: the same on the prompts that were decoded against the clock. ngrams: of the draft.
    replayed: False for a rehearsal, which cannot be: its rounds are those against the clock, and it is predicted to be
    as far ahead of plain decoding on all prompts as it was there.
    """

    policy: str
    label: str
    total: Totals
    predicted: float
    predicted_there: float | None = None
    measured: float | None = None
    ngrams: bool = False
    replayed: bool = True

    @property
    def corrected(self) -> float:
        """The prediction, off as much on all prompts as the clock found it on those that it saw; 0 if it saw none."""
        seen = self.measured and self.predicted_there
        return self.predicted * self.measured / self.predicted_there if seen else 0.0


class Tuning(NamedTuple):
    """Result of a tuning. rows: fastest prediction first. candidates: the rounds behind them."""

    settings: TuneSettings
    costs: Costs
    rows: list[Row]
    candidates: list[Candidate]

    @property
    def best(self) -> Row:
        """The fastest candidate by the clock, which has seen those that were predicted to be the fastest."""
        return max(self.rows, key=lambda row: row.corrected)

    @property
    def said(self) -> str:
        """The choice and what it gains, in a line."""
        if self.best is self.plain:
            return "plain decoding is the fastest here: no tree pays for its draft"
        predicted, seen = self.best.predicted / self.plain.predicted, self.best.corrected / self.plain.corrected
        beside = f" ({predicted:.2f} predicted)" * self.best.replayed
        return f"{self.best.label}, {seen:.2f} times as fast as plain decoding{beside}"

    @property
    def plain(self) -> Row:
        return next(row for row in self.rows if row.policy == "plain")


def tune(
    pair: Pair,
    policies: Sequence[Policy],
    prompts: Sequence[Prompt],
    settings: TuneSettings = TuneSettings(),
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[int, int, str], None] = lambda done, of, doing: None,
) -> Tuning:
    """Measure costs, predict the speed of every policy, and check the best ones against the clock. Plain decoding is
    always a candidate. Rehearsals cannot be replayed, and compete by the clock alone.

    progress(done, of, doing) counts stages: the texts, every candidate, the curves, the overhead, the check. Raises
    InputError for policies that cannot be replayed.
    """
    for policy in policies:
        check_playable(policy, pair.target)
    rehearsals = [policy for policy in policies if live_only(policy)]
    policies = [policy for policy in policies if not live_only(policy)]
    if Plain() not in policies:
        policies = [Plain(), *policies]
    policies = [untimed(policy) for policy in policies]
    for policy in policies:
        if policy.proposal == "sampled" or not policy.exact:
            raise InputError(f"{describe(policy, brief=True)} cannot be replayed, so not tuned; give ranked policies")
    tried: list[tuple[Policy, Pair | None]] = [(policy, None) for policy in policies]
    mixed = with_ngrams(pair) if settings.ngrams else None
    if mixed:
        tried += [(policy, mixed) for policy in policies if policy != Plain()]
    of = len(tried) + 4
    progress(0, of, "the target writes the texts")
    texts = write(pair, prompts, max(policy.levels for policy in policies), settings)
    candidates = []
    for policy, drafts in tried:
        progress(len(candidates) + 1, of, f"counts {describe(policy, brief=True)}{NGRAMS * bool(drafts)}")
        drawn = settings.seed, settings.batch, settings.temperature
        rounds_of = replayed(drafts or pair, policy, texts, *drawn)
        candidates.append(candidate(policy, rounds_of, settings.batch)._replace(mixed=drafts))
    progress(of - 3, of, "measures forwards")
    rounds = [round for each in candidates for batch in each.batches for round in batch]
    widest = ceil(max((max(round.widths, default=1) for round in rounds), default=1))
    largest = min(MOST, max([MOST // settings.batch, *(ceil(round.verified) for round in rounds)]))
    middle = typical(texts, settings.batch)
    costs = measure(pair, middle, largest=largest, widest=widest, repeats=settings.repeats, clock=clock)
    progress(of - 2, of, "measures the rest of a round")
    race = Race(pair, texts, settings, clock)
    costs = costs._replace(overhead=overheads(costs, candidates, race))
    progress(of - 1, of, "checks the predictions by the clock")
    by_clock = [Candidate(policy, [], [], mixed) for policy in rehearsals]
    rows = check(costs, sorted(candidates, key=lambda each: -predict(costs, each)), race, by_clock)
    progress(of, of, "")
    return Tuning(settings, costs, rows, candidates)


def untimed(policy: Any) -> Policy:
    """Return a policy without its pace, if it has one: rounds against the clock check those replayed, so both go by the
    costs alone."""
    return replace(policy, pace=None) if hasattr(policy, "pace") else policy


def write(pair: Pair, prompts: Sequence[Prompt], levels: int, settings: TuneSettings) -> list[Continuation]:
    """Write the target's texts for whole batches of prompts, long enough to judge trees of `levels` levels. InputError
    for less than two batches."""
    sampling = settings.sampling
    ids = encode(pair, spread(prompts, settings.prompts), settings.max_new_tokens, sampling).ids
    batches = len(ids) // settings.batch
    if batches < 2:
        raise InputError(f"{len(ids)} prompts fill less than two batches of {settings.batch}; give more with --prompts")
    return continuations(pair, ids[: batches * settings.batch], settings.max_new_tokens, levels, sampling)


def typical(texts: Sequence[Continuation], batch: int) -> list[Continuation]:
    """Return a batch of texts of middle length."""
    ordered = sorted(texts, key=lambda text: text.prompt + text.end)
    start = (len(ordered) - batch) // 2
    return ordered[start : start + batch]


def candidate(policy: Policy, alone: list[list[Round]], batch: int) -> Candidate:
    """Return the candidate of a policy whose rounds on each prompt are known, decoding `batch` prompts at a time."""
    batches = [together(alone[start : start + batch])[1:] for start in range(0, len(alone), batch)]
    return Candidate(policy, alone, batches)


def predict(costs: Costs, candidate: Candidate, batches: Sequence[int] | None = None) -> float:
    """Return the predicted new tokens per second over the rounds of these batches (default: all), each round at the
    cost of its own sizes."""
    chosen = candidate.batches if batches is None else [candidate.batches[number] for number in batches]
    rounds = [round for batch in chosen for round in batch]
    seconds = sum(costs.seconds(candidate.name, round) for round in rounds)
    return sum(round.new for round in rounds) / seconds if rounds else 0.0


class Race:
    """Real decoding against the clock, of batches that costs are fitted on and of others that check predictions."""

    def __init__(self, pair: Pair, texts: Sequence[Continuation], settings: TuneSettings, clock: Callable[[], float]):
        self.pair, self.texts, self.settings, self.clock = pair, texts, settings, clock
        batches = len(texts) // settings.batch
        checked = min(settings.timed, batches - 1)
        self.checking, self.fitting = range(checked), range(checked, min(batches, checked + settings.timed))

    def too_short(self) -> InputError:
        """Return what to raise where no round is left to time."""
        tokens = self.settings.max_new_tokens
        return InputError(f"texts of {tokens} tokens are too short to time; give a larger max_new_tokens")

    def run(self, candidates: Sequence[Candidate], batches: Sequence[int]) -> list[list[tuple[Round, float]]]:
        """Return each candidate's rounds with their seconds. All candidates take turns on each batch, because a machine
        may drift."""
        results: list[list[tuple[Round, float]]] = [[] for _ in candidates]
        sampling = self.settings.sampling
        for batch in batches:
            numbers = range(batch * self.settings.batch, (batch + 1) * self.settings.batch)
            texts = [self.texts[number] for number in numbers]
            for result, each in zip(results, candidates, strict=True):
                result += timed(each.mixed or self.pair, each.policy, texts, numbers, sampling, self.clock)
        return results


def overheads(costs: Costs, candidates: Sequence[Candidate], race: Race) -> dict[str, Overhead]:
    """Return the seconds that rounds take beyond their forwards, for each kind of policy, fitted on real rounds of its
    `runners`. InputError for texts too short to time."""
    kinds: dict[str, list[Candidate]] = {}
    for each in candidates:
        kinds.setdefault(each.name, []).append(each)
    chosen = [each for kind in kinds.values() for each in runners(costs, kind)]
    excess: dict[str, list[tuple[int, float]]] = {name: [] for name in kinds}
    for each, rounds in zip(chosen, race.run(chosen, race.fitting), strict=True):
        excess[each.name] += [(len(round.widths), seconds - costs.forwards(round)) for round, seconds in rounds]
    if not all(excess.values()):
        raise race.too_short()
    return {name: fit_overhead(*zip(*points, strict=True)) for name, points in excess.items()}


def runners(costs: Costs, kind: Sequence[Candidate]) -> list[Candidate]:
    """Return the members of a kind of policy whose rounds are timed: the one that drafts the least, and of the others'
    faster half, by their forwards alone, the one that drafts the most."""
    # Not the most of all: a forward of many nodes is mismeasured by more than the rest of a round takes, and a line
    # through such a round, which nobody would choose, is wrong for those that matter.
    free = costs._replace(overhead={kind[0].name: Overhead(0.0, 0.0)})
    ranked = sorted(kind, key=lambda each: -predict(free, each))
    least = min(ranked, key=passes)
    others = [each for each in ranked if passes(each) > passes(least)]
    return [least, *([max(others[: ceil(len(others) / 2)], key=passes)] if others else [])]


def passes(each: Candidate) -> float:
    """Return a candidate's draft forwards a round."""
    return each.total.draft_passes


def check(costs: Costs, ranked: Sequence[Candidate], race: Race, by_clock: Sequence[Candidate] = ()) -> list[Row]:
    """Return the candidates as rows; the best of them, plain decoding and those `by_clock` alone are also decoded
    against the clock. InputError for texts too short to time."""
    plain = [each for each in ranked if each.policy == Plain()][:1]
    contestants = list(ranked[: race.settings.compared])
    contestants += [each for each in plain if each not in contestants]
    everyone = [*contestants, *by_clock]
    measured = dict(zip(map(id, everyone), race.run(everyone, race.checking), strict=True))
    rows = []
    for each in ranked:
        row = Row(describe(each.policy), each.label, each.total, predict(costs, each), ngrams=bool(each.mixed))
        if id(each) in measured:
            run = measured[id(each)]
            if not run and each in plain:
                raise race.too_short()
            row = row._replace(predicted_there=predict(costs, each, race.checking), measured=speed(run))
        rows.append(row)
    base = next(row for row in rows if row.policy == describe(plain[0].policy))
    for each in by_clock:
        run = measured[id(each)]
        found = speed(run)
        expected = found * base.corrected / base.measured
        counts = counted([round for round, _ in run])
        rows.append(Row(describe(each.policy), each.label, counts, expected, found, found, bool(each.mixed), False))
    return sorted(rows, key=lambda row: -row.predicted)


def counted(rounds: Sequence[Round]) -> Totals:
    """Return the counts of timed rounds of batches, for each row by itself; draft passes were not counted."""
    columns = ((each.rows, each.accepted, each.rows * each.verified) for each in rounds)
    rows, accepted, verified = map(sum, zip(*columns, strict=True)) if rounds else (0, 0, 0)
    return Totals(rows, accepted, round(verified), 0)


def speed(run: Sequence[tuple[Round, float]]) -> float:
    """Return the new tokens per second of timed rounds, 0 if there are none."""
    return sum(round.new for round, _ in run) / sum(seconds for _, seconds in run) if run else 0.0
