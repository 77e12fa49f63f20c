"""Time over verified tokens and by stage of the draft: figures 5 and 11 of C2T."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from c2t.costs.measure import Forwards, ForwardTimer, now
from c2t.costs.statistics import Trace, total
from c2t.models.loading.load import Pair
from c2t.policies import C2T, Eagle2
from c2t.policies.round_costs import Curve
from c2t.protocols import Policy
from c2t.sampling import Sampling
from c2t.verification.target_verifier import generate
from pipelines.papers.report import Report, Reproduction
from pipelines.papers.study import Study
from pipelines.papers.verdicts import Conclusion, fact
from pipelines.stages import CLASSIFIER, DRAFT, FORWARD, SELECT, Clock, TimedDraft, TimedPolicy

VERIFY = "verify"  # the rest of a round: the target's forward, and choosing and committing the path
CLOCKS = (
    "every prompt decoded alone, for real, with all policies in turn; on a CPU seconds are the processor's, one thread"
)


class Timed(NamedTuple):
    """Rounds of one policy and their time. seconds: by stage, DRAFT and VERIFY."""

    rounds: int
    tau: float
    gamma: float
    passes: float
    seconds: dict[str, float]

    def per_round(self, *stages: str) -> float:
        """Return the milliseconds of these stages in a round."""
        return 1e3 * sum(self.seconds[stage] for stage in stages) / self.rounds


@contextmanager
def steady_clock(device: torch.device) -> Iterator[Callable[[], float]]:
    """Yield a clock: on a GPU the wall's, on a CPU the seconds of one thread, which other work on the machine does not
    change."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield time.process_time if device.type == "cpu" else time.perf_counter
    finally:
        torch.set_num_threads(threads)


def timed(
    pair: Pair,
    policies: dict[str, Policy],
    ids: Sequence[Sequence[int]],
    max_new_tokens: int,
    sampling: Sampling,
    clock: Callable[[], float],
) -> dict[str, Timed]:
    """Decode every prompt alone with each policy in turn, so that a drifting machine treats all alike. The first prompt
    is decoded once before the clock runs.

    On a GPU every stage waits for the device, which makes rounds slower than they are without clocks.
    """
    spent: dict[str, Counter[str]] = {name: Counter() for name in policies}
    statistics: dict[str, list] = {name: [] for name in policies}
    for number, prompt in enumerate([ids[0], *ids], -1):
        for name, policy in policies.items():
            trace, stages = Trace(1), Clock(partial(now, pair.target.device, clock))
            steps = generate(
                pair.target,
                TimedDraft(pair.draft, stages),
                TimedPolicy(policy, stages),
                [prompt],
                max_new_tokens=max_new_tokens,
                sampling=sampling,
                eos=pair.target.eos,
                sequences=[max(number, 0)],
            )
            trace.add(next(steps))  # the prefill, which is no round
            for step in stages.timed(VERIFY, steps):
                trace.add(step)
            if number >= 0:
                spent[name] += stages.seconds
                statistics[name] += trace.statistics
    return {name: _timed(total(statistics[name]), spent[name]) for name in policies}


def _timed(counts: Any, seconds: Counter[str]) -> Timed:
    stages = {stage: seconds[stage] for stage in (*DRAFT, VERIFY)}
    return Timed(counts.rounds, counts.tau, counts.gamma, counts.draft_passes, stages)


K, LEVELS = 15, 10  # section 5.4
SIZES = (15, 30, 60, 100, 160)  # N of EAGLE-2
BETAS = (0.85, 0.65, 0.5, 0.3)
REPEATS = 15
STEP = 1.1  # a rise from one token to the next that counts as a step: more than clocks vary by


def figure5(study: Study) -> Report:
    """C2T, figure 5: what verification takes over the number of tokens, and what EAGLE-2 and C2T take at the same tau.

    First forwards of the target over trees of many sizes; then prompts decoded for real, one at a time, with all
    policies in turn. On a GPU (--device cuda) the same code waits for the device before it reads the wall clock.
    """
    policies = {f"EAGLE-2 N={size}": Eagle2(K, LEVELS, size) for size in SIZES}
    policies |= {f"C2T beta={beta:g}": C2T(study.classifier(), beta, K, K, LEVELS) for beta in BETAS}
    with steady_clock(study.pair.target.device) as clock:
        forwards = Forwards(ForwardTimer(study.pair, study.texts(LEVELS)[0], clock), drafted=())
        for _ in range(REPEATS):
            forwards.time()
        curve = forwards.curve("verify")
        rounds = timed(study.pair, policies, study.encoded.ids, study.settings.max_new_tokens, study.sampling, clock)
    eagle2 = {name: run for name, run in rounds.items() if name.startswith("EAGLE-2")}
    rows = [
        [name, run.tau, run.rounds, int(run.rounds * run.gamma), *(_seconds(run, *part) for part in (DRAFT, (VERIFY,)))]
        for name, run in rounds.items()
    ]
    return Report(
        "C2T, figure 5: seconds of draft and verification",
        ["policy", "tau", "rounds", "verified tokens", "draft, s", "verify, s"],
        rows,
        [*of_tokens(curve, list(eagle2.values())), *at_taus_in_reach(rounds)],
        [CLOCKS, "the paper: LLaMA-2 70B on two A100; its figure gives no numbers but the 18 %"],
        {"verify curve": curve._asdict()},
    )


def _seconds(run: Timed, *stages: str) -> float:
    return sum(run.seconds[stage] for stage in stages)


