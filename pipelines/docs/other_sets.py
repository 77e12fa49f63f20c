"""Table of smollm2's trees on sets of prompts that are made here, by `pipelines.bench decoding --sets`."""

from pipelines.bench.contenders import HIERARCHICAL, PLAIN, TREE
from pipelines.bench.decoding import ALL
from pipelines.docs.cells import interval, lengths, table
from pipelines.docs.result_lines import BY_PROMPT, computed, lines, source

NAMES = {
    "problems": "problems of mathematics",
    "functions": "Python functions",
    "languages": "ten languages",
    ALL: "all",
}


def other_sets() -> str:
    """Return the ratios over plain decoding of each set and of all, and the tree's acceptance length."""
    measured, by_set = lines("sets.jsonl"), {}
    for line in measured:
        by_set.setdefault(line["figures"]["set"], {})[line["figures"]["contender"]] = line["figures"]
    rows = [
        (
            name,
            f"{ways[PLAIN]['tokens_per_second']:.0f}",
            *(interval(ways[way]["against_plain"]) for way in (TREE, HIERARCHICAL)),
            lengths(ways[TREE]["tau"])[0],
        )
        for name, ways in ((NAMES[key], by_set[key]) for key in NAMES)
    ]
    columns = ("prompts", "plain, tokens/s", "tree / plain", "hierarchical / plain", "acceptance length of the tree")
    run = measured[-1]["configuration"]
    how = f"{run['prompts']} prompts a set, up to {run['max_new_tokens']} new tokens, T = {run['temperature']:g}"
    return table(columns, rows, source(measured[-1], how, computed(run), BY_PROMPT))
