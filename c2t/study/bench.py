"""Policies compared on one pair: gamma, tau and draft passes over all prompts, tokens per second on a few of them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from c2t.costs.statistics import Statistics, total
from c2t.errors import InputError
from c2t.models.loading.load import Pair
from c2t.output.progress import ProgressCallback
from c2t.policies.plain import Plain
from c2t.policies.spec import describe, split, tried_by
from c2t.protocols import Policy
from c2t.replay.prompts import Prompt, spread
from c2t.sampling import Sampling
from c2t.study.batches import BatchSettings
from c2t.study.evaluate import StudySettings, continuations, encode, evaluate, share_of_loops
from c2t.verification.compatibility import check_compatible
from c2t.verification.target_verifier import generate

DEFAULT_POLICIES = (
    "plain,eagle2:N=26,eagle2:N=60,eagle2:N=100,c2t,c2t:beta=0.3,c2t:beta=0.5,c2t:beta=0.65,c2t:beta=0.85"
)
ALL_POLICIES = tried_by("bench")
WARM_UP_TOKENS = 8


@dataclass(frozen=True, kw_only=True)
class BenchSettings(StudySettings):
    """Settings of a bench. timed: prompts that are also decoded one by one and timed (0: none). live: count in the
    live loop instead of in replay."""

    limit: int | None = 6
    timed: int = 2
    live: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.timed < 0:
            raise InputError(f"timed = {self.timed} must be 0 (no timing) or more")


class Row(NamedTuple):
    """Result of one policy.

    policy: all of its settings. label: those that shape its trees. total: counts of all prompts. against_plain,
    against_hf: its tokens per second over those of plain decoding by the same target code, and over those of
    transformers' generate. categories: tau of each category of prompts. alpha (MCSD+): tau as a share of the longest
    draft, where drafts have one length.
    """

    policy: str
    label: str
    exact: bool
    rule: str
    total: Statistics
    tokens_per_second: float | None
    against_plain: float | None
    against_hf: float | None
    categories: dict[str, float]
    alpha: float | None


class Bench(NamedTuple):
    """Result of a bench: a row for each policy, and facts about the texts."""

    settings: BenchSettings
    rows: list[Row]
    prompts: int
    skipped: int  # too long for the target
    looping: float | None  # share of the texts that end in a loop; None if live
    hf_tokens_per_second: float | None
    plain_tokens_per_second: float | None


def bench(
    pair: Pair,
    policies: Sequence[Policy],
    prompts: Sequence[Prompt],
    settings: BenchSettings = BenchSettings(),
    progress: ProgressCallback = lambda done, of, doing: None,
) -> Bench:
    """Compare the policies on the same texts; `progress(done, of, doing)` counts prompts counted and timed."""
    for policy in policies:
        check_compatible(policy, pair.target)
    sampling = settings.sampling
    encoded = encode(pair, spread(prompts, settings.limit), settings.max_new_tokens, sampling)
    ids = encoded.ids
    timed = ids[: settings.timed]
    of = len(ids) * len(policies) + len(timed)
    progress(0, of, "" if settings.live else "the target generates the texts")
    texts = None
    if not settings.live:
        texts = continuations(pair, ids, settings.max_new_tokens, max(policy.levels for policy in policies), sampling)
    counts = []
    for number, policy in enumerate(policies):

        def report(done: int, before: int = number * len(ids), label: str = describe(policy, brief=True)) -> None:
            progress(before + done, of, f"counts {label}")

        counts.append(
            evaluate(
                pair,
                policy,
                ids,
                max_new_tokens=settings.max_new_tokens,
                sampling=sampling,
                rule=settings.rule_of(policy),
                live=settings.live,
                texts=texts,
                progress=report,
            )
        )
    speeds = tokens_per_second(
        pair, policies, timed, settings, lambda done: progress(of - len(timed) + done, of, "times")
    )
    rows = [
        _row(policy, statistics, encoded.prompts, speed, speeds, settings)
        for policy, statistics, speed in zip(policies, counts, speeds.policies, strict=True)
    ]
    return Bench(
        settings, rows, len(ids), encoded.skipped, share_of_loops(texts) if texts else None, speeds.hf, speeds.plain
    )


def specs(policies: str) -> list[str]:
    """Split a list of policies into the text of each; "all" is ALL_POLICIES."""
    return split(ALL_POLICIES if policies == "all" else policies)


def _row(
    policy: Policy,
    statistics: list[Statistics],
    prompts: Sequence[Prompt],
    speed: float | None,
    speeds: "Speeds",
    settings: BenchSettings,
) -> Row:
    all_prompts = total(statistics)
    categories = sorted({prompt.category for prompt in prompts})
    return Row(
        policy=describe(policy),
        label=describe(policy, brief=True),
        exact=policy.exact,
        rule=settings.rule_of(policy),
        total=all_prompts,
        tokens_per_second=speed,
        against_plain=speed / speeds.plain if speed and speeds.plain else None,
        against_hf=speed / speeds.hf if speed and speeds.hf else None,
        categories={
            name: total(s for s, prompt in zip(statistics, prompts, strict=True) if prompt.category == name).tau
            for name in categories
        },
        alpha=all_prompts.tau / length if (length := getattr(policy, "draft_length", None)) else None,
    )


class Speeds(NamedTuple):
    """New tokens per second of each policy, of plain decoding, and of transformers' generate; None if not timed."""

    policies: list[float | None]
    plain: float | None
    hf: float | None


