"""The best setting of a tuning as an engine's options, among the policies that the engine can run. The speeds are those
of c2t on this machine; the engine's differ."""

import json
from collections.abc import Sequence
from typing import Any, Literal

from c2t.errors import InputError
from c2t.models.loading.load import Pair
from c2t.output.tree_repr import count
from c2t.policies.spec import name_of
from c2t.protocols import Policy
from c2t.replay.prompts import Prompt
from c2t.study.autotune import Candidate, TuneSettings, Tuning, rate
from c2t.study.batches import Entrant, first_turns, grouped, race

Engine = Literal["sglang", "vllm"]
RUNS = {"sglang": "EAGLE-2 trees (eagle2) and chains", "vllm": "chains"}
TIMED = 4  # prompts at least that each batch size of a schedule is timed on
Schedule = list[tuple[int, int, int]]  # (first batch size, last, drafted tokens of a chain; 0: plain decoding)


def can_run(engine: Engine, policy: Any) -> bool:
    """Return True for plain decoding and chains, and in SGLang for EAGLE-2's trees of a fixed number of tokens."""
    name = name_of(policy)
    if name == "eagle2" and engine == "sglang":
        return policy.N is not None and policy.reranked and policy.expand == "value"
    return name in ("plain", "chain")


def check(engine: Engine, policies: Sequence[Policy]) -> None:
    """Raise InputError if the engine can run none of these policies that drafts."""
    if not any(can_run(engine, policy) and policy.levels for policy in policies):
        example = "eagle2:N=8,levels=2" if engine == "sglang" else "chain:length=2"
        raise InputError(f"--flags {engine}: it runs {RUNS[engine]}, and --policies has none; add {example}")


def lines(engine: Engine, tuning: Tuning, pair: Pair, prompts: Sequence[Prompt]) -> list[str]:
    """Return the engine's options, then a line about the candidates left out. vLLM's chains are timed once more at
    every batch size."""
    best = max((row for row in tuning.rows if can_run(engine, row.policy)), key=lambda row: row.against_plain)
    if engine == "sglang":
        options = sglang(best.policy)
    else:
        chains = [row.policy for row in tuning.rows if can_run(engine, row.policy)]
        options = vllm(schedule(pair, chains, prompts, tuning.settings))
    return [f"{engine}: {options}", left_out(engine, tuning, best)]


def sglang(policy: Any) -> str:
    """Return SGLang's options for a policy; its number of draft tokens counts the root, as N does."""
    if not policy.levels:
        return "no options: plain decoding is the fastest"
    topk = 1 if name_of(policy) == "chain" else policy.K
    return (
        f"--speculative-num-steps {policy.levels} --speculative-eagle-topk {topk} "
        f"--speculative-num-draft-tokens {policy.size.tokens}"
    )


def vllm(by_batch: Schedule) -> str:
    """Return vLLM's option for a schedule; the model and method of the draft are not included."""
    longest = max(length for _, _, length in by_batch)
    if not longest:
        return "no options: plain decoding is the fastest at every batch size"
    config: dict[str, Any] = {"num_speculative_tokens": longest}
    if len(by_batch) > 1:
        config["num_speculative_tokens_per_batch_size"] = by_batch
    return f"--speculative-config '{json.dumps(config)}'"


def schedule(pair: Pair, policies: Sequence[Policy], prompts: Sequence[Prompt], settings: TuneSettings) -> Schedule:
    """Return the fastest of these chains, plain decoding among them, at 1, 2, 4, ... requests, up to the number of
    prompts. A size in between gets the larger one's chain."""
    ids = first_turns(pair, prompts, settings.prompts, settings)
    entrants = [Entrant(pair, policy) for policy in policies]
    spans: Schedule = []
    size, last = 1, 0
    while size <= len(ids):
        runs: list[list] = [[] for _ in entrants]
        for number, run in race(entrants, grouped(ids, size, max(1, TIMED // size)), settings):
            runs[number].append(run)
        speeds = [rate(its) for its in runs]
        length = policies[speeds.index(max(speeds))].levels
        first = spans.pop()[0] if spans and spans[-1][2] == length else last + 1
        spans.append((first, size, length))
        size, last = 2 * size, size
    return spans


def left_out(engine: Engine, tuning: Tuning, best: Candidate) -> str:
    """Return a line about the policies that the engine cannot run, with the speed of the best of them."""
    foreign = [row for row in tuning.rows if not can_run(engine, row.policy)]
    if not foreign:
        return f"left out: nothing, {engine} can run every policy here"
    settings = f"{count(len(foreign), 'setting')} of {', '.join(dict.fromkeys(row.name for row in foreign))}"
    speed = max(row.against_plain for row in foreign)
    return (
        f"left out, because {engine} runs {RUNS[engine]} only: {settings}; the best of them is {speed:.2f} times as "
        f"fast as plain decoding, these options {best.against_plain:.2f} times, both in c2t"
    )
