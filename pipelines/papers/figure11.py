"""C2T, figure 11: where the draft phase spends its time, EAGLE-2 and C2T side by side in one run.

    python -m pipelines.papers.figure11 [--pair NAME] [--draft NAME] [--limit N]

Stages here: forward (the paper's generate), select (softmax, top-K, entropy, ranking: most of its post-processing and
rerank), classifier (classify), rest (bookkeeping of trees and caches: its pre-processing).
"""

from collections.abc import Callable

from c2t.policies import C2T, Eagle2
from pipelines.papers import drawing
from pipelines.papers.figures import Shown, fact, script
from pipelines.papers.stages import CLOCKS, DRAFT, VERIFY, Timed, steady_clock, timed
from pipelines.papers.study import Study
from pipelines.papers.verdicts import Conclusion

N, BETA, K, LEVELS = 80, 0.5, 15, 10  # appendix E.1
EAGLE2, OURS = f"EAGLE-2 N={N}", f"C2T beta={BETA:g}"


def figure(study: Study, clock: Callable[[], float] | None = None) -> Shown:
    """C2T, figure 11: draft latency by stage."""
    policies = {EAGLE2: Eagle2(K, LEVELS, N), OURS: C2T(study.classifier(), BETA, K, K, LEVELS)}
    with steady_clock(study.pair.target.device) as steady:
        settings = (study.settings.max_new_tokens, study.sampling, clock or steady)
        found = timed(study.pair, policies, study.encoded.ids, *settings)
    drawn, (left, right) = drawing.panels(2)
    bars = {name: {stage: one.per_round(stage) for stage in DRAFT} for name, one in found.items()}
    drawing.stacks(left, bars)
    left.set_ylabel("draft, ms a round")
    shares = {name: {k: 100 * ms / sum(parts.values()) for k, ms in parts.items()} for name, parts in bars.items()}
    drawing.stacks(right, shares)
    right.set_ylabel("% of the draft")
    rows = [
        [*cells, *bars[name].values(), found[name].per_round(*DRAFT), found[name].per_round(VERIFY)]
        for name, cells in ((name, [name, one.rounds, one.tau, one.gamma, one.passes]) for name, one in found.items())
    ]
    columns = ["policy", "rounds", "tau", "gamma", "passes/round", *(f"{stage}, ms" for stage in DRAFT)]
    return Shown(
        "C2T, figure 11: draft latency by stage, milliseconds a round",
        drawn,
        [*columns, "draft, ms", "verify, ms"],
        rows,
        conclusions(found[EAGLE2], found[OURS]),
        [CLOCKS, "the paper draws its figure without numbers"],
    )


def conclusions(eagle2: Timed, c2t: Timed) -> list[Conclusion]:
    """What appendix E reads off its figure; per draft forward where the two make different numbers of them."""
    forward, select = ([one.per_round(stage) / one.passes for one in (eagle2, c2t)] for stage in ("forward", "select"))
    whole = [one.per_round(*DRAFT) for one in (eagle2, c2t)]
    classifier, verify = c2t.per_round("classifier"), c2t.per_round(VERIFY)
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
            "the classifier is negligible beside a forward of the target",
            classifier < 0.05 * verify,
            f"{classifier:.3f} and {verify:.3f} ms a round, holds below 5 %",
        ),
    ]


if __name__ == "__main__":
    script("figure11", figure, limit=8)
