"""Figures of sweeps (tau against gamma per round, a panel for each condition), of tuning (tokens/s over gamma) and of
batches (tokens/s over their size)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from c2t.models.loading.load import NGRAMS
from c2t.output import plot_style
from c2t.study.autotune import Candidate, Tuning
from c2t.study.batches import Speed
from c2t.study.interval import Interval
from c2t.study.pareto import LIMIT, SUBJECT, Comparison, compare, families, front
from c2t.study.points import Condition, Point

PANEL, HEIGHTS = (6.4, 6.0), (3, 1)  # inches; of the fronts and of the ratio below them
COLUMNS = 2
SPEEDS = 6.4, 4.4  # inches
STEPS = 25  # taus at which the ratio is plotted
BEST, OTHER = plot_style.COLOURS[1], plot_style.COLOURS[2:]
THICK, THIN, TOP = 2.4, 1.0, 10


def plot_fronts(conditions: Mapping[Condition, Sequence[Point]], path: Path) -> Path:
    """Draw the points of every family and the line of its front, and write a PNG. InputError if it cannot be
    written."""
    columns = min(COLUMNS, len(conditions))
    rows = -(-len(conditions) // columns)
    with plot_style.style():
        figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows), layout="constrained")
        panels = figure.subplots(2 * rows, columns, squeeze=False, height_ratios=HEIGHTS * rows)
        cells = [divmod(number, columns) for number in range(rows * columns)]
        fronts, ratios = ([panels[2 * row + half, column] for row, column in cells] for half in (0, 1))
        ends = []
        for panel, below, (condition, points) in zip(fronts, ratios, conditions.items(), strict=False):
            ends.append(draw_panel(panel, points))
            panel.set_title(f"{headline(points)}\n{condition.title}", parse_math=False)  # names may hold $
            draw_ratio(below, points)
        for panel in [*fronts[len(conditions) :], *ratios[len(conditions) :]]:
            panel.set_visible(False)
        _name(figure, fronts, ends)
        return plot_style.save(figure, path)


def _name(figure: Figure, panels: Sequence[Any], ends: Sequence[list[tuple[str, float, float, str]]]) -> None:
    """Write names next to the ends of lines; the layout then makes room for them."""
    figure.draw_without_rendering()  # which positions the panels
    for panel, names in zip(panels, ends, strict=False):
        plot_style.name_lines(panel, names)


def headline(points: Sequence[Point]) -> str:
    """Return the title of the points: gamma of the subject over that of the best untrained family, at a middle tau."""
    compared = _compared(points)
    if compared is None or compared.strongest is None:
        return "tau and gamma of each family"
    ratios = [ratio for ratio in compared.ratios[compared.strongest] if ratio.ratio.estimate is not None]
    at = ratios[(len(ratios) - 1) // 2]
    ratio, low, high = at.ratio
    interval = "" if low is None else f" ({low:.2f}-{high:.2f})"
    return (
        f"At tau {at.tau:g} {compared.subject} verifies {ratio:.2f}{interval} times the tokens of\n"
        f"the best untrained tree, {compared.strongest}"
    )


def _compared(points: Sequence[Point]) -> Comparison | None:
    """Return the comparison of the subject with its rivals; None without a subject or a rival."""
    rivals = set(families(points)) - {SUBJECT, LIMIT}
    return compare(points) if SUBJECT in families(points) and rivals else None


def draw_panel(panel: Any, points: Sequence[Point]) -> list[tuple[str, float, float, str]]:
    """Draw one condition: the subject's front and that of the best untrained family thick, the oracle's dashed, points
    off a front pale. Return each line's name, end and colour."""
    compared = _compared(points)
    best = compared.strongest if compared else None
    names, number = [], 0
    for family, group in families(points).items():
        special = family in (SUBJECT, best)
        if family == SUBJECT:
            colour, marker = plot_style.COLOURS[0], plot_style.MARKERS[0]
        elif family == best:
            colour, marker = BEST, plot_style.MARKERS[1]
        elif family == LIMIT:
            colour, marker = plot_style.INK, "."
        else:
            colour, marker = OTHER[number % len(OTHER)], plot_style.MARKERS[2 + number % len(OTHER)]
            number += 1
        line = front(group)
        gammas, taus = [p.gamma for p in line], [p.tau for p in line]
        panel.scatter([p.gamma for p in group], [p.tau for p in group], s=8, color=colour, alpha=0.3, linewidths=0)
        panel.plot(
            gammas,
            taus,
            color=colour,
            marker=marker,
            linestyle="--" if family == LIMIT else "-",
            linewidth=THICK if special else THIN,
            zorder=TOP if special else None,
            label=family,
        )
        title = {best: f"{family}: best untrained", LIMIT: f"{family}: the limit"}.get(family, family)
        names.append((title, gammas[-1], taus[-1], colour))
    panel.set_xscale("log")
    panel.set_xlabel("gamma: verified tokens per round, root included")
    panel.set_ylabel("tau: accepted drafted tokens per round")
    return names


