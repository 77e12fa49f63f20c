"""Search for the fastest policy on this machine: replay gives the sizes of each candidate's rounds, measured costs
predict their seconds, and the candidates with the best predictions are timed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from c2t.costs.measure import measure
from c2t.costs.statistics import Counts, Totals, total
from c2t.errors import InputError, at_least_one
from c2t.models.loading.load import Pair, with_ngrams
from c2t.models.wrappers.ngrams import NGRAMS
from c2t.output.progress import ProgressCallback
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

MOST_REPEATS = 10_000  # measurements of each forward; a median needs no more
DEFAULT_CANDIDATES = tried_by("tune")


@dataclass(frozen=True, kw_only=True)
class TuneSettings(RunSettings):
    """Settings of a tuning.

    batch: prompts decoded together. limit: prompts to replay (None: 16, or as many as three batches need). repeats:
    measurements of each forward. timed: batches that the `compared` best candidates and the best of each kind of policy
    decode. ngrams: every policy is tried a second time, with the text's n-grams in the draft.
    """

    temperature: float = 0.0  # as in `c2t generate`
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

    rounds: of each prompt; None for a policy that cannot be replayed. total: counts of its rounds. predicted: on all
    prompts. predicted_there, measured: on the prompts of the timed batches. ngrams: True if the draft has them.
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
        """Name of the policy without its settings, with that of the n-grams if the draft has them."""
        return describe(self.policy).partition(":")[0] + NGRAMS * self.ngrams

    @property
    def label(self) -> str:
        """Name of the policy with the settings that shape its trees, and that of the n-grams if the draft has them."""
        return describe(self.policy, brief=True) + f" {NGRAMS}" * self.ngrams

    @property
    def corrected(self) -> float:
        """The prediction for all prompts, corrected by its error on the timed batches; 0 if it was not timed."""
        timed = self.measured and self.predicted_there
        return self.predicted * self.measured / self.predicted_there if timed else 0.0


class Tuning(NamedTuple):
    """Result of a tuning. rows: fastest prediction first."""

    settings: TuneSettings
    costs: RoundCosts
    rows: list[Candidate]

    @property
    def best(self) -> Candidate:
        """The fastest of the timed candidates."""
        return max(self.rows, key=lambda row: row.corrected)

    @property
    def plain(self) -> Candidate:
        return next(row for row in self.rows if not row.policy.levels)

    @property
    def summary(self) -> str:
        """The choice and its speedup, in a line."""
        if self.best is self.plain:
            return "plain decoding is the fastest here: no tree is profitable"
        predicted, measured = self.best.predicted / self.plain.predicted, self.best.corrected / self.plain.corrected
        prediction = f" ({predicted:.2f} predicted)" * (self.best.rounds is not None)
        return f"{self.best.label}, {measured:.2f} times as fast as plain decoding{prediction}"


def tune(
    pair: Pair,
    policies: Sequence[Policy],
    prompts: Sequence[Prompt],
    settings: TuneSettings = TuneSettings(),
    progress: ProgressCallback = lambda done, of, doing: None,
) -> Tuning:
    """Measure costs, predict the speed of every policy, and time the best predictions. Plain decoding is always a
    candidate. Drafting with the int4 target cannot be replayed, and is only timed.

    A budget among the policies brings its costs; else they are measured. progress(done, of, doing) counts stages: the
    texts, the costs, every candidate, the timing. Raises InputError for policies that cannot be replayed.
    """
    for policy in policies:
        check_compatible(policy, pair.target)
        if policy.proposal == "sampled" or not policy.exact:
            raise InputError(f"{describe(policy, brief=True)} cannot be replayed, so not tuned; give ranked policies")
    only_timed = [policy for policy in policies if live_only(policy)]
    predictable = [policy for policy in policies if policy not in only_timed]
    if all(policy.levels for policy in predictable):
        predictable = [Plain(), *predictable]
    pairs = {False: pair, **({True: with_ngrams(pair)} if settings.ngrams else {})}
    candidates = [(policy, ngrams) for ngrams in pairs for policy in predictable if policy.levels or not ngrams]
    of = len(candidates) + 3
    progress(0, of, "the target generates the texts")
    texts = whole_batches(pair, prompts, max(policy.levels for policy in predictable), settings)
    progress(1, of, "measures rounds")
    costs = costs_of_rounds(pair, predictable, texts, settings.repeats)
    rows: list[Candidate] = []
    for policy, ngrams in candidates:
        progress(len(rows) + 2, of, f"counts {describe(policy, brief=True)}{NGRAMS * ngrams}")
        rounds = replayed(pairs[ngrams], policy, texts, settings.seed, settings.batch, settings.temperature)
        predicted = predict(costs, rounds, settings.batch)
        rows.append(Candidate(policy, rounds, counted(rounds), predicted, ngrams=ngrams))
    progress(of - 1, of, "times the best predictions")
    rows.sort(key=lambda row: -row.predicted)
    rows += [Candidate(policy, None, Totals(0, 0, 0, 0), 0.0) for policy in only_timed]
    rows = with_measurements(rows, costs, pairs, texts, settings)
    progress(of, of, "")
    return Tuning(settings, costs, sorted(rows, key=lambda row: -row.predicted))


def whole_batches(pair: Pair, prompts: Sequence[Prompt], levels: int, settings: TuneSettings) -> list[Continuation]:
    """Return the target's texts for whole batches of prompts, long enough to verify trees of `levels` levels.
    InputError for less than a batch, and for texts too short to time."""
    sampling = settings.sampling
    ids = encode(pair, spread(prompts, settings.prompts), settings.max_new_tokens, sampling).ids
    whole = len(ids) // settings.batch * settings.batch
    if not whole:
        raise InputError(f"{len(ids)} prompts do not fill a batch of {settings.batch}; give more with --prompts")
    texts = continuations(pair, ids[:whole], settings.max_new_tokens, levels, sampling)
    if all(text.end - text.prompt <= 1 for text in texts[: settings.timed * settings.batch]):  # the prefill's token
        tokens = settings.max_new_tokens
        raise InputError(f"texts of {tokens} tokens are too short to time; give a larger max_new_tokens")
    return texts


def costs_of_rounds(pair: Pair, policies: Sequence[Policy], texts: Sequence[Continuation], repeats: int) -> RoundCosts:
    """Return the costs of rounds on this machine: those of a budget among the policies, else measured now."""
    costs = next((costs for policy in policies if (costs := getattr(policy, "costs", None))), None)
    if costs:
        return costs
    drafting = next((policy for policy in policies if policy.levels and not hasattr(policy, "policy")), Plain())
    return measure(pair, drafting, [text.tokens[: text.prompt].tolist() for text in texts], repeats)


def predict(costs: RoundCosts, rounds: Sequence[Sequence[Round]], batch: int) -> float:
    """Return the predicted new tokens per second of prompts decoded `batch` at a time, each round at the cost of its
    size. rounds: of each prompt."""
    new, seconds = 0, 0.0
    for start in range(0, len(rounds), batch):
        for number, round in enumerate(together(rounds[start : start + batch])):
            # The first forward of later rounds reads what was accepted, which the measured overhead includes.
            widths = (round.rows, *round.widths[1:]) if number and round.widths else round.widths
            new, seconds = new + round.new, seconds + float(costs.seconds(round.rows, widths, round.verified))
    return new / seconds if new else 0.0


def counted(rounds: Sequence[Sequence[Round]]) -> Totals:
    """Return the counts of the rounds that each prompt takes alone."""
    flat = [round for prompt in rounds for round in prompt]
    accepted, verified = sum(round.accepted for round in flat), sum(round.verified for round in flat)
    return Totals(len(flat), accepted, verified, sum(len(round.widths) for round in flat))


def with_measurements(
    rows: Sequence[Candidate],
    costs: RoundCosts,
    pairs: dict[bool, Pair],
    texts: Sequence[Continuation],
    settings: TuneSettings,
) -> list[Candidate]:
    """Time `contestants` on the first batches of texts, and return all candidates. rows: fastest prediction first.

    A candidate without a prediction gets that of plain decoding, times its measured speedup.
    """
    batch = settings.batch
    starts = range(0, min(settings.timed * batch, len(texts)), batch)
    groups = [group(texts[start : start + batch], start) for start in starts]
    chosen = contestants(rows, settings.compared)
    runs: list[list[Run]] = [[] for _ in chosen]
    for number, run in race([Entrant(pairs[rows[row].ngrams], rows[row].policy) for row in chosen], groups, settings):
        runs[number].append(run)

    def predicted_there(row: Candidate) -> float:
        return predict(costs, row.rounds[: len(groups) * batch], batch)

    plain = next(row for row in rows if not row.policy.levels)
    timed = list(rows)
    for number, row_runs in zip(chosen, runs, strict=True):
        row, speed = rows[number], sum(run.new for run in row_runs) / sum(run.seconds for run in row_runs)
        if row.rounds is None:
            predicted = speed * plain.predicted / predicted_there(plain)
            counts = total(run.statistics for run in row_runs)
            timed[number] = row._replace(predicted=predicted, predicted_there=speed, measured=speed, total=counts)
        else:
            timed[number] = row._replace(predicted_there=predicted_there(row), measured=speed)
    return timed


def contestants(rows: Sequence[Candidate], compared: int) -> list[int]:
    """Return the numbers of the first `compared` candidates, of the first of each kind of policy (the costs leave
    out a kind's overhead), plain decoding included, and of those that were not replayed."""
    firsts: dict[str, int] = {}
    for number, row in enumerate(rows):
        firsts.setdefault(row.name, number)
    return [
        number
        for number, row in enumerate(rows)
        if number < compared or firsts[row.name] == number or row.rounds is None
    ]


def group(texts: Sequence[Continuation], first: int) -> Group:
    """Return the prompts of these texts as a batch, with their numbers of new tokens. first: number of the first
    text."""
    prompts = [text.tokens[: text.prompt].tolist() for text in texts]
    return Group(prompts, range(first, first + len(texts)), [text.end - text.prompt for text in texts])
