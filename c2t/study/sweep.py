"""Many policies on the same texts: a grid of settings becomes points with the counts of every prompt."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from c2t.classifier import TreeClassifier
from c2t.costs.statistics import Statistics
from c2t.errors import InputError, counted
from c2t.models.loading.load import Pair
from c2t.output.progress import ProgressCallback
from c2t.policies.medusa_tree import Accuracies
from c2t.policies.round_costs import RoundCosts
from c2t.policies.spec import describe, parse, split, tried_by
from c2t.protocols import Policy
from c2t.replay.lockstep import Continuation
from c2t.replay.prompts import Encoded, Prompt, spread
from c2t.study.evaluate import StudySettings, continuations, encode, evaluate, must_run
from c2t.study.oracle import Oracle, OracleDraft
from c2t.study.pareto import LIMIT
from c2t.study.points import Condition, Point, append_point, drop_unfinished_line, read_points
from c2t.verification.compatibility import check_compatible

if TYPE_CHECKING:  # Ray is an extra
    from c2t.harvest.ray_pool import RayPool

# Ranked policies that need no training, each from a small tau to the largest profitable one.
DEFAULT_GRID = tried_by("sweep")
MOST_POINTS = 10_000  # in a grid
ORACLE_THRESHOLDS = (0.3, 0.1, 0.03, 0.01, 0.003)


@dataclass(frozen=True, kw_only=True)
class SweepSettings(StudySettings):
    """Settings of a sweep: fewer prompts, because there are many policies."""

    limit: int | None = 16


class GridPolicy(NamedTuple):
    """Policy to sweep. family: that of its front. text: all of its settings. label: those that shape its trees."""

    family: str
    policy: Policy
    text: str
    label: str


class Sweep(NamedTuple):
    """Result of a sweep. points: in the order of the candidates. stored: number of points that were in the file
    already. skipped: turns that are too long for the target."""

    condition: Condition
    points: list[Point]
    stored: int
    skipped: int


def candidates(
    grid: str,
    classifier: Callable[..., TreeClassifier],
    acceptance: Callable[[float], tuple[float, ...]] | None = None,
    costs: Callable[[Policy], RoundCosts] | None = None,
) -> list[GridPolicy]:
    """Return the policies of a grid, each once, in families by their names; InputError as in `parse`.

    `c2t:beta=0.1|0.3,eagle2:N=26|60,levels=4|6` are 2 + 4 policies.
    """
    policies = [parse(spec, classifier, acceptance, costs) for spec in expand(grid)]
    distinct = {(describe(policy), _network(policy)): policy for policy in policies}
    return [
        GridPolicy(text.partition(":")[0], policy, text, describe(policy, brief=True))
        for (text, _), policy in distinct.items()
    ]


def expand(grid: str) -> list[str]:
    """Return the texts of all policies of a grid: for each the product of its settings' alternatives, the last one
    fastest. Raises InputError for more than MOST_POINTS."""
    if (number := points(grid)) > MOST_POINTS:
        raise InputError(f"the grid has {counted(number)} points; at most {MOST_POINTS:,} fit: leave some out")
    specs: list[str] = []
    for text in split(grid):
        name, _, settings = text.partition(":")
        keys, values = zip(*map(_setting, settings.split(",")), strict=True)
        for chosen in product(*(value.split("|") for value in values)):
            setting = ",".join(f"{key}={value}" for key, value in zip(keys, chosen, strict=True) if key)
            specs.append(f"{name}:{setting}" if setting else name)
    return specs


def _setting(text: str) -> tuple[str, str]:
    """Split at the last sign: `beta=0.1|0.3`, and a budget's `of=c2t:beta=0.1|0.3`."""
    key, sign, value = text.rpartition("=")
    return (key, value) if sign else (text, "")


def points(grid: str) -> int:
    """Return the number of texts that `expand` returns, without making them."""
    return sum(prod(setting.count("|") + 1 for setting in text.split(",")) for text in split(grid))


