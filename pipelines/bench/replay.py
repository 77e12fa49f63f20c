"""Harvest rows per second of live runs, of replay in lock step and of replay at all positions, in one run.

python -m pipelines.bench.replay [PROMPTS]

Trees are C2T's for its harvest: EAGLE-2's full ones of 1010 rows (K = 10, 11 levels, entropy over 1000). Replay pays
for writing the texts too. Live runs stop earlier; what they cost a tree does not depend on that. Seconds are the
processor's, on one thread, so that other work on the machine does not change the figures.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from c2t.decoding import Step, generate
from c2t.harvest.harvest import HarvestSettings
from c2t.models.draft import DraftSession
from c2t.models.pairs import Pair, load_pair
from c2t.models.target import Target
from c2t.policies import Eagle2
from c2t.prompts import conversation, default_prompts, read_prompts, spread
from c2t.protocols import NextTokenDistributions
from c2t.replay.every_position import replay_all
from c2t.replay.lockstep import Continuation, replay, write_continuations
from c2t.sampling import Sampling
from c2t.storage.provenance import hardware

FULL = HarvestSettings()
POLICY = Eagle2(FULL.K, FULL.levels, None, FULL.M)
SAMPLING = Sampling(FULL.temperature, seed=FULL.seed)
NEW_TOKENS, LIVE_TOKENS = 32, 6


class Run(NamedTuple):
    """shares: of the time, by the part of the work that took it."""

    name: str
    rows: int
    seconds: float
    shares: dict[str, float]

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


@contextmanager
def clocks(
    parts: dict[str, list[tuple[Any, str]]], clock: Callable[[], float] = time.process_time
) -> Iterator[Counter[str]]:
    """Seconds spent in these methods or functions, by part; what one of them calls of another part is counted there
    only. clock: processor time, unless given."""
    seconds: Counter[str] = Counter()
    inner = [0.0]

    def timed(method: Callable, part: str) -> Callable:
        @wraps(method)
        def call(*args, **kwargs):
            inner.append(0.0)
            start = clock()
            try:
                return method(*args, **kwargs)
            finally:
                whole = clock() - start
                seconds[part] += whole - inner.pop()
                inner[-1] += whole

        return call

    with ExitStack() as stack:
        for part, methods in parts.items():
            for owner, name in methods:
                stack.enter_context(patch.object(owner, name, timed(getattr(owner, name), part)))
        yield seconds


def parts(session: type[DraftSession]) -> dict[str, list[tuple[type, str]]]:
    """What a run consists of, the rest being the policy's bookkeeping of trees."""
    return {
        "target": [(Target, "forward"), (Target, "logits")],
        "draft": [(session, "_forward"), (session, "_logits")],
        "top K, entropy": [(NextTokenDistributions, "top"), (NextTokenDistributions, "entropy"), (session, "_rows")],
    }


def measure(pair: Pair, name: str, steps: Callable[[], Iterable[Step]]) -> Run:
    with clocks(parts(type(pair.draft.session()))) as seconds:
        start = time.process_time()
        rows = sum(int((step.tree.sizes - 1).sum()) for step in steps() if step.tree is not None)
        whole = time.process_time() - start
    return Run(name, rows, whole, {part: spent / whole for part, spent in seconds.items()})


def compare(pair: Pair, ids: Sequence[Sequence[int]]) -> list[Run]:
    """Live one by one, live in one batch, in lock step (the same batch), at all positions."""

    def texts() -> list[Continuation]:
        settings = {"sampling": SAMPLING, "eos": pair.target.eos, "beyond": POLICY.levels + 1}
        return write_continuations(pair.target, ids, max_new_tokens=NEW_TOKENS, **settings)

    def live(batch: Sequence[Sequence[int]]) -> Iterator[Step]:
        return generate(pair.target, pair.draft, POLICY, batch, max_new_tokens=LIVE_TOKENS, sampling=SAMPLING)

    ways: dict[str, Callable[[], Iterable[Step]]] = {
        "live, one by one": lambda: (step for one in ids for step in live([one])),
        f"live, batch of {len(ids)}": lambda: live(ids),
        f"lock step, batch of {len(ids)}": lambda: replay(pair.draft, POLICY, texts()),
        "all positions": lambda: replay_all(pair.draft, POLICY, texts()),
    }
    for step in live(ids[:1]):  # the first forwards of a process are slower
        if step.tree is not None:
            break
    return [measure(pair, name, steps) for name, steps in ways.items()]


def show(runs: Sequence[Run]) -> None:
    alone, together = runs[0].rate, runs[1].rate
    print(f"| {'way':24} | rows/s | x live, one by one | x live, batch | time goes to |")
    print("|---|---|---|---|---|")
    for run in runs:
        rest = {"bookkeeping": 1 - sum(run.shares.values())}
        shares = sorted((run.shares | rest).items(), key=lambda item: -item[1])
        where = ", ".join(f"{part} {share:.0%}" for part, share in shares)
        print(f"| {run.name:24} | {run.rate:,.0f} | {run.rate / alone:.1f} | {run.rate / together:.1f} | {where} |")


def main(count: int) -> None:
    pair = load_pair("tiny")
    prompts = spread([prompt for file in default_prompts("tiny", "harvest") for prompt in read_prompts(file)], count)
    ids = [conversation(pair.tokenizer, pair.template, prompt.turns[:1], []) for prompt in prompts]
    runs = compare(pair, ids)
    show(runs)
    print("bound by: " + "; ".join(f"{run.name}: {max(run.shares, key=run.shares.__getitem__)}" for run in runs))
    print(f"{count} prompts, {NEW_TOKENS} new tokens (live: {LIVE_TOKENS}), T = {SAMPLING.temperature}")
    print(f"one thread of: {hardware()}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
