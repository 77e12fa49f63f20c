"""Table of decoding after long prompts, from the lines of `pipelines.bench long`."""

from pipelines.bench.long_texts import BEST, BUDGET, FIXED, NGRAMS_WAY, PLAIN
from pipelines.docs.cells import grouped, interval, table
from pipelines.docs.result_lines import BY_PROMPT, Line, computed, lines, source

OVER = "decoding_against_plain"


def long_texts() -> str:
    """Return a row for each length of prompts, by how the texts after them were generated."""
    by_texts: dict[str, list[Line]] = {}
    for line in lines("long.jsonl"):
        by_texts.setdefault(texts_of(line["configuration"]), []).append(line)
    rows = [(texts, *row) for texts, measured in by_texts.items() for row in rows_of(measured)]
    columns = ("texts", "tokens before", "new tokens", "plain, tokens/s", "another row")
    columns += ("acceptance length of the head", "with n-grams", "head / plain", "one tree / plain")
    columns += ("best tree / plain", "budget / plain", "gamma of one tree", "of the budget", "repeated")
    notes = [
        source(measured, f"{texts}: {run['prompts']} prompts of each length, {computed(run)}", BY_PROMPT)
        for texts, measured in by_texts.items()
        for run in [measured[-1]["configuration"]]
    ]
    return table(columns, grouped(rows), "\n".join(notes))


def texts_of(run: Line) -> str:
    """Return how texts were generated."""
    return f"T = {run['temperature']:g}, up to {run['max_new_tokens']:,}"


def rows_of(measured: list[Line]) -> list[tuple[str, ...]]:
    """Return a run's rows, without the texts."""
    by_way: dict[int, dict[str, Line]] = {}
    for line in measured:
        by_way.setdefault(line["figures"]["prefix"], {})[line["figures"]["contender"]] = line["figures"]
    prompts = measured[-1]["configuration"]["prompts"]
    return [
        (
            f"{prefix:,}",
            f"{ways[PLAIN]['new_tokens'] / prompts:,.0f}",
            f"{ways[PLAIN]['tokens_per_second']:.0f}",
            f"{ways[PLAIN]['row_price']:.0%}",
            *(f"{1 + ways[way]['tau']:.2f}" for way in (BEST, BEST + NGRAMS_WAY)),
            *(interval(ways[way][OVER]) for way in (BEST, FIXED + NGRAMS_WAY, BEST + NGRAMS_WAY, BUDGET)),
            *(f"{ways[way]['gamma']:.1f}" for way in (FIXED + NGRAMS_WAY, BUDGET)),
            f"{ways[PLAIN]['repeated']:.0%}",
        )
        for prefix, ways in by_way.items()
    ]
