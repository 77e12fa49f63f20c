"""Harvest rows per second of live runs, of replay in lock step and of replay at all positions, in one run.

    python -m pipelines.bench replay [PROMPTS]

Trees are C2T's for its harvest: EAGLE-2's full ones of 1010 rows (K = 10, 11 levels, entropy over 1000). The time of
replay includes writing the texts. Live runs stop earlier, which does not change their cost per tree. Seconds are the
processor's, on one thread, so that other work on the machine does not change the figures.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple

import torch
import typer

from c2t.decoding import DraftModel, Step, generate
from c2t.harvest.harvest import HarvestSettings
from c2t.models.pairs import Pair, load_pair
from c2t.policies import Eagle2
from c2t.prompts import conversation, default_prompts, read_prompts, spread
from c2t.protocols import Policy
from c2t.replay.every_position import replay_all
from c2t.replay.lockstep import Continuation, replay, write_continuations
from c2t.sampling import Sampling
from c2t.storage.provenance import hardware
from pipelines.stages import Clock, TimedDraft, TimedPolicy

FULL = HarvestSettings()
POLICY = Eagle2(FULL.K, FULL.levels, None, FULL.M)
SAMPLING = Sampling(FULL.temperature, seed=FULL.seed)
DRAWN = {"temperature": FULL.temperature, "seed": FULL.seed}
NEW_TOKENS, LIVE_TOKENS = 32, 6
TARGET, MATCHING = "target", "matching the text"
Way = Callable[[DraftModel, Policy, Clock], Iterable[Step]]


class Run(NamedTuple):
    """Result of one run. shares: of the time, by stage; they add up to 1."""

    name: str
    rows: int
    seconds: float
    shares: dict[str, float]

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / self.seconds


def ways(pair: Pair, ids: Sequence[Sequence[int]]) -> dict[str, Way]:
    """Return the ways to compare: live one by one, live in one batch, in lock step (the same batch), at all positions.

    In a live run all time outside of draft and policy is the target's; in replay the target only writes the texts.
    """

    def texts(clock: Clock) -> list[Continuation]:
        with clock.stage(TARGET):
            settings = {"sampling": SAMPLING, "eos": pair.target.eos, "beyond": POLICY.levels + 1}
            return write_continuations(pair.target, ids, max_new_tokens=NEW_TOKENS, **settings)

    def live(batch: Sequence[Sequence[int]], draft: DraftModel, policy: Policy, clock: Clock) -> Iterator[Step]:
        steps = generate(pair.target, draft, policy, batch, max_new_tokens=LIVE_TOKENS, sampling=SAMPLING)
        return clock.each(TARGET, steps)

    return {
        "live, one by one": lambda *how: (step for one in ids for step in live([one], *how)),
        f"live, batch of {len(ids)}": lambda *how: live(ids, *how),
        f"lock step, batch of {len(ids)}": lambda draft, policy, clock: clock.each(
            MATCHING, replay(draft, policy, texts(clock), **DRAWN)
        ),
        "all positions": lambda draft, policy, clock: clock.each(
            MATCHING, replay_all(draft, policy, texts(clock), **DRAWN)
        ),
    }


def measure(pair: Pair, name: str, way: Way, now: Callable[[], float] = time.process_time) -> Run:
    """Run one way of harvesting by this clock."""
    clock = Clock(now)
    steps = way(TimedDraft(pair.draft, clock), TimedPolicy(POLICY, clock), clock)
    rows = sum(int((step.tree.sizes - 1).sum()) for step in steps if step.tree is not None)
    whole = sum(clock.seconds.values())
    return Run(name, rows, whole, {stage: spent / whole for stage, spent in clock.seconds.most_common()})


def show(runs: Sequence[Run]) -> None:
    """Print a table in Markdown."""
    alone, together = runs[0].rate, runs[1].rate
    print(f"| {'way':24} | rows/s | x live, one by one | x live, batch | time goes to |")
    print("|---|---|---|---|---|")
    for run in runs:
        where = ", ".join(f"{stage} {share:.0%}" for stage, share in run.shares.items())
        print(f"| {run.name:24} | {run.rate:,.0f} | {run.rate / alone:.1f} | {run.rate / together:.1f} | {where} |")


def main(prompts: Annotated[int, typer.Argument(help="How many.")] = 8) -> None:
    """Compare harvest rows per second of live runs and of replay."""
    torch.set_num_threads(1)
    pair = load_pair("tiny")
    found = spread([prompt for file in default_prompts("tiny", "harvest") for prompt in read_prompts(file)], prompts)
    ids = [conversation(pair.tokenizer, pair.template, prompt.turns[:1], []) for prompt in found]
    compared = ways(pair, ids)
    measure(pair, "", ways(pair, ids[:1])["live, one by one"])  # the first forwards of a process are slower
    show([measure(pair, name, way) for name, way in compared.items()])
    print(f"{prompts} prompts, {NEW_TOKENS} new tokens (live: {LIVE_TOKENS}), T = {SAMPLING.temperature}")
    print(f"stages: forward is the draft's, select its top K and entropy; one thread of: {hardware()}")
