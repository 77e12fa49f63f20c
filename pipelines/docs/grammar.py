"""Table and values of docs/json.md: trees under constraints, from the lines of `pipelines.bench grammar`."""

from collections.abc import Iterator
from typing import Any

from pipelines.bench.grammar import FASTEST, MASKED, PLAIN, SCHEMAS, TOOLS
from pipelines.docs.cells import interval, number, table
from pipelines.docs.result_lines import Line, computed, lines, source

TEXTS = [(name, temperature) for name in (SCHEMAS, TOOLS) for temperature in (0.0, 0.8)]


def latest() -> dict[tuple[str, float, str], Line]:
    """Return the last line of each set, temperature and way."""
    return {
        (line["figures"]["set"], line["configuration"]["temperature"], line["figures"]["contender"]): line
        for line in lines("grammar.jsonl")
    }


def grammar() -> str:
    """Return the table: the speed of trees over plain decoding under the same constraint, and what they verify."""
    measured, rows = latest(), []
    for way in dict.fromkeys(way for _, _, way in measured if way != PLAIN):
        ratios = (interval(measured[*texts, way]["figures"]["decoding_against_plain"]) for texts in TEXTS)
        greedy = measured[SCHEMAS, 0.0, way]["figures"]
        masks = f"{greedy['masks']:.1%}"
        rows.append((way, *ratios, f"{greedy['verified_per_token']:.2f}", masks))
    ratios_of = (f"{name}, T = {temperature:g}" for name, temperature in TEXTS)
    columns = ("over plain decoding", *ratios_of, "verified a token", "masks, of the time")
    first = [measured[*texts, PLAIN] for texts in TEXTS]
    run, (schemas, _, tools, _) = first[-1]["configuration"], (line["figures"]["texts"] for line in first)
    how = f"{run['pair']}, `{run['policy']}`; {schemas} prompts for {schemas // 2} schemas, {tools} for tool calls"
    size = f"up to {run['max_new_tokens']} tokens, after the first; last columns: JSON, T = 0"
    return table(columns, rows, source(first, how, size, computed(run)))


def texts() -> str:
    """Return how many texts the trees generated."""
    return f"{_sum('texts'):,}"


def ended() -> str:
    """Return how many of them ended by themselves."""
    return f"{_sum('ended'):,}"


def valid() -> str:
    """Return how many of these have no fault."""
    return f"{_sum('valid'):,}"


def same() -> str:
    """Return how many texts equal plain decoding's."""
    return f"{sum(round(row['equal_to_plain'] * row['texts']) for row in _of_trees()):,}"


def verified() -> str:
    """Return how many tokens trees verify whose drafts are masked, over those that are masked at the target only."""
    return interval(latest()[SCHEMAS, 0.0, MASKED]["figures"]["verified_against_target_only"])


def fastest() -> str:
    """Return the fastest setting for JSON, greedy."""
    return f"`{latest()[SCHEMAS, 0.0, FASTEST]['figures']['setting']}`"


def kinds() -> str:
    """Return the least and the most speed over plain decoding by kind of schema, greedy."""
    ratios = latest()[SCHEMAS, 0.0, FASTEST]["figures"]["by_kind"]
    ordered = sorted((ratio[0], kind) for kind, ratio in ratios.items())
    (least, slow), (most, fast) = ordered[0], ordered[-1]
    return f"{number(least)} ({slow}) to {number(most)} ({fast})"


def _of_trees() -> Iterator[dict[str, Any]]:
    return (line["figures"] for (_, _, way), line in latest().items() if way != PLAIN)


def _sum(name: str) -> int:
    return sum(row[name] for row in _of_trees())
