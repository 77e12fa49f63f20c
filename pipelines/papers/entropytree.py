"""EntropyTree's results (its figure 2): trees whose branching follows the draft's entropy, against a plain chain.

The paper's draft is a language model of its own and its temperature 0.4, as here. Wasted passes are its "forward passes
which would have been thrown out due to an earlier mismatch": in a round with p draft passes of which a levels were
accepted, p - a.
"""

from c2t.policies import Chain, EntropyTree
from c2t.protocols import Policy
from c2t.study.bench import BenchSettings, tokens_per_second
from pipelines.papers.report import Report, Reproduction, Row, of_policies
from pipelines.papers.study import Counted, Study
from pipelines.papers.verdicts import FAILS, HOLDS, Conclusion, above, all_of, below, mean_ratio, tau_ratio

TIMED = 4  # prompts
VARIANTS: dict[str, tuple[Policy, str, float]] = {  # policy, time saved and tokens per second in the paper
    "baseline": (Chain(4), "0%", 10.078),
    "static tree": (EntropyTree("static"), "2.3%", 10.351),
    "simple cutoff": (EntropyTree("early_stop", levels=10), "4.43%", 10.556),
    "dynamic width and depth": (EntropyTree("dynamic_depth", levels=10), "6.65%", 10.83),
    "dynamic width": (EntropyTree(), "7.16%", 10.88),
}
DYNAMIC = ("simple cutoff", "dynamic width and depth", "dynamic width")


def wasted(counted: Counted) -> list[float]:
    """Return the draft passes of each text whose tokens were all rejected."""
    return [
        float(sum(max(0, p - a) for p, a in zip(counts.passes, counts.accepted, strict=True)))
        for counts in counted.prompts
    ]


def variants(study: Study) -> Report:
    """EntropyTree, figure 2: variants by speed, acceptance and wasted passes."""
    counts = {name: study.count(policy) for name, (policy, _, _) in VARIANTS.items()}
    waste = {name: wasted(counted) for name, counted in counts.items()}
    clock = BenchSettings(
        max_new_tokens=study.settings.max_new_tokens,
        temperature=study.settings.temperature,
        seed=study.settings.seed,
        timed=TIMED,
    )
    policies = [policy for policy, _, _ in VARIANTS.values()]
    speeds = tokens_per_second(study.pair, policies, study.encoded.ids[:TIMED], clock).policies
    speed = dict(zip(VARIANTS, speeds, strict=True))
    rows = [
        Row(name, counted.label.removeprefix("branching="), counted, None, _further(name, waste[name], counted, speed))
        for name, counted in counts.items()
    ]
    fewer = {name: mean_ratio(waste[name], waste["baseline"]) for name in DYNAMIC}
    return of_policies(
        "EntropyTree, figure 2: branching by entropy",
        rows,
        [
            above(
                "a static tree accepts more than a chain",
                "ratio of tau",
                tau_ratio(counts["static tree"], counts["baseline"]),
            ),
            above(
                "branching by entropy accepts more than a static tree",
                "ratio of tau, dynamic width to static tree",
                tau_ratio(counts["dynamic width"], counts["static tree"]),
            ),
            all_of(
                "entropy reduces the wasted draft passes",
                [
                    below("", f"ratio of wasted passes to the baseline's, {name}", counted)
                    for name, counted in fewer.items()
                ],
            ),
            _fastest(speed),
        ],
        [
            f"speeds: one prompt at a time, {TIMED} prompts, all variants in turn, one measurement",
            "wasted: draft passes whose tokens were all rejected; nodes cut off by the limit of 64 a level: "
            f"{sum(counted.total.capped for counted in counts.values()):,}",
        ],
    )


def _further(name: str, waste: list[float], counted: Counted, speed: dict[str, float | None]) -> dict[str, object]:
    return {
        "wasted/round": round(sum(waste) / max(1, counted.total.rounds), 2),
        "tokens/s": speed[name] and round(speed[name]),
        "time saved": f"{1 - speed['baseline'] / speed[name]:.1%}" if speed[name] else None,
        "paper: saved": VARIANTS[name][1],
        "paper: tok/s": VARIANTS[name][2],
    }


def _fastest(speed: dict[str, float | None]) -> Conclusion:
    best = max(speed, key=lambda name: speed[name] or 0.0)
    listed = ", ".join(f"{name} {value:.0f}" for name, value in speed.items() if value)
    statement = "dynamic width at a fixed depth is the fastest"
    return Conclusion(statement, HOLDS if best == "dynamic width" else FAILS, f"tokens/s: {listed}")


REPORTS = {"entropytree-figure2": Reproduction(variants, {"draft": "lm"})}
