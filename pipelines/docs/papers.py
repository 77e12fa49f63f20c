"""Tables of docs/papers.md and docs/results/papers.md: which conclusions of the papers hold on the default pair."""

import math
import re
from typing import Any

from pipelines.docs.cells import grouped, interval, table
from pipelines.docs.result_lines import Line, lines, source

LINES = "papers-smollm2.jsonl"
COUNTED_BY_SET = ("figure4", "figure8")  # reports whose limit is that of each data set
OF_HARVEST = ("eagle2-figure6", "figure2", "figure9", "figure10", "figure7")  # reports that rest on harvested texts
TOPICS = {
    "Is the draft calibrated?": ("eagle2-figure6", "figure2"),
    "EAGLE-2: expansion, reranking, size": ("eagle2-table3", "table4"),
    "What the classifier learned": ("figure9", "figure10"),
    "Its inputs": ("table1", "table6"),
    "Its hidden size": ("figure6",),
    "Chains": ("table3", "table7"),
    "C2T's trees at equal acceptance length": ("figure4", "table5"),
    "Transfer and fine-tuning": ("table2", "figure7", "figure8"),
    "Time": ("figure5", "figure11"),
}
HOLDS, FAILS = "holds", "does not hold"
SATURATED = "average precision"  # computed of sigmoids in float32, where the highest scores tied
RANGE = re.compile(r"at the tau of \S*N=(\d+): ([\d.]+) \((?:95 % interval ([\d.]+) to ([\d.]+)|no interval)\)")


def reports() -> dict[str, Line]:
    """Return the line of each report; of two lines of one report the later one."""
    return {line["command"]: line for line in lines(LINES)}


def conclusions_of(name: str) -> list[dict[str, Any]]:
    """Return a report's conclusions."""
    made = reports()[name]["figures"]["conclusions"]
    return [conclusion for conclusion in made if SATURATED not in conclusion["comparison"]]


def verdicts() -> str:
    """Return how many conclusions hold, by topic."""
    assert {name for names in TOPICS.values() for name in names} == set(reports())
    rows = []
    for topic, names in TOPICS.items():
        judged = [conclusion["verdict"] for name in names for conclusion in conclusions_of(name)]
        counts = judged.count(HOLDS), judged.count(FAILS)
        rows.append((topic, ", ".join(f"`{name}`" for name in names), *map(str, (*counts, len(judged) - sum(counts)))))
    return table(("topic", "reports", "holds", "does not hold", "undecided"), rows)


def conclusions() -> str:
    """Return the papers' conclusions on the default pair, with the figures that decide them."""
    rows = []
    for name, line in reports().items():
        where = f"`{name}` ({prompts_of(name, line['configuration'])})"
        for conclusion in conclusions_of(name):
            every = (interval(figure) for figure in conclusion["figures"])
            figures = ", ".join(dict.fromkeys(filter(None, every)))  # of two limits of one figure it stands there twice
            verdict, needed = {HOLDS: "yes", FAILS: "no"}.get(conclusion["verdict"], "open"), conclusion["more"]
            if needed is not None:
                verdict += f" ({needed_prompts(needed * line['configuration']['limit'])})"
            rows.append((where, conclusion["statement"], figures or shortened(conclusion["comparison"]), verdict))
    return table(("report", "conclusion", "figures", "holds"), grouped(rows), sources(), figures="---|")


def shortened(comparison: str) -> str:
    """Return a comparison without the words that each of its kind repeats."""
    said = comparison.replace("|", "/").replace("gamma over EAGLE-2's at its tau", "gamma / EAGLE-2's")
    for old in ("gamma over that without C2T at its tau, ", "; holds if it falls throughout"):
        said = said.replace(old, "")
    return RANGE.sub(lambda at: f"N={at[1]}: {at[2]}" + (f" ({at[3]}-{at[4]})" if at[3] else ""), said)


def sources() -> str:
    """Return where and when the reports were made, a line for each commit and machine."""
    made = reports()
    run = next(iter(made.values()))["configuration"]
    how = f"T = {run['temperature']:g}, draft `eagle`, up to {run['max_new_tokens']} new tokens"
    by_machine: dict[str, list[str]] = {}
    for name, line in made.items():
        by_machine.setdefault(f"{line['commit']} {line['hardware']}", []).append(name)
    first, *rest = sorted(by_machine.values(), key=len, reverse=True)
    notes = [source(made[first[-1]], how)]
    return "\n".join([*notes, *(source(made[names[-1]], f"{', '.join(names)}: {how}") for names in rest)])


def prompts_of(name: str, run: Line) -> str:
    """Return the prompts that a report rests on, and its draft unless that is the pair's own."""
    draft = f", draft `{run['draft']}`" if run["draft"] else ""
    if name in OF_HARVEST:
        return f"{run['harvest_limit']} harvested{draft}"
    return f"{run['limit']}{' of each set' if name in COUNTED_BY_SET else ''}{draft}"


def needed_prompts(count: float) -> str:
    """Return a number of prompts rounded up to two digits."""
    unit = 10 ** max(0, math.floor(math.log10(count)) - 1)
    return f"{math.ceil(count / unit) * unit:,}"
