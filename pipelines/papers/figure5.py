"""C2T, figure 5: what verification takes over the number of tokens, and what EAGLE-2 and C2T take at equal tau.

    python -m pipelines.papers.figure5 [--pair NAME] [--draft NAME] [--limit N]

First forwards of the target over trees of many sizes; then prompts decoded for real, one at a time, with all policies
in turn. On a GPU (--device cuda) the same code waits for the device before it reads the wall clock.
"""

from collections.abc import Callable

import numpy as np

from c2t.policies import C2T, Eagle2
from c2t.study.costs import Curve, measure
from pipelines.papers import drawing
from pipelines.papers.figures import Shown, fact, script
from pipelines.papers.stages import CLOCKS, DRAFT, VERIFY, Timed, steady_clock, timed
from pipelines.papers.study import Study
from pipelines.papers.verdicts import Conclusion

K, LEVELS = 15, 10  # section 5.4
SIZES = (15, 30, 60, 100, 160)  # N of EAGLE-2
BETAS = (0.85, 0.65, 0.5, 0.3)
REPEATS = 15
STEP = 1.1  # a rise from one token to the next that counts as a step: more than clocks vary by


def figure(study: Study, clock: Callable[[], float] | None = None) -> Shown:
    """C2T, figure 5: time, verified tokens and tau."""
    policies = {f"EAGLE-2 N={size}": Eagle2(K, LEVELS, size) for size in SIZES}
    policies |= {f"C2T beta={beta:g}": C2T(study.classifier(), beta, K, K, LEVELS) for beta in BETAS}
    with steady_clock(study.pair.target.device) as steady:
        clock = clock or steady
        curve = measure(study.pair, study.texts(LEVELS)[:1], widest=K, repeats=REPEATS, clock=clock).verify
        found = timed(study.pair, policies, study.encoded.ids, study.settings.max_new_tokens, study.sampling, clock)
    eagle2 = {name: one for name, one in found.items() if name.startswith("EAGLE-2")}
    drawn, (steps, totals, equal) = drawing.panels(3)
    steps.plot(curve.sizes, [1e3 * seconds for seconds in curve.seconds], marker="o", markersize=3)
    steps.set(xlabel="tokens in a forward", ylabel="ms a forward of the target", ylim=(0, None))
    steps.grid(alpha=0.3)
    _bars(totals, {name.partition("=")[2]: one for name, one in eagle2.items()})
    totals.set_xlabel("EAGLE-2: N")
    _bars(equal, {f"{name[0]} {one.tau:.2f}": one for name, one in sorted(found.items(), key=lambda item: item[1].tau)})
    equal.set_xlabel("tau of E(AGLE-2) and C(2T)")
    equal.tick_params(axis="x", rotation=60, labelsize="x-small")
    rows = [
        [name, one.tau, one.rounds, int(one.rounds * one.gamma), *(_seconds(one, *part) for part in (DRAFT, (VERIFY,)))]
        for name, one in found.items()
    ]
    return Shown(
        "C2T, figure 5: seconds of draft and verification",
        drawn,
        ["policy", "tau", "rounds", "verified tokens", "draft, s", "verify, s"],
        rows,
        [*of_tokens(curve, list(eagle2.values())), *at_equal_tau(found)],
        [CLOCKS, "the paper: LLaMA-2 70B on two A100; its figure gives no numbers but the 18 %"],
        {"verify curve": curve._asdict()},
    )


def _bars(panel, found: dict[str, Timed]) -> None:
    drawing.stacks(
        panel, {k: {"draft": _seconds(one, *DRAFT), "verify": _seconds(one, VERIFY)} for k, one in found.items()}
    )
    panel.set_ylabel("seconds")
    tokens = panel.twinx()
    tokens.plot(list(found), [one.rounds * one.gamma for one in found.values()], "k.-")
    tokens.set(ylim=(0, None))
    tokens.set_ylabel("verified tokens (line)")


def _seconds(one: Timed, *stages: str) -> float:
    return sum(one.seconds[stage] for stage in stages)


def of_tokens(curve: Curve, eagle2: list[Timed]) -> list[Conclusion]:
    """Section 5.4 on the first panel."""
    tokens = [one.rounds * one.gamma for one in eagle2]
    straight = float(np.corrcoef(SIZES, tokens)[0, 1] ** 2)
    neighbours = [
        (size, later / earlier)
        for size, after, earlier, later in zip(
            curve.sizes, curve.sizes[1:], curve.seconds, curve.seconds[1:], strict=False
        )
        if after == size + 1 and size > 2
    ]
    size, rise = max(neighbours, key=lambda one: one[1])
    return [
        fact("gamma grows linearly with N", straight > 0.98, f"R^2 of a line = {straight:.4f}, holds above 0.98"),
        fact(
            "verification time grows in steps",
            rise > STEP,
            f"the largest rise by one token is {rise:.3f} times, from {size} to {size + 1}, holds above {STEP:g}",
        ),
    ]


def at_equal_tau(found: dict[str, Timed]) -> list[Conclusion]:
    """Section 5.4 on the second one: C2T at its largest tau within EAGLE-2's reach, EAGLE-2 read between its points."""
    eagle2 = sorted((one for name, one in found.items() if name.startswith("EAGLE-2")), key=lambda one: one.tau)
    taus = [one.tau for one in eagle2]
    within = [one for name, one in found.items() if name.startswith("C2T") and taus[0] <= one.tau <= taus[-1]]
    subject = max(within, key=lambda one: one.tau, default=None)
    limits = {"draft": (1.0, 1.25), "gamma": (0.0, 1.0), "whole": (0.0, 1.0)}
    statements = {
        "draft": "C2T's draft time is slightly higher",
        "gamma": "C2T verifies fewer tokens at equal tau",
        "whole": "C2T takes less time at equal tau (the paper: 18 % less)",
    }
    conclusions = []
    for name, statement in statements.items():
        if subject is None:
            conclusions.append(fact(statement, None, "no tau of C2T is within EAGLE-2's"))
            continue
        theirs = float(np.interp(subject.tau, taus, [_figure(one, name) for one in eagle2]))
        ratio, (low, high) = _figure(subject, name) / theirs, limits[name]
        comparison = f"C2T over EAGLE-2 at tau {subject.tau:.2f}: {ratio:.3f}, holds from {low:g} to {high:g}"
        conclusions.append(fact(statement, low < ratio < high, comparison))
    return conclusions


def _figure(one: Timed, name: str) -> float:
    stages = {"draft": DRAFT, "whole": (*DRAFT, VERIFY)}
    return one.rounds * one.gamma if name == "gamma" else _seconds(one, *stages[name])


if __name__ == "__main__":
    script("figure5", figure, limit=6)
