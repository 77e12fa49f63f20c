"""Table of docs/results/noise.md: what sharing the target's noise gains, from the lines of `pipelines.bench noise`."""

from pipelines.bench.noise import RESIDUAL, SHARED, UNAWARE
from pipelines.docs.cells import grouped, interval, table
from pipelines.docs.result_lines import BY_PROMPT, Line, lines, size, source

FIRST, THIRD, TINY = "smollm2, EAGLE-1", "smollm2, EAGLE-3", "tiny, EAGLE-1"
DRAFTS = {("smollm2", "draft"): FIRST, ("smollm2", "draft_eagle3"): THIRD, ("tiny", "draft"): TINY}
CHAIN, TREE = "chain of 4", "tree of 16"
SHOWN = ((FIRST, CHAIN), (FIRST, TREE), (THIRD, TREE), (TINY, CHAIN), (TINY, TREE))
HEADLINE = FIRST, TREE, 1.0


def measured() -> dict[tuple[str, str, float], dict[str, Line]]:
    """Return the figures of each way, by draft, shape and temperature; of the residual rule those of its better
    policy."""
    by_setting: dict[tuple[str, str, float], dict[str, Line]] = {}
    for line in lines("noise.jsonl"):
        run, figures = line["configuration"], line["figures"]
        setting = DRAFTS[run["pair"], run["draft"]], figures["shape"], run["temperature"]
        ways = by_setting.setdefault(setting, {})
        ways[figures["way"]] = max(ways.get(figures["way"], figures), figures, key=_length)
    return by_setting


def noise() -> str:
    """Return the acceptance length of each way, and that of shared noise over the others."""
    rows = []
    for draft, shape in SHOWN:
        for temperature in sorted(at for *of, at in measured() if of == [draft, shape]):
            ways = measured()[draft, shape, temperature]
            lengths = (f"{_length(ways[way]):.2f}" for way in (UNAWARE, SHARED, RESIDUAL))
            ratios = (interval(ways[way]["shared_over"]) for way in (UNAWARE, RESIDUAL))
            rows.append((draft, shape, f"{temperature:g}", *lengths, *ratios))
    shown = lines("noise.jsonl")
    run = shown[-1]["configuration"]
    note = source(shown, size(run, run["prompts"] * len(run["sets"])), BY_PROMPT)
    columns = ("draft", "drafted", "T", UNAWARE, SHARED, RESIDUAL, "shared / without", "shared / residual")
    return table(columns, grouped(rows, 2), note)


def lead(way: str) -> str:
    """Return the acceptance length with shared noise over that of a way, where the page begins."""
    return interval(measured()[HEADLINE][way]["shared_over"])


def _length(figures: Line) -> float:
    return figures["acceptance_length"][0]
