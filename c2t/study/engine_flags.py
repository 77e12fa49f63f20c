"""The best setting of a tuning as an engine's options, among the policies that the engine can run. The costs are those
of c2t's forwards on this machine; the engine's costs differ."""

import json
from collections.abc import Sequence
from typing import Any, Literal

from c2t.errors import InputError
from c2t.output.tree_repr import count
from c2t.policies.round_costs import RoundCosts
from c2t.policies.spec import name_of
from c2t.protocols import Policy
from c2t.study.autotune import Candidate, Tuning, predict

Engine = Literal["sglang", "vllm"]
RUNS = {"sglang": "EAGLE-2 trees (eagle2) and chains", "vllm": "chains"}


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


def lines(engine: Engine, tuning: Tuning) -> list[str]:
    """Return the engine's options, then a line about the candidates left out."""
    candidates = [row for row in tuning.rows if can_run(engine, row.policy)]
    best = max(candidates, key=lambda row: row.predicted)
    options = sglang(best.policy) if engine == "sglang" else vllm(best.policy, schedule(tuning.costs, candidates))
    return [f"{engine}: {options}", left_out(engine, tuning, best)]


def sglang(policy: Any) -> str:
    """Return SGLang's options for a policy; its number of draft tokens counts the root, as N does."""
    if not policy.levels:
        return "no options: plain decoding is predicted to be the fastest"
    topk = 1 if name_of(policy) == "chain" else policy.K
    return (
        f"--speculative-num-steps {policy.levels} --speculative-eagle-topk {topk} "
        f"--speculative-num-draft-tokens {policy.size.tokens}"
    )


def vllm(policy: Policy, by_batch: list[tuple[int, int, int]]) -> str:
    """Return vLLM's option for a policy and a schedule; the model and method of the draft are not included."""
    longest = max(policy.levels, *(length for _, _, length in by_batch))
    if not longest:
        return "no options: plain decoding is predicted to be the fastest at every batch size"
    config = {"num_speculative_tokens": policy.levels or longest}
    if {length for _, _, length in by_batch} != {policy.levels}:
        config = {"num_speculative_tokens": longest, "num_speculative_tokens_per_batch_size": by_batch}
    return f"--speculative-config '{json.dumps(config)}'"


def schedule(costs: RoundCosts, candidates: Sequence[Candidate]) -> list[tuple[int, int, int]]:
    """Return (first batch size, last, drafted tokens a chain) of the chains predicted to be fastest, at 1, 2, 4, ...
    requests, up to the number of prompts; 0: plain decoding. A size in between gets the larger one's chain."""
    spans: list[tuple[int, int, int]] = []
    size, last = 1, 0
    prompts = len(candidates[0].rounds)
    while size <= prompts:
        speeds = [predict(costs, candidate.rounds[: prompts // size * size], size) for candidate in candidates]
        length = candidates[speeds.index(max(speeds))].policy.levels
        first = spans.pop()[0] if spans and spans[-1][2] == length else last + 1
        spans.append((first, size, length))
        size, last = 2 * size, size
    return spans


def left_out(engine: Engine, tuning: Tuning, best: Candidate) -> str:
    """Return a line about the policies that the engine cannot run, with the predicted speed of the best of them."""
    foreign = [row for row in tuning.rows if not can_run(engine, row.policy)]
    if not foreign:
        return f"left out: nothing, {engine} can run every policy here"
    settings = f"{count(len(foreign), 'setting')} of {', '.join(dict.fromkeys(row.name for row in foreign))}"
    speed = max(row.predicted for row in foreign)
    return (
        f"left out, because {engine} runs {RUNS[engine]} only: {settings}; the best of them is "
        f"predicted at {speed:.0f} tokens/s, these options at {best.predicted:.0f}, both in c2t"
    )