def oracles(thresholds: Sequence[float] = ORACLE_THRESHOLDS) -> list[GridPolicy]:
    """Return the oracle's policies, a family of its own: the limit for the draft."""
    policies = [Oracle(threshold) for threshold in thresholds]
    return [
        GridPolicy(LIMIT, p, f"{LIMIT}:threshold={p.threshold},K={p.K},levels={p.levels}", f"{LIMIT}:{p.threshold}")
        for p in policies
    ]


def sweep(
    pair: Pair,
    grid: Sequence[GridPolicy],
    prompts: Sequence[Prompt],
    settings: SweepSettings = SweepSettings(),
    file: Path | None = None,
    progress: ProgressCallback = lambda done, of, doing: None,
    pool: "RayPool | None" = None,
) -> Sweep:
    """Return the points of all candidates on the same texts, which are generated once.

    pool: actors that hold the same pair and share the candidates; the points are the same.

    file: finished points are appended to it one by one; stored points of the same condition are not counted again.
    Raises InputError for an empty grid, for texts without rounds, and for a file of another kind.
    """
    if not grid:
        raise InputError("the grid has no policies: name at least one, as in c2t:beta=0.1|0.3,eagle2:N=26|60")
    for candidate in grid:
        check_compatible(candidate.policy, pair.target)
    read = read_points(file) if file and file.exists() else {}
    chosen = spread(prompts, settings.limit)
    sampling = settings.sampling
    encoded = encode(pair, chosen, settings.max_new_tokens, sampling)
    condition = _condition(pair, chosen, encoded, settings)
    stored = {_key(point): point for point in read.get(condition, [])}
    missing = [candidate for candidate in grid if _key(candidate) not in stored]
    old, of = len(grid) - len(missing), len(grid) * len(encoded.ids)
    if missing and file:
        drop_unfinished_line(file)
    policies = [candidate.policy for candidate in missing]
    replayed = [policy for policy in policies if not must_run(policy, settings.rule_of(policy), sampling)]
    deepest = max((policy.levels for policy in replayed), default=None)
    progress(old * len(encoded.ids), of, "the target generates the texts" if replayed else "")
    done = old * len(encoded.ids)

    def report(more: int, label: str) -> None:
        nonlocal done
        progress(done + more, of, label)

    def by_actors(pool: "RayPool") -> Iterator[list[Statistics]]:
        def finished(candidate: GridPolicy) -> None:
            nonlocal done
            done += len(encoded.ids)
            report(0, f"{len(pool.actors)} workers")

        return pool.map(partial(_count_on, encoded=encoded, settings=settings, deepest=deepest), missing, finished)

    def here() -> Iterator[list[Statistics]]:
        nonlocal done
        texts = _texts(pair, encoded, settings, deepest)
        for candidate in missing:
            yield _count(pair, candidate, encoded, settings, texts, partial(report, label=candidate.label))
            done += len(encoded.ids)

    try:
        for candidate, statistics in zip(missing, by_actors(pool) if pool else here(), strict=True):
            point = _point(candidate, _by_prompt(statistics, encoded))
            if not sum(point.rounds):  # which no front has a place for, and `read_points` refuses
                raise InputError(
                    "no rounds to count: every text ends with its first token; raise max_new_tokens or change prompts"
                )
            stored[_key(point)] = point
            if file:
                append_point(file, condition, point)
    except BaseException as error:
        if file:
            error.add_note(
                f"the finished points of {len(grid)} are stored in {file}; the same command continues with the rest"
            )
        raise
    return Sweep(condition, [stored[_key(candidate)] for candidate in grid], old, encoded.skipped)


def _count_on(
    pair: Pair, candidate: GridPolicy, encoded: Encoded, settings: SweepSettings, deepest: int | None
) -> list[Statistics]:
    """Count a candidate in an actor, which takes the texts from its cache or generates them."""
    texts = _texts(pair, encoded, settings, deepest)
    return _count(pair, candidate, encoded, settings, texts, lambda done: None)


