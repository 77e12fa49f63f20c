"""Search for the fastest policy on this machine. Exact replay gives the sizes of each candidate's rounds, measured
costs turn them into seconds, and a race against the clock decides among the best predictions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from c2t.costs.measure import measure
from c2t.costs.statistics import Counts, Totals, total
from c2t.errors import InputError, at_least_one
from c2t.models.loading.load import Pair, with_ngrams
from c2t.models.wrappers.ngrams import NGRAMS
from c2t.policies.plain import Plain
from c2t.policies.round_costs import RoundCosts
from c2t.policies.spec import describe, tried_by
from c2t.protocols import Policy
from c2t.replay.lockstep import Continuation
from c2t.replay.prompts import Prompt, spread
from c2t.replay.settings import RunSettings
from c2t.study.batches import Entrant, Group, Run, race
from c2t.study.evaluate import continuations, encode
from c2t.study.rounds import Round, replayed, together
from c2t.verification.compatibility import check_compatible, live_only

MOST_REPEATS = 10_000  # of each forward; a median needs no more
DEFAULT_CANDIDATES = tried_by("tune")


@dataclass(frozen=True, kw_only=True)
class TuneSettings(RunSettings):
    """Settings of a tuning.

    batch: prompts decoded together. limit: prompts to replay (None: 16, or as many as three batches need). repeats:
    measurements of each forward. timed: batches decoded against the clock, by the `compared` best candidates and the
    best of each kind of policy. ngrams: every policy is tried a second time, with the text's n-grams in the draft.
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
        if self.prompts < self.batch:
            raise InputError(
                f"limit = {self.limit} prompts do not fill a batch of {self.batch}; use --limit {self.batch}"
            )

    @property
    def prompts(self) -> int:
        """Number of prompts to replay."""
        return self.limit or max(16, 3 * self.batch)


class Candidate(NamedTuple):
    """A policy and its speed, in new tokens per second.

    rounds: of each prompt; None for a policy that cannot be replayed. total: counts of its rounds. predicted: by the
    costs, on all prompts. predicted_there, measured: by the costs and by the clock, on the prompts of the race. ngrams:
    whether they are in its draft.
    """

    policy: Policy
    rounds: list[list[Round]] | None
    total: Counts
    predicted: float
    predicted_there: float | None = None
    measured: float | None = None
    ngrams: bool = False

    @property
    def name(self) -> str:
        """Name of the policy, without its settings, and whether the draft has n-grams."""
        return describe(self.policy).partition(":")[0] + NGRAMS * self.ngrams

    @property
    def label(self) -> str:
        """Name of the policy with the settings that shape its trees, and whether the draft has n-grams."""
        return describe(self.policy, brief=True) + f" {NGRAMS}" * self.ngrams

    @property
    def corrected(self) -> float:
        """The prediction, off as much on all prompts as the clock found it on those of the race; 0 without one."""
        seen = self.measured and self.predicted_there
        return self.predicted * self.measured / self.predicted_there if seen else 0.0


class Tuning(NamedTuple):
    """Result of a tuning. rows: fastest prediction first."""

    settings: TuneSettings
    costs: RoundCosts
    rows: list[Candidate]

    @property
    def best(self) -> Candidate:
        """The fastest candidate by the clock, which has seen those that were predicted to be the fastest."""
        return max(self.rows, key=lambda row: row.corrected)

    @property
    def plain(self) -> Candidate:
        return next(row for row in self.rows if not row.policy.levels)

    @property
    def said(self) -> str:
        """The choice and what it gains, in a line."""
        if self.best is self.plain:
            return "plain decoding is the fastest here: no tree pays for its draft"
        predicted, seen = self.best.predicted / self.plain.predicted, self.best.corrected / self.plain.corrected
        beside = f" ({predicted:.2f} predicted)" * (self.best.rounds is not None)
        return f"{self.best.label}, {seen:.2f} times as fast as plain decoding{beside}"


def tune(
    pair: Pair,
    policies: Sequence[Policy],
    prompts: Sequence[Prompt],
    settings: TuneSettings = TuneSettings(),
    progress: Callable[[int, int, str], None] = lambda done, of, doing: None,
) -> Tuning:
    """Measure costs, predict the speed of every policy, and check the best ones against the clock. Plain decoding is
    always a candidate. Rehearsals cannot be replayed, and compete by the clock alone.

    A budget among the policies brings its costs; else they are measured. progress(done, of, doing) counts stages: the
    texts, the costs, every candidate, the race. Raises InputError for policies that cannot be replayed.
    """
    for policy in policies:
        check_compatible(policy, pair.target)
        if policy.proposal == "sampled" or not policy.exact:
            raise InputError(f"{describe(policy, brief=True)} cannot be replayed, so not tuned; give ranked policies")
    by_clock = [policy for policy in policies if live_only(policy)]
    by_costs = [policy for policy in policies if policy not in by_clock]
    if all(policy.levels for policy in by_costs):
        by_costs = [Plain(), *by_costs]
    pairs = {False: pair, **({True: with_ngrams(pair)} if settings.ngrams else {})}
    tried = [(policy, ngrams) for ngrams in pairs for policy in by_costs if policy.levels or not ngrams]
    of = len(tried) + 3
    progress(0, of, "the target writes the texts")
    texts = write(pair, prompts, max(policy.levels for policy in by_costs), settings)
    progress(1, of, "measures rounds")
    costs = costs_of(pair, by_costs, texts, settings)
    rows: list[Candidate] = []
    for policy, ngrams in tried:
        progress(len(rows) + 2, of, f"counts {describe(policy, brief=True)}{NGRAMS * ngrams}")
        rounds = replayed(pairs[ngrams], policy, texts, settings.seed, settings.batch, settings.temperature)
        predicted = predict(costs, rounds, settings.batch)
        rows.append(Candidate(policy, rounds, counted(rounds), predicted, ngrams=ngrams))
    progress(of - 1, of, "checks the predictions by the clock")
    rows.sort(key=lambda row: -row.predicted)
    rows += [Candidate(policy, None, Totals(0, 0, 0, 0), 0.0) for policy in by_clock]
    rows = check(rows, costs, pairs, texts, settings)
    progress(of, of, "")
    return Tuning(settings, costs, sorted(rows, key=lambda row: -row.predicted))


