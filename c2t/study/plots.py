"""Figures of sweeps: tau against gamma per round, a panel for each condition."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from c2t.errors import InputError
from c2t.study.pareto import LIMIT, SUBJECT, families, front
from c2t.study.points import Condition, Point

PANEL = 6.0, 4.5  # inches
COLUMNS = 3


def plot_fronts(conditions: Mapping[Condition, Sequence[Point]], path: Path) -> Path:
    """Draw the points of every family and the line of its front, and write a PNG. InputError if it cannot be
    written."""
    columns = min(COLUMNS, len(conditions))
    rows = -(-len(conditions) // columns)
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for panel, (condition, points) in zip(panels, conditions.items(), strict=False):
        draw_panel(panel, points)
        panel.set_title(condition.title, fontsize="medium", parse_math=False)  # names may hold $
    for panel in list(panels)[len(conditions) :]:
        panel.set_visible(False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120, format="png")
    except OSError as error:
        raise InputError(f"cannot write a figure to {path}: {error.strerror}") from error
    return path


def draw_panel(panel: Any, points: Sequence[Point]) -> None:
    """Draw one condition: the subject's curve thick, the limit's dashed, points behind a front pale."""
    for number, (family, group) in enumerate(families(points).items()):
        colour = f"C{number % 10}"
        style = {"linestyle": "--" if family == LIMIT else "-" if number < 10 else ":"}
        best = front(group)
        panel.scatter([p.gamma for p in group], [p.tau for p in group], s=8, color=colour, alpha=0.35, linewidths=0)
        panel.plot(
            [p.gamma for p in best],
            [p.tau for p in best],
            marker="o",
            markersize=3,
            color=colour,
            linewidth=2.4 if family == SUBJECT else 1.1,
            label=family,
            **style,
        )
    panel.set_xscale("log")
    panel.set_xlabel("gamma: verified tokens per round, root included")
    panel.set_ylabel("tau: accepted drafted tokens per round")
    panel.grid(alpha=0.3)
    for label in panel.legend(fontsize="small").get_texts():
        label.set_parse_math(False)
