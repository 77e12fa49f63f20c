"""Tables of trees and chains on one head, from the lines of `pipelines.bench chains`."""

from pipelines.docs.cells import LENGTH, interval, length, table
from pipelines.docs.result_lines import Line, computed, lines, source


def _at(temperature: float) -> list[Line]:
    return [line for line in lines("chains.jsonl") if line["configuration"]["temperature"] == temperature]


def rules(temperature: float) -> str:
    """Return the fastest setting of each rule, and its speed over plain decoding and over the fastest chain."""
    rows = []
    for figures in (line["figures"] for line in _at(temperature)):
        counts = (length(figures["tau"]), f"{figures['gamma']:.1f}")
        ratios = (interval(figures[name]) for name in ("against_plain", "against_chain"))
        rows.append((figures["family"], *counts, *ratios))
    line = _at(temperature)[-1]
    run = line["configuration"]
    texts = (
        f"{min(run['sets'].values())} prompts of each of {len(run['sets'])} sets, {run['max_new_tokens']} new tokens"
    )
    note = source(line, f"{texts}, T = {temperature:g}; {computed(run)}")
    return table(("rule", LENGTH, "gamma", "/ plain", "/ the fastest chain"), rows, note)


def tokens_over_chain(family: str, chain: str) -> str:
    """Return a rule's verified tokens over those of a rule of chains at T = 0, at the longest acceptance length with an
    interval."""
    (figures,) = (line["figures"] for line in _at(0) if line["figures"]["family"] == family)
    return interval([ratio for _, *ratio in figures["verified_against"][chain] if None not in ratio][-1])


def over_chain(family: str, temperature: float) -> str:
    """Return the speed of a rule's fastest setting over the fastest chain."""
    of_family = (line["figures"] for line in _at(temperature) if line["figures"]["family"] == family)
    return interval(next(of_family)["against_chain"])
