"""Tables of docs/results/constructions.md: every policy, and many settings of some, on the embedded pair."""

from c2t.study.points import read_points
from pipelines.docs.cells import LENGTH, LENGTHS, length, lengths, table
from pipelines.docs.result_lines import RESULTS, lines, size, source

USUAL = "target-only"  # the rule of ranked trees
MOST = 64  # verified tokens of a setting that is shown


def constructions() -> str:
    """Return the counts of every policy on the embedded pair."""
    (line,) = lines("bench-tiny.jsonl")
    rows = [
        (
            f"`{row['label']}`",
            "" if row["rule"] == USUAL else row["rule"],
            *lengths(row["tau"]),
            *(f"{row['categories'][name]:.2f}" for name in ("known", "heldout")),
            f"{row['gamma']:.1f}",
            f"{row['draft_passes']:.1f}",
        )
        for row in line["figures"]["rows"]
    ]
    columns = ("policy", "rule", *LENGTHS, "in-domain", "out-of-domain", "gamma", "draft passes")
    settings = line["figures"]["settings"]
    note = source(line, f"{size(settings, line['figures']['prompts'])}, T = {settings['temperature']:g}")
    return table(columns, rows, note)


def points() -> str:
    """Return the counts of every setting of the committed sweep."""
    (measured,) = read_points(RESULTS / "tiny-front.jsonl").values()
    rows = [
        (f"`{point.label}`", length(point.tau), f"{point.gamma:.1f}", f"{point.total.draft_passes:.1f}")
        for point in measured
        if point.gamma <= MOST
    ]
    line, *_, last = lines("tiny-front.jsonl")
    run = line["configuration"]
    how = f"{size(run)}, T = {run['temperature']:g}, draft `eagle`"
    note = source(line, how, f"the oracle: {last['hardware']}")
    return table(("policy", LENGTH, "gamma", "draft passes"), rows, note)
