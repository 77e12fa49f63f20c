"""Tables of trees and chains on one head, from the lines of `pipelines.bench chains`."""

from pipelines.docs.cells import LENGTHS, extent, grouped, interval, lengths, table
from pipelines.docs.result_lines import Line, computed, lines, source

SETS = {
    "gsm8k": "GSM8K",
    "humaneval": "HumanEval",
    "mt_bench": "MT-bench",
    "functions": "functions",
    "documents": "pages",
}


def _at(temperature: float) -> list[Line]:
    return [line for line in lines("chains.jsonl") if line["configuration"]["temperature"] == temperature]


def _note(shown: list[Line]) -> str:
    run = shown[-1]["configuration"]
    texts = (
        f"{min(run['sets'].values())} prompts of each of {len(run['sets'])} sets, {run['max_new_tokens']} new tokens"
    )
    return source(shown, f"{texts}, T = {run['temperature']:g}; {computed(run)}")


def rules(temperature: float) -> str:
    """Return the fastest setting of each rule, and its speed over plain decoding and over the fastest chain."""
    shown = _at(temperature)
    rows = [
        (
            figures["family"],
            *lengths(figures["tau"]),
            f"{figures['gamma']:.1f}",
            interval(figures["against_plain"]),
            interval(figures["against_chain"]),
        )
        for figures in (line["figures"] for line in shown)
    ]
    return table(("rule", *LENGTHS, "gamma", "/ plain", "/ the fastest chain"), rows, _note(shown))


def by_set() -> str:
    """Return the speed of each rule over plain decoding on each set."""
    rows, notes = [], {}
    for line in lines("chains.jsonl"):
        figures, temperature = line["figures"], line["configuration"]["temperature"]
        cells = (f"{figures['by_set'][name]:.2f}" for name in SETS)
        rows.append((f"{temperature:g}", figures["family"], f"`{figures['setting']}`", *cells))
        notes[temperature] = _note(_at(temperature))
    return table(("T", "rule", "setting", *SETS.values()), grouped(rows), "\n".join(notes.values()))


def verified() -> str:
    """Return what trees verify over chains at equal acceptance length."""
    rows, notes = [], {}
    for line in lines("chains.jsonl"):
        figures, temperature = line["figures"], line["configuration"]["temperature"]
        for rival, ratios in figures["verified_against"].items():
            for tau, *ratio in ratios:
                if ratio[0] is not None:
                    rows.append((f"{temperature:g}", figures["family"], rival, *lengths(tau, "g"), interval(ratio)))
        notes[temperature] = _note(_at(temperature))
    return table(("T", "tree", "chain", *LENGTHS, "gamma / gamma"), grouped(rows, 3), "\n".join(notes.values()))


def span(tree: str, chain: str) -> str:
    """Return the lowest and the highest ratio of a tree's gamma over a chain's, at every tau and temperature."""
    compared = (
        line["figures"]["verified_against"].get(chain, ())
        for line in lines("chains.jsonl")
        if line["figures"]["family"] == tree
    )
    return extent(ratio for rows in compared for _, ratio, *_ in rows)