def write(pair: Pair, prompts: Sequence[Prompt], levels: int, settings: TuneSettings) -> list[Continuation]:
    """Write the target's texts for whole batches of prompts, long enough to judge trees of `levels` levels. InputError
    for less than a batch, and for texts too short to time."""
    sampling = settings.sampling
    ids = encode(pair, spread(prompts, settings.prompts), settings.max_new_tokens, sampling).ids
    whole = len(ids) // settings.batch * settings.batch
    if not whole:
        raise InputError(f"{len(ids)} prompts do not fill a batch of {settings.batch}; give more with --prompts")
    texts = continuations(pair, ids[:whole], settings.max_new_tokens, levels, sampling)
    if not any(map(new_tokens, texts[: settings.timed * settings.batch])):
        tokens = settings.max_new_tokens
        raise InputError(f"texts of {tokens} tokens are too short to time; give a larger max_new_tokens")
    return texts


def new_tokens(text: Continuation) -> int:
    """Return the tokens of a text behind the first one, which the prompt's own forward gives."""
    return text.end - text.prompt - 1


def costs_of(
    pair: Pair, policies: Sequence[Policy], texts: Sequence[Continuation], settings: TuneSettings
) -> RoundCosts:
    """Return the costs of rounds on this machine: those of a budget, which were measured for it, else measured now."""
    known = next((costs for policy in policies if (costs := getattr(policy, "costs", None))), None)
    if known:
        return known
    drafting = next((policy for policy in policies if policy.levels and not hasattr(policy, "policy")), Plain())
    return measure(pair, drafting, [text.tokens[: text.prompt].tolist() for text in texts], settings.repeats)


def predict(costs: RoundCosts, rounds: Sequence[Sequence[Round]], batch: int) -> float:
    """Return the predicted new tokens per second of prompts decoded `batch` at a time, each round at the cost of its
    own size. rounds: of each prompt."""
    parts = (rounds[start : start + batch] for start in range(0, len(rounds), batch))
    played = [round for part in parts for round in together(part)]
    seconds = sum(costs.seconds(round.rows, round.widths, round.verified) for round in played)
    return float(sum(round.new for round in played) / seconds) if played else 0.0


def counted(rounds: Sequence[Sequence[Round]]) -> Totals:
    """Return the counts of the rounds that each prompt takes alone."""
    every = [round for prompt in rounds for round in prompt]
    passes = sum(len(round.widths) for round in every)
    return Totals(len(every), sum(each.accepted for each in every), sum(each.verified for each in every), passes)


def check(
    rows: Sequence[Candidate],
    costs: RoundCosts,
    pairs: dict[bool, Pair],
    texts: Sequence[Continuation],
    settings: TuneSettings,
) -> list[Candidate]:
    """Return the candidates with what the clock finds of some of them, on the first batches of texts: see
    `contestants`. rows: fastest prediction first."""
    batch = settings.batch
    starts = range(0, min(settings.timed * batch, len(texts)), batch)
    groups = [group(texts[start : start + batch], start) for start in starts]
    chosen = contestants(rows, settings.compared)
    entrants = [Entrant(pairs[rows[number].ngrams], rows[number].policy) for number in chosen]
    runs: dict[int, list[Run]] = {number: [] for number in chosen}
    for entrant, run in race(entrants, groups, settings):
        runs[chosen[entrant]].append(run)
    found = list(rows)
    for number, mine in runs.items():
        row, speed = rows[number], sum(run.new for run in mine) / sum(run.seconds for run in mine)
        there = speed if row.rounds is None else predict(costs, row.rounds[: len(groups) * batch], batch)
        found[number] = row._replace(predicted_there=there, measured=speed)
    plain = next(row for row in found if not row.policy.levels)
    for number, mine in runs.items():
        if found[number].rounds is None:  # it is as far ahead of plain decoding on all prompts as it was there
            predicted = found[number].measured * plain.predicted / plain.predicted_there
            found[number] = found[number]._replace(predicted=predicted, total=total(run.statistics for run in mine))
    return found


def contestants(rows: Sequence[Candidate], compared: int) -> list[int]:
    """Return the numbers of the first `compared` candidates, of the first of each kind of policy, whose own work the
    costs do not know, so also of plain decoding, and of those that were not replayed."""
    firsts: dict[str, int] = {}
    for number, row in enumerate(rows):
        firsts.setdefault(row.name, number)
    return [
        number
        for number, row in enumerate(rows)
        if number < compared or firsts[row.name] == number or row.rounds is None
    ]


def group(texts: Sequence[Continuation], first: int) -> Group:
    """Return the prompts of these texts as a batch whose texts have their tokens. first: the number of the first."""
    prompts = [text.tokens[: text.prompt].tolist() for text in texts]
    return Group(prompts, range(first, first + len(texts)), [text.end - text.prompt for text in texts])
