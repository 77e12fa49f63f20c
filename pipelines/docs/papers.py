"""Tables of docs/papers.md and docs/results/papers.md: which conclusions of the papers hold on the default pair."""

import math
import re
from typing import Any

from c2t.study.interval import Interval
from pipelines.docs.result_lines import interval, lines, source, table

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
    "C2T's trees at equal tau": ("figure4", "table5"),
    "Transfer and fine-tuning": ("table2", "figure7", "figure8"),
    "Time": ("figure5", "figure11"),
}
HOLDS, FAILS = "holds", "does not hold"
SATURATED = "average precision"  # computed of sigmoids in float32, where the highest scores tied
RANGE = re.compile(r"at the tau of \S*N=(\d+): ([\d.]+) \((?:95 % interval ([\d.]+) to ([\d.]+)|no interval)\)")


def reports() -> dict[str, dict[str, Any]]:
    """Return the line of each report; of two lines of one report the later one."""
    return {line["command"]: line for line in lines(LINES)}


def conclusions_of(name: str) -> list[dict[str, Any]]:
    """Return a report's conclusions."""
    return [one for one in reports()[name]["figures"]["conclusions"] if SATURATED not in one["comparison"]]


def verdicts() -> str:
    """Return how many conclusions hold, by topic."""
    assert {name for names in TOPICS.values() for name in names} == set(reports())
    rows = []
    for topic, names in TOPICS.items():
        found = [one["verdict"] for name in names for one in conclusions_of(name)]
        counts = found.count(HOLDS), found.count(FAILS)
        rows.append((topic, ", ".join(f"`{name}`" for name in names), *map(str, (*counts, len(found) - sum(counts)))))
    return table(("topic", "reports", "holds", "does not hold", "undecided"), rows)


def conclusions() -> str:
    """Return the papers' conclusions on the default pair, with the figures that decide them."""
    rows = []
    for name, line in reports().items():
        where = f"`{name}` ({prompts_of(name, line['configuration'])})"
        for one in conclusions_of(name):
            every = (interval(Interval(*figure)) for figure in one["figures"])
            figures = ", ".join(dict.fromkeys(filter(None, every)))  # of two limits of one figure it stands there twice
            verdict, needed = {HOLDS: "yes", FAILS: "no"}.get(one["verdict"], "open"), one["more"]
            if needed is not None:
                verdict += f" ({needed_prompts(needed * line['configuration']['limit'])})"
            rows.append((where, one["statement"], figures or shortened(one["comparison"]), verdict))
            where = ""
    return table(("report", "conclusion", "figures", "holds"), rows, sources(), figures="---|")


def shortened(comparison: str) -> str:
    """Return a comparison without the words that each of its kind repeats."""
    said = comparison.replace("|", "/").replace("gamma over EAGLE-2's at its tau", "gamma / EAGLE-2's")
    for old in ("gamma over that without C2T at its tau, ", "; holds if it falls throughout"):
        said = said.replace(old, "")
    return RANGE.sub(lambda at: f"N={at[1]}: {at[2]}" + (f" ({at[3]}-{at[4]})" if at[3] else ""), said)


def sources() -> str:
    """Return where and when the reports were made, a line for each commit and machine."""
    found = reports()
    run = next(iter(found.values()))["configuration"]
    told = f"T = {run['temperature']:g}, draft `eagle`, up to {run['max_new_tokens']} new tokens"
    places: dict[str, list[str]] = {}
    for name, line in found.items():
        places.setdefault(f"{line['commit']} {line['hardware']}", []).append(name)
    first, *rest = sorted(places.values(), key=len, reverse=True)
    notes = [source(found[first[-1]], told)]
    return "\n".join([*notes, *(source(found[names[-1]], f"{', '.join(names)}: {told}") for names in rest)])


def prompts_of(name: str, run: dict[str, Any]) -> str:
    """Return the prompts that a report rests on, and its draft unless that is the pair's own."""
    draft = f", draft `{run['draft']}`" if run["draft"] else ""
    if name in OF_HARVEST:
        return f"{run['harvest_limit']} harvested{draft}"
    return f"{run['limit']}{' of each set' if name in COUNTED_BY_SET else ''}{draft}"


def needed_prompts(count: float) -> str:
    """Return a number of prompts rounded up to two digits."""
    unit = 10 ** max(0, math.floor(math.log10(count)) - 1)
    return f"{math.ceil(count / unit) * unit:,}"