def _texts(pair: Pair, encoded: Encoded, settings: SweepSettings, deepest: int | None) -> Sequence[Continuation] | None:
    """Return the texts for replays of trees of up to `deepest` levels; None for no replays, which need none."""
    if deepest is None:
        return None
    return continuations(pair, encoded.ids, settings.max_new_tokens, deepest, settings.sampling)


def _count(
    pair: Pair,
    candidate: GridPolicy,
    encoded: Encoded,
    settings: SweepSettings,
    texts: Sequence[Continuation] | None,
    progress: Callable[[int], None],
) -> list[Statistics]:
    oracle = isinstance(candidate.policy, Oracle)
    return evaluate(
        pair,
        candidate.policy,
        encoded.ids,
        max_new_tokens=settings.max_new_tokens,
        sampling=settings.sampling,
        rule=settings.rule_of(candidate.policy),
        texts=texts,
        drafter=OracleDraft(pair.draft, pair.target, settings.temperature) if oracle else None,
        progress=progress,
    )


def _by_prompt(statistics: Sequence[Statistics], encoded: Encoded) -> Iterator[Statistics]:
    """Yield the sums over each conversation's turns: they depend on each other, so a bootstrap must not separate
    them."""
    turns: dict[int, list[Statistics]] = {}
    for turn, prompt in zip(statistics, encoded.prompts, strict=True):
        turns.setdefault(id(prompt), []).append(turn)
    return (sum(conversation, Statistics()) for conversation in turns.values())


def _point(candidate: GridPolicy, prompts: Iterator[Statistics]) -> Point:
    counts = [(s.rounds, sum(s.accepted), s.verified_tokens, sum(s.passes)) for s in prompts]
    return Point(
        candidate.family, candidate.text, candidate.label, _network(candidate.policy), *zip(*counts, strict=True)
    )


def _key(candidate: GridPolicy | Point) -> tuple[str, str, str | None]:
    """Return the fields that distinguish points of one condition."""
    if isinstance(candidate, Point):
        return candidate.family, candidate.policy, candidate.classifier
    return candidate.family, candidate.text, _network(candidate.policy)


def _network(policy: Policy) -> str | None:
    """Return a hash of the classifier, the measured accuracies or a budget's costs that a policy uses; None without
    any."""
    costs, policy = getattr(policy, "costs", None), getattr(policy, "policy", policy)
    if costs is not None:
        return hashlib.sha256(f"{costs} {_network(policy)}".encode()).hexdigest()[:16]
    for field in fields(policy):
        network = getattr(policy, field.name)
        if isinstance(network, Accuracies):
            return hashlib.sha256(repr(network.rates).encode()).hexdigest()[:16]
        if isinstance(network, TreeClassifier):
            digest = hashlib.sha256(repr(network.config.features).encode())
            for name, tensor in network.state_dict().items():
                digest.update(name.encode() + tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
            return digest.hexdigest()[:16]
    return None


def _condition(pair: Pair, chosen: Sequence[Prompt], encoded: Encoded, settings: SweepSettings) -> Condition:
    return Condition(
        pair=pair.name,
        target=pair.sources["target"][1],
        draft=pair.sources["draft"][1],
        draft_name=Path(pair.sources["draft"][0]).name,
        dtype=pair.arithmetic,
        temperature=settings.temperature,
        seed=settings.seed,
        max_new_tokens=settings.max_new_tokens,
        rule=settings.rule,
        files=tuple(dict.fromkeys(prompt.file for prompt in chosen)),
        prompts=len({id(prompt) for prompt in encoded.prompts}),
        texts=hashlib.sha256(repr(encoded.ids).encode()).hexdigest()[:16],
        draws=settings.sampling.version,
    )
