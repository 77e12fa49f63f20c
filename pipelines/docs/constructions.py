"""Tables of docs/results/constructions.md: every policy, and many settings of some, on the embedded pair."""

from functools import cache
from typing import Any

from c2t.policies import POLICIES
from c2t.study.points import Point, read_points
from pipelines.docs.result_lines import LENGTHS, RESULTS, lengths, lines, source, table


def constructions() -> str:
    """Return the counts of every policy on the embedded pair."""
    (line,) = lines("bench-tiny.jsonl")
    rows = [
        (
            f"`{row['label']}`",
            "yes" if row["exact"] else "no",
            row["rule"],
            *lengths(row["tau"]),
            *(f"{row['categories'][name]:.2f}" for name in ("known", "heldout")),
            f"{row['gamma']:.1f}",
            f"{row['draft_passes']:.1f}",
        )
        for row in line["figures"]["rows"]
        if row["label"].partition(":")[0] in POLICIES  # the line may hold policies of its day
    ]
    columns = ("policy", "exact", "rule", *LENGTHS, "in-domain", "out-of-domain", "gamma", "draft passes")
    return table(columns, rows, bench_source(line))


def bench_source(line: dict[str, Any]) -> str:
    """Return where and when a bench was measured, in small print."""
    figures, settings = line["figures"], line["figures"]["settings"]
    told = f"{figures['prompts']} prompts, {settings['max_new_tokens']} new tokens, T = {settings['temperature']:g}"
    return source(line, told)


@cache
def sweep() -> list[Point]:
    """Return the points of the committed sweep."""
    (points,) = read_points(RESULTS / "tiny-front.jsonl").values()
    return points


def points() -> str:
    """Return the counts of every setting of the committed sweep."""
    rows = [
        (f"`{point.label}`", *lengths(point.tau), f"{point.gamma:.1f}", f"{point.total.draft_passes:.1f}")
        for point in sweep()
    ]
    return table(("policy", *LENGTHS, "gamma", "draft passes"), rows, sweep_source())


def sweep_source() -> str:
    """Return where and when the committed sweep was measured, in small print."""
    line, *_, last = lines("tiny-front.jsonl")
    run = line["configuration"]
    told = f"{run['prompts']} prompts, {run['max_new_tokens']} new tokens, T = {run['temperature']:g}, draft `eagle`"
    return source(line, told, f"the oracle: {last['hardware']}")
