"""Table of decoding after long prompts, from the lines of `pipelines.bench long`."""

from pipelines.bench.long_texts import BEST, BUDGET, FIXED, NGRAMS_WAY, PLAIN
from pipelines.docs.cells import interval, table
from pipelines.docs.result_lines import BY_PROMPT, Line, computed, lines, source

OVER = "decoding_against_plain"


def long_texts() -> str:
    """Return a row for each length of prompts."""
    measured = lines("long.jsonl")
    by_way: dict[int, dict[str, Line]] = {}
    for line in measured:
        by_way.setdefault(line["figures"]["prefix"], {})[line["figures"]["contender"]] = line["figures"]
    rows = []
    for prefix, ways in by_way.items():
        rows.append(
            (
                f"{prefix:,}",
                f"{ways[PLAIN]['tokens_per_second']:.0f}",
                f"{ways[PLAIN]['row_price']:.0%}",
                *(f"{1 + ways[way]['tau']:.2f}" for way in (BEST, BEST + NGRAMS_WAY)),
                *(interval(ways[way][OVER]) for way in (BEST, FIXED + NGRAMS_WAY, BEST + NGRAMS_WAY, BUDGET)),
                *(f"{ways[way]['gamma']:.1f}" for way in (FIXED + NGRAMS_WAY, BUDGET)),
                f"{ways[PLAIN]['repeated']:.0%}",
            )
        )
    run = measured[-1]["configuration"]
    how = (
        f"{run['prompts']} prompts of each length, up to {run['max_new_tokens']} new tokens, T = {run['temperature']:g}"
    )
    columns = ("tokens before", "plain, tokens/s", "another row", "acceptance length of the head", "with n-grams")
    columns += ("head / plain", "one tree / plain", "best tree / plain", "budget / plain")
    return table(
        (*columns, "gamma of one tree", "of the budget", "repeated"),
        rows,
        source(measured, how, computed(run), BY_PROMPT),
    )
