"""Parts that the figures share: panels, heatmaps, bars, curves and small PNG files."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from c2t.output import plot_style

PANEL = 4.4, 3.5  # inches
DPI = 80  # keeps a figure of several panels below 80 kB
NOTHING = "0.8"  # grey of cells without data


def panels(count: int, columns: int = 3, **settings: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure of `count` panels in rows of `columns`; settings of each panel as in matplotlib."""
    columns = min(columns, count)
    rows = -(-count // columns)
    with plot_style.style():
        figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows), layout="constrained")
        return figure, [figure.add_subplot(rows, columns, number, **settings) for number in range(1, count + 1)]


def panels_3d(count: int) -> tuple[Figure, list[Axes]]:
    """Return a figure of three-dimensional panels, small enough to leave room for their labels."""
    figure, axes = panels(count, projection="3d")
    for panel in axes:
        panel.set_box_aspect(None, zoom=0.8)
    return figure, axes


def heatmap(
    panel: Axes, values: Float[np.ndarray, "rows columns"], rows: Sequence[str], scale: Normalize, colours: str
) -> None:
    """Draw cells with a colour bar; NaN is grey."""
    panel.set_facecolor(NOTHING)
    image = panel.imshow(values, aspect="auto", norm=scale, cmap=colours, interpolation="nearest")
    panel.set_yticks(range(len(rows)), rows)
    ranks = range(0, values.shape[1], max(1, values.shape[1] // 5))
    panel.set_xticks(ranks, [str(rank + 1) for rank in ranks])
    panel.figure.colorbar(image, ax=panel, shrink=0.85)


def curves(panel: Axes, lines: dict[str, Sequence[float]], start: int = 0, label: str = "epoch") -> None:
    """Draw one line for each name over `start`, `start` + 1, ..."""
    for (name, values), marker in zip(lines.items(), cycle(plot_style.MARKERS), strict=False):
        panel.plot(range(start, start + len(values)), values, marker=marker, label=name)
    panel.set_xlabel(label)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.legend(fontsize="small", frameon=False)


def fronts(panel: Axes, families: dict[str, Sequence[tuple[float, float]]]) -> None:
    """Draw (tau, gamma) of each family's settings, with tau on the x-axis as in the papers."""
    for (name, points), marker in zip(families.items(), cycle(plot_style.MARKERS), strict=False):
        tau, gamma = zip(*sorted(points), strict=True)
        panel.plot(tau, gamma, marker=marker, label=name)
    panel.set(xlabel="tau", ylabel="gamma, all tokens verified", yscale="log")
    panel.legend(fontsize="small", frameon=False)


def patch(colour: str) -> Patch:
    """Return a legend's handle for a surface, which has none of its own."""
    return Patch(color=colour, alpha=0.6)


def point(colour: str, marker: str) -> Line2D:
    """Return a legend's handle for points."""
    return Line2D([], [], color=colour, marker=marker)


def stacks(panel: Axes, bars: dict[str, dict[str, float]]) -> None:
    """Draw a bar for each name, stacked from its parts; parts with one name have one colour."""
    below = np.zeros(len(bars))
    for number, part in enumerate(parts_of(bars)):
        heights = np.array([values.get(part, 0.0) for values in bars.values()])
        panel.bar(
            list(bars),
            heights,
            bottom=below,
            label=part,
            color=plot_style.COLOURS[number % len(plot_style.COLOURS)],
            width=0.6,
        )
        below += heights
    panel.set_ylim(0, 1.2 * below.max())  # room for the legend
    panel.legend(fontsize="small", frameon=False, loc="upper left", ncols=2)


def parts_of(bars: dict[str, dict[str, float]]) -> Iterator[str]:
    """Yield the names of all bars' parts, each once."""
    yield from dict.fromkeys(part for values in bars.values() for part in values)


def save(figure: Figure, path: Path) -> Path:
    """Write the figure as a PNG. InputError if it cannot be written."""
    return plot_style.save(figure, path, DPI)
