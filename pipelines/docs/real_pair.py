"""Tables about the default pair: what the papers conclude, which trees pay at equal tau, and how calibrated its drafts
are."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from c2t.study.interval import Interval, bootstrap
from c2t.study.points import Point, read_points
from pipelines.docs import reliability as reliabilities
from pipelines.docs.result_lines import RESULTS, interval, lines, source, table

PAPERS, TREES, HEADS = "papers-smollm2.jsonl", "gain-real.jsonl", "smollm2-heads.jsonl"
COUNTS = "gain-counts.jsonl"  # the same as in TREES, of drafts with the text's n-grams
COUNTED, OWN = "threshold on P mixed with the text's counts, weight searched", "conditional network, own 8"
COUNTED_BY_SET = ("figure4", "figure8")  # reports whose limit is that of each data set
OF_HARVEST = ("eagle2-figure6", "figure2", "figure9", "figure10", "figure7")  # reports that rest on harvested texts
SHOWN = ("threshold on P, draft temperature searched", "EAGLE-2, levels searched", "paper's network")
CONDITIONAL = "conditional network"


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


def conditions() -> list[dict[str, Any]]:
    """Return the lines of the real pair, those of a draft together; a later line stands for an earlier one."""
    runs = ((line["configuration"], line) for line in lines(TREES))
    found = {(run["draft"], run["temperature"]): line for run, line in runs}
    return [found[key] for key in sorted(found)]


def trees() -> str:
    """Return each kind of tree's gamma over that of a threshold on P, and the networks' over the best untrained one."""
    rows = []
    for line in conditions():
        run = line["configuration"]
        where = f"`{run['draft']}`, T = {run['temperature']:g}"
        found = {(row[0], row[2]): row for row in line["figures"]["rows"]}
        for tau in dict.fromkeys(row[2] for row in line["figures"]["rows"]):
            plain = found.get(("threshold on P", tau))
            if plain is None or plain[3] is None:
                continue
            over_plain = [_ratio(found.get((name, tau)), 4) for name in (*SHOWN, CONDITIONAL)]
            over_best = [_ratio(found.get((name, tau)), 5) for name in ("paper's network", CONDITIONAL)]
            rows.append((where, f"{tau:g}", f"{plain[3]:.1f}", *over_plain, *over_best))
            where = ""
    columns = ("draft, text", "tau", "gamma, threshold", "threshold, draft temperature searched", "EAGLE-2")
    columns += ("paper's network", "conditional network", "paper's / best untrained", "conditional / best untrained")
    return table(columns, rows, _sources(_halves, "95 % intervals by prompt"))


def counts() -> str:
    """Return what a network gains that also reads the text's counts, on drafts that are mixed with n-grams."""
    rows, notes = [], {}
    for line in lines(COUNTS):
        run = line["configuration"]
        notes[source(line, _halves(run), "95 % intervals by prompt")] = None
        where = f"`{run['draft']}`, T = {run['temperature']:g}"
        found = {(row[0], row[2]): row for row in line["figures"]["rows"]}
        for tau in sorted({tau for _, tau in found if tau >= 1}):
            plain = found["threshold on P", tau]
            over_plain = [_ratio(found.get((name, tau)), 4) for name in (SHOWN[0], COUNTED)]
            over_best = [_ratio(found.get((name, tau)), 5) for name in (SHOWN[2], OWN, f"{OWN} and the text's counts")]
            rows.append((where, f"{tau:g}", f"{plain[3]:.1f}", *over_plain, *over_best))
            where = ""
    columns = ("draft, text", "tau", "gamma, threshold", "draft temperature searched", "weight of the counts searched")
    columns += ("paper's / best untrained", "conditional / best untrained", "conditional with counts / best untrained")
    return table(columns, rows, "\n".join(notes))


def _halves(run: dict[str, Any]) -> str:
    """Return how many prompts a condition was searched and judged on."""
    told = f"searched on {-(-run['prompts'] // 2)} prompts and judged on {run['prompts'] // 2} others of three sets"
    return f"{told}, {run['max_new_tokens']} new tokens"


