"""Where the time of decoding goes: seconds of each stage of the draft phase, and of verification, of real rounds."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch

from c2t.classifier import TreeClassifier
from c2t.decoding import Policy, generate
from c2t.models.ngrams import NgramSession
from c2t.models.pairs import Pair
from c2t.models.target import TargetSession
from c2t.policies import eagle2
from c2t.policies import growth as layered
from c2t.protocols import Draft, NextTokenDistributions, Root
from c2t.sampling import Sampling
from c2t.statistics import Trace, total
from c2t.study.rounds import now
from c2t.tree import Tree
from pipelines.bench.replay import clocks

# Of the draft phase, from the end of one verification to the beginning of the next (C2T, section 5).
DRAFT = ("forward", "select", "classifier", "rest")
VERIFY = "verify"
CLOCKS = (
    "every prompt decoded alone, for real, with all policies in turn; on a CPU seconds are the processor's, one thread"
)


class Timed(NamedTuple):
    """Rounds of one policy and what they took. seconds: by stage, DRAFT and VERIFY."""

    rounds: int
    tau: float
    gamma: float
    passes: float
    seconds: dict[str, float]

    def per_round(self, *stages: str) -> float:
        """Milliseconds a round."""
        return 1e3 * sum(self.seconds[stage] for stage in stages) / self.rounds


@contextmanager
def steady_clock(device: torch.device) -> Iterator[Callable[[], float]]:
    """Of a GPU the wall clock; of a CPU the seconds of one thread, which other work on the machine does not change."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield time.process_time if device.type == "cpu" else time.perf_counter
    finally:
        torch.set_num_threads(threads)


class Constructed:
    """A policy whose whole call can be timed, whatever class it is of."""

    def __init__(self, policy: Policy):
        self.policy = policy
        self.proposal, self.exact, self.levels = policy.proposal, policy.exact, policy.levels

    def __call__(self, draft: Draft, root: Root) -> Tree:
        return self.policy(draft, root)


def methods(pair: Pair) -> dict[str, list[tuple[Any, str]]]:
    """Stage -> what is timed as it. A stage within another one counts for itself only: what is left of a policy's call
    and of taking in the accepted tokens is the rest, the bookkeeping of trees and caches."""
    session = pair.draft.session()
    session = type(session.draft if isinstance(session, NgramSession) else session)
    return {
        "forward": [(session, "_forward"), (session, "_logits")],
        "select": [
            *((NextTokenDistributions, name) for name in ("topk_entropy", "top", "entropy")),
            *((session, "_rows"), (eagle2, "best"), (eagle2, "rerank"), (layered, "best")),
        ],
        "classifier": [(TreeClassifier, "forward")],
        "rest": [(session, "observe"), (Constructed, "__call__")],
        VERIFY: [(TargetSession, "verify")],
    }


def timed(
    pair: Pair,
    policies: dict[str, Policy],
    ids: Sequence[Sequence[int]],
    max_new_tokens: int,
    sampling: Sampling,
    clock: Callable[[], float],
) -> dict[str, Timed]:
    """Decode every prompt alone with each policy in turn, so that a drifting machine treats all alike; the first prompt
    once more before the clock runs. On a GPU every stage waits for the device, which makes rounds slower than they are
    without clocks."""
    spent: dict[str, Counter[str]] = {name: Counter() for name in policies}
    statistics: dict[str, list] = {name: [] for name in policies}
    for number, prompt in enumerate([ids[0], *ids], -1):
        for name, policy in policies.items():
            trace = Trace(1)
            with clocks(methods(pair), partial(now, pair.target.device, clock)) as seconds:
                for step in generate(
                    pair.target,
                    pair.draft,
                    Constructed(policy),
                    [prompt],
                    max_new_tokens=max_new_tokens,
                    sampling=sampling,
                    eos=pair.target.eos,
                    sequences=[max(number, 0)],
                ):
                    trace.add(step)
            if number >= 0:
                spent[name] += seconds
                statistics[name] += trace.statistics
    return {name: _timed(total(statistics[name]), spent[name]) for name in policies}


def _timed(counts: Any, seconds: Counter[str]) -> Timed:
    stages = {stage: seconds[stage] for stage in (*DRAFT, VERIFY)}
    return Timed(counts.rounds, counts.tau, counts.gamma, counts.draft_passes, stages)
