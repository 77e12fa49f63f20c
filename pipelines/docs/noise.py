"""Table of docs/results/noise.md: what sharing the target's noise gains, from the lines of `pipelines.bench noise`."""

from pipelines.docs.cells import grouped, interval, table
from pipelines.docs.result_lines import BY_PROMPT, Line, lines, size, source

UNAWARE, SHARED, RESIDUAL = "without noise", "shared noise", "residual rule"
DRAFTS = {
    ("smollm2", "draft"): "smollm2, EAGLE-1",
    ("smollm2", "draft_eagle3"): "smollm2, EAGLE-3",
    ("tiny", "draft"): "tiny, EAGLE-1",
}
SHOWN = "chain of 4", "tree of 16"  # trees of 8 stand in the lines
HEADLINE = "smollm2, EAGLE-1", "tree of 16", 1.0


def measured() -> dict[tuple[str, str, float], dict[str, Line]]:
    """Return the figures of each way, by draft, shape and temperature; of the residual rule those of its better
    policy."""
    by_place: dict[tuple[str, str, float], dict[str, Line]] = {}
    for line in lines("noise.jsonl"):
        run, figures = line["configuration"], line["figures"]
        place = DRAFTS[run["pair"], run["draft"]], figures["shape"], run["temperature"]
        ways = by_place.setdefault(place, {})
        ways[figures["way"]] = max(ways.get(figures["way"], figures), figures, key=_length)
    return by_place


def noise() -> str:
    """Return the acceptance length of each way, and that of shared noise over the others."""
    rows = []
    for draft in DRAFTS.values():
        for shape in SHOWN:
            for place, ways in sorted(measured().items()):
                if place[:2] == (draft, shape):
                    lengths = (f"{_length(ways[way]):.2f}" for way in (UNAWARE, SHARED, RESIDUAL))
                    ratios = (interval(ways[way]["shared_over"]) for way in (UNAWARE, RESIDUAL))
                    rows.append((draft, shape, f"{place[2]:g}", *lengths, *ratios))
    shown = lines("noise.jsonl")
    run = shown[-1]["configuration"]
    note = source(shown, f"{size(run)} of each of {len(run['sets'])} sets", BY_PROMPT)
    columns = ("draft", "drafted", "T", UNAWARE, SHARED, RESIDUAL, "shared / without", "shared / residual")
    return table(columns, grouped(rows, 2), note)


def lead(way: str) -> str:
    """Return the acceptance length with shared noise over that of a way, where the page begins."""
    return interval(measured()[HEADLINE][way]["shared_over"])


def _length(figures: Line) -> float:
    return figures["acceptance_length"][0]