def _prompts(run: dict[str, Any]) -> str:
    return f"{run['prompts']} prompts"


def _sources(told: Callable[[dict[str, Any]], str], *settings: str) -> str:
    """Return where and when the rows were measured, a line for each commit, day, machine and what is told of a run."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in conditions():
        found.setdefault((source(line), told(line["configuration"])), []).append(line)
    notes = []
    for (_, size), some in found.items():
        runs = [line["configuration"] for line in some]
        which = ", ".join(f"{run['draft']} at T = {run['temperature']:g}" for run in runs)
        notes.append(source(some[-1], which, size, *settings))
    return "\n".join(notes)


def _ratio(row: list[Any] | None, place: int) -> str:
    return interval(Interval(*row[place])) if row else ""


def reliability() -> str:
    """Return how sure the drafts are of their most probable token, and how often it is accepted, by depth."""
    rows = []
    for line in conditions():
        run = line["configuration"]
        where, found = f"`{run['draft']}`, T = {run['temperature']:g}", {}
        for name, depth, _, first, accepted, *_ in line["figures"]["reliability"]:
            found.setdefault(name, {})[depth] = f"{first:.2f}, {accepted:.2f}"
        for name, by_depth in found.items():
            rows.append((where, name, *(by_depth.get(depth, "") for depth in range(1, 6))))
            where = ""
    columns = ("draft, text", "data set", *(f"token {depth}" for depth in range(1, 6)))
    return table(columns, rows, _sources(_prompts, "most probable token: mean probability, share accepted"))


def two_heads() -> str:
    """Return what the same trees accept and verify with the pair's EAGLE-1/2 head and with its EAGLE-3 head."""
    found: dict[tuple[str, str, str, float], dict[str, Point]] = {}  # of the same texts
    for condition, points in read_points(RESULTS / HEADS).items():
        for point in points:
            key = Path(condition.files[0]).stem, point.label, condition.texts, condition.temperature
            found.setdefault(key, {})[condition.draft_name] = point
    rows = []
    for (name, label, *_), heads in found.items():
        both = [heads[draft] for draft in ("draft", "draft_eagle3")]
        (ratio,) = bootstrap(
            np.array([counts for point in both for counts in (point.accepted, point.rounds)], dtype=float),
            lambda sums: (sums[2] / sums[3] / (sums[0] / sums[1]))[None],
        )
        figures = [f"{point.tau:.2f}, {point.gamma:.1f}" for point in both]
        rows.append((name, f"`{label}`", *figures, interval(ratio)))
    line = lines(HEADS)[-1]
    run = line["configuration"]
    told = f"{run['prompts']} prompts of each set, {run['max_new_tokens']} new tokens, T = {run['temperature']:g}"
    columns = ("prompts", "tree", "`eagle`: tau, gamma", "`eagle3`: tau, gamma", "tau, `eagle3` over `eagle`")
    return table(columns, rows, source(line, told, "95 % intervals by prompt"))


def picture() -> Figure:
    """Return the figure of acceptance over the probabilities of the draft `eagle`."""
    found = {
        f"T = {line['configuration']['temperature']:g}": line["figures"]
        for line in conditions()
        if line["configuration"]["draft"] == "eagle"
    }
    return reliabilities.picture({title: one["reliability"] for title, one in found.items()})


def ratio_at(draft: str, family: str, tau: float, over_best: bool = False) -> str:
    """Return one ratio of `trees` at T = 0."""
    (rows,) = (
        line["figures"]["rows"]
        for line in conditions()
        if (line["configuration"]["draft"], line["configuration"]["temperature"]) == (draft, 0.0)
    )
    (row,) = (row for row in rows if (row[0], row[2]) == (family, tau))
    return _ratio(row, 5 if over_best else 4)


def least_over_best() -> str:
    """Return the lowest end of the intervals of the paper's network over the best untrained tree."""
    rows = [row for line in conditions() for row in line["figures"]["rows"] if row[0] == "paper's network"]
    return f"{min(row[5][1] for row in rows if row[5][1] is not None):.2f}"