def of_tokens(curve: Curve, eagle2: list[Timed]) -> list[Conclusion]:
    """Judge section 5.4's statements on the first panel."""
    tokens = [run.rounds * run.gamma for run in eagle2]
    straight = float(np.corrcoef(SIZES, tokens)[0, 1] ** 2)
    # One slow forward is no step: all larger ones must be slower than all smaller ones.
    steps = [
        (size, min(curve.seconds[index:]) / max(curve.seconds[:index]))
        for index, (size, after) in enumerate(pairwise(curve.sizes), 1)
        if after == size + 1 and size > 2
    ]
    size, rise = max(steps, key=lambda run: run[1])
    return [
        fact("gamma grows linearly with N", straight > 0.98, f"R^2 of a line = {straight:.4f}, holds above 0.98"),
        fact(
            "verification time grows in steps",
            rise > STEP,
            f"the largest step by one token is {rise:.3f} times, from {size} to {size + 1}, holds above {STEP:g}",
        ),
    ]


def at_taus_in_reach(rounds: dict[str, Timed]) -> list[Conclusion]:
    """Judge section 5.4's statements on the second panel: C2T at its largest tau that EAGLE-2 reaches, against EAGLE-2
    read between its points."""
    eagle2 = sorted((run for name, run in rounds.items() if name.startswith("EAGLE-2")), key=lambda run: run.tau)
    taus = [run.tau for run in eagle2]
    within = [run for name, run in rounds.items() if name.startswith("C2T") and taus[0] <= run.tau <= taus[-1]]
    subject = max(within, key=lambda run: run.tau, default=None)
    limits = {"draft": (1.0, 1.25), "gamma": (0.0, 1.0), "whole": (0.0, 1.0)}
    statements = {
        "draft": "C2T's draft time is slightly higher",
        "gamma": "C2T verifies fewer tokens at the same tau",
        "whole": "C2T takes less time at the same tau (the paper: 18 % less)",
    }
    conclusions = []
    for name, statement in statements.items():
        if subject is None:
            conclusions.append(fact(statement, None, "no tau of C2T is within EAGLE-2's"))
            continue
        theirs = float(np.interp(subject.tau, taus, [_figure(run, name) for run in eagle2]))
        ratio, (low, high) = _figure(subject, name) / theirs, limits[name]
        comparison = f"C2T over EAGLE-2 at tau {subject.tau:.2f}: {ratio:.3f}, holds from {low:g} to {high:g}"
        conclusions.append(fact(statement, low < ratio < high, comparison))
    return conclusions


def _figure(run: Timed, name: str) -> float:
    stages = {"draft": DRAFT, "whole": (*DRAFT, VERIFY)}
    return run.rounds * run.gamma if name == "gamma" else _seconds(run, *stages[name])


N, BETA, K, LEVELS = 80, 0.5, 15, 10  # appendix E.1
EAGLE2, OURS = f"EAGLE-2 N={N}", f"C2T beta={BETA:g}"


def figure11(study: Study, clock: Callable[[], float] | None = None) -> Report:
    """C2T, figure 11: where the draft phase spends its time, EAGLE-2 and C2T side by side in one run.

    Stages as in `pipelines.stages`: forward (the paper's generate, and the norm of its softmax), select (top K and
    entropy: its post-processing), classifier (classify), trees (its pre-processing and rerank: all that the policy does
    itself).
    """
    policies = {EAGLE2: Eagle2(K, LEVELS, N), OURS: C2T(study.classifier(), BETA, K, K, LEVELS)}
    with steady_clock(study.pair.target.device) as steady:
        settings = (study.settings.max_new_tokens, study.sampling, clock or steady)
        rounds = timed(study.pair, policies, study.encoded.ids, *settings)
    rows = [
        [name, run.rounds, run.tau, run.gamma, run.passes]
        + [run.per_round(*stages) for stages in (*((stage,) for stage in DRAFT), DRAFT, (VERIFY,))]
        for name, run in rounds.items()
    ]
    columns = ["policy", "rounds", "tau", "gamma", "passes/round", *(f"{stage}, ms" for stage in DRAFT)]
    return Report(
        "C2T, figure 11: draft latency by stage, milliseconds a round",
        [*columns, "draft, ms", "verify, ms"],
        rows,
        of_stages(rounds[EAGLE2], rounds[OURS]),
        [CLOCKS, "the paper's figure has no numbers"],
    )


def of_stages(eagle2: Timed, c2t: Timed) -> list[Conclusion]:
    """Judge appendix E's statements on its figure, per draft forward where the two policies make different numbers of
    them."""
    forward, select = ([run.per_round(stage) / run.passes for run in (eagle2, c2t)] for stage in (FORWARD, SELECT))
    whole = [run.per_round(*DRAFT) for run in (eagle2, c2t)]
    classifier, verify = c2t.per_round(CLASSIFIER), c2t.per_round(VERIFY)
    return [
        fact(
            "generate time is aligned between the two",
            abs(forward[1] / forward[0] - 1) < 0.1,
            f"a draft forward takes {forward[0]:.3f} and {forward[1]:.3f} ms, holds within 10 %",
        ),
        fact(
            "C2T's post-processing takes longer, for the entropy",
            select[1] > select[0],
            f"selecting takes {select[0]:.3f} and {select[1]:.3f} ms a draft forward",
        ),
        fact(
            "C2T's draft time is slightly greater",
            1 < whole[1] / whole[0] < 1.25,
            f"{whole[0]:.2f} and {whole[1]:.2f} ms a round, holds between 1 and 1.25 times",
        ),
        fact(
            "the classifier is negligible next to a forward of the target",
            classifier < 0.05 * verify,
            f"{classifier:.3f} and {verify:.3f} ms a round, holds below 5 %",
        ),
    ]


REPORTS = {"figure5": Reproduction(figure5, {"limit": 6}), "figure11": Reproduction(figure11, {"limit": 8})}