def tokens_per_second(
    pair: Pair,
    policies: Sequence[Policy],
    ids: Sequence[list[int]],
    settings: BenchSettings,
    progress: Callable[[int], None] = lambda done: None,
) -> Speeds:
    """Return the speeds of prompts decoded one by one, by all policies in turn on each prompt, because a machine may
    drift.

    EOS does not end these runs: all generate the same number of tokens. The time includes the prefill.
    """
    if not ids:
        return Speeds([None] * len(policies), None, None)
    plain = policies.index(Plain()) if Plain() in policies else None
    contestants = [*policies, *([Plain()] if plain is None else [])]
    seconds = [0.0] * (len(contestants) + 1)  # the last is that of transformers' generate
    sampling = settings.sampling
    for number, prompt in enumerate([ids[0], *ids]):
        new = settings.max_new_tokens if number else min(WARM_UP_TOKENS, settings.max_new_tokens)
        elapsed = [_clock(pair, prompt, new, sampling, policy, settings) for policy in [*contestants, None]]
        seconds = [s + e * (number > 0) for s, e in zip(seconds, elapsed, strict=True)]
        progress(number)
    speeds = [len(ids) * settings.max_new_tokens / spent for spent in seconds]
    return Speeds(list(speeds[: len(policies)]), speeds[plain if plain is not None else -2], speeds[-1])


def _clock(
    pair: Pair, prompt: list[int], new: int, sampling: Sampling, policy: Policy | None, settings: BenchSettings
) -> float:
    """Return the seconds that a policy, or transformers' generate (None), takes for `new` tokens."""
    start = time.perf_counter()
    if policy is None:
        _hf_generate(pair, prompt, new, sampling)
    else:
        rule = settings.rule_of(policy)
        for _ in generate(pair.target, pair.draft, policy, [prompt], max_new_tokens=new, sampling=sampling, rule=rule):
            pass
    if pair.target.device.type == "cuda":
        torch.cuda.synchronize(pair.target.device)
    return time.perf_counter() - start


def _hf_generate(pair: Pair, prompt: list[int], new: int, sampling: Sampling) -> None:
    sampled = {"do_sample": True, "temperature": sampling.temperature, "top_k": 0, "top_p": 1.0}
    ids = torch.tensor([prompt], device=pair.target.device)
    pair.target.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        min_new_tokens=new,
        pad_token_id=0,
        **(sampled if sampling.temperature else {"do_sample": False}),
    )


def figures(result: Bench) -> dict[str, Any]:
    """Return a bench as JSON."""
    rows = [{**row._asdict(), **row.total.figures()} for row in result.rows]
    for row in rows:
        del row["total"]
    return {**result._asdict(), "settings": asdict(result.settings), "rows": rows}


def configuration(
    pair: Pair, settings: BenchSettings | BatchSettings, prompts: Sequence[str | Path], classifier: str
) -> dict[str, Any]:
    """Return the configuration of a bench, for its result line."""
    about = {"pair": pair.name, "sources": pair.sources, "classifier": classifier, "dtype": pair.arithmetic}
    return {**about, "prompts": [Path(path).name for path in prompts], **asdict(settings)}
