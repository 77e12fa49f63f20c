"""The table of what the papers conclude, on the default pair."""

import math
from typing import Any

from c2t.study.interval import Interval
from pipelines.docs.result_lines import interval, lines, source, table

PAPERS = "papers-smollm2.jsonl"
COUNTED_BY_SET = ("figure4", "figure8")  # reports whose limit is that of each data set
OF_HARVEST = ("eagle2-figure6", "figure2", "figure9", "figure10", "figure7")  # reports that rest on harvested texts


def conclusions() -> str:
    """Return the papers' conclusions on the default pair, with the figures that decide them."""
    found = {line["command"]: line for line in lines(PAPERS)}  # of two lines of one report the later one
    rows = []
    for name, line in found.items():
        where = f"`{name}` ({prompts_of(name, line['configuration'])})"
        for one in line["figures"]["conclusions"]:
            every = (interval(Interval(*figure)) for figure in one["figures"])
            figures = ", ".join(dict.fromkeys(filter(None, every)))  # of two limits of one figure it stands there twice
            verdict, needed = one["verdict"], one["more"]
            if needed is not None:
                verdict += f": about {needed_prompts(needed * line['configuration']['limit'])} prompts would decide it"
            rows.append((where, one["statement"], figures or one["comparison"].replace("|", "/"), verdict))
            where = ""
    run = next(iter(found.values()))["configuration"]
    told = f"T = {run['temperature']:g}, draft `eagle`, up to {run['max_new_tokens']} new tokens"
    places: dict[str, list[str]] = {}
    for name, line in found.items():
        places.setdefault(f"{line['commit']} {line['hardware']}", []).append(name)
    notes = []
    for names in places.values():
        which = f"{', '.join(names)}: " * (len(places) > 1)
        notes.append(source(found[names[-1]], which + told))
    return table(("report", "conclusion", "figures", "verdict"), rows, "\n".join(notes), figures="---|")


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