def draw_ratio(panel: Any, points: Sequence[Point]) -> None:
    """Draw gamma of the subject over that of the best untrained family at equal acceptance length, with its paired
    95 % interval: it is far narrower than that of either, since both decode the same easy and hard prompts."""
    compared = _compared(points)
    if compared is None or compared.strongest is None:
        panel.set_visible(False)
        return
    both = [point for point in points if point.family in (SUBJECT, compared.strongest)]
    reached = [[point.tau for point in group] for group in families(both).values()]
    low, high = max(map(min, reached)), min(map(max, reached))
    ratios = compare(both, taus=list(np.linspace(low, high, STEPS))).ratios[compared.strongest]
    taus = [ratio.tau for ratio in ratios]
    estimate, low, high = (
        np.array([getattr(ratio.ratio, name) for ratio in ratios], float) for name in Interval._fields
    )
    panel.axhline(1, color=BEST, marker="", linewidth=THICK)
    panel.plot(taus, estimate, color=plot_style.COLOURS[0], marker="", linewidth=THICK)
    panel.fill_between(taus, low, high, color=plot_style.COLOURS[0], alpha=0.18, linewidth=0)
    panel.set_xlabel("tau")
    panel.set_ylabel(f"gamma of {SUBJECT} over\n{compared.strongest}'s (95 %)", parse_math=False)


def plot_speeds(tuning: Tuning, path: Path) -> Path:
    """Draw the speed of each candidate over plain decoding by its gamma, and write a PNG; rings: those that decoded
    all texts. InputError if it cannot be written."""
    kinds: dict[str, list[Candidate]] = {}
    for row in tuning.rows:
        if row is not tuning.plain:
            kinds.setdefault(row.name.removesuffix(NGRAMS), []).append(row)
    with plot_style.style():
        figure = Figure(figsize=SPEEDS, layout="constrained")
        panel = figure.subplots()
        panel.axhline(1.0, color=plot_style.INK, linestyle="--", marker="", linewidth=THIN)
        names = [("plain", max(row.total.gamma for row in tuning.rows), 1.0, plot_style.INK)]
        for number, (kind, rows) in enumerate(kinds.items()):  # no lines: neighbours differ in more than their size
            colour, marker = (cycle[number % len(cycle)] for cycle in (plot_style.COLOURS, plot_style.MARKERS))
            gammas, speeds = [row.total.gamma for row in rows], [row.against_plain for row in rows]
            panel.plot(gammas, speeds, color=colour, marker=marker, linestyle="", markersize=6, label=kind)
            names.append((kind, *max(zip(gammas, speeds, strict=True)), colour))
        ring = {"color": "none", "markeredgecolor": plot_style.INK, "markersize": 10}
        for row in (row for row in tuning.rows if row.texts == tuning.plain.texts):
            panel.plot(row.total.gamma, row.against_plain, "o", **ring)
        panel.set_xscale("log")
        panel.set_ylim(bottom=0)
        panel.set_xlabel("gamma: verified tokens per round, root included")
        panel.set_ylabel("tokens/s over plain decoding (rings: on all texts)")
        conditions = f"batch size {tuning.settings.batch}, T = {tuning.settings.temperature:g}"
        panel.set_title(f"{tuning.summary}\n{conditions}", parse_math=False)
        _name(figure, [panel], [names])
        return plot_style.save(figure, path)


def plot_batches(rows: Sequence[Speed], title: str, path: Path) -> Path:
    """Draw the tokens/s of each policy over the batch size, with 95 % intervals, and write a PNG. InputError if it
    cannot be written."""
    with plot_style.style():
        figure = Figure(figsize=SPEEDS, layout="constrained")
        panel = figure.subplots()
        names: list[tuple[str, float, float, str]] = []
        for number, label in enumerate(dict.fromkeys(row.label for row in rows)):
            curve = sorted((row for row in rows if row.label == label), key=lambda row: row.batch)
            kind = label.partition(":")[0]
            plain, subject = kind == "plain", kind == "budget"
            colour = plot_style.INK if plain else plot_style.COLOURS[number % len(plot_style.COLOURS)]
            batches = [row.batch for row in curve]
            speeds, low, high = zip(*(row.tokens_per_second for row in curve), strict=True)
            width = THICK if subject else THIN
            style = "--" if plain else "-"
            marker = plot_style.MARKERS[number % len(plot_style.MARKERS)]
            panel.plot(batches, speeds, color=colour, linewidth=width, linestyle=style, marker=marker, label=label)
            if None not in (*low, *high):
                panel.fill_between(batches, low, high, color=colour, alpha=0.15, linewidth=0)
            names.append((label, float(batches[-1]), speeds[-1], colour))
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        sizes = sorted({row.batch for row in rows})
        panel.set_xticks(sizes, [str(size) for size in sizes])
        panel.yaxis.set_major_formatter("{x:g}")
        panel.set_xlabel("batch size: prompts decoded together")
        panel.set_ylabel("tokens/s of all prompts")
        panel.set_title(title, parse_math=False)
        _name(figure, [panel], [names])
        return plot_style.save(figure, path)
