"""One style for all figures: a white background for light and dark pages, and colours and markers that differ in grey.

The lines' names are at their ends; there is no legend.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler
from PIL import Image

from c2t.errors import InputError, one_line
from c2t.storage.atomic import new_file

INK, PALE, GRID = "#1f2328", "#9aa1ab", "#e4e7eb"
# The first is for a figure's subject, the second for its baseline; lightness alternates between neighbours.
COLOURS = ("#0b4f9e", "#d1570a", "#1a7f4b", "#b04fb0", "#7a5a1e", "#1f8f9f", "#c2255c", "#6b7280")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLE = {
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "axes.titlecolor": INK,
    "axes.prop_cycle": cycler(color=COLOURS),
    "grid.color": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "font.size": 10,
    "lines.markersize": 4,
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "legend.fontsize": "small",
}
PALETTE = 256  # colours of a file: a tenth of the bytes, without a visible difference


@contextmanager
def style() -> Iterator[None]:
    """Draw the figures of a block in this style."""
    with matplotlib.rc_context(STYLE):
        yield


def name_lines(panel: Any, names: Sequence[tuple[str, float, float, str]]) -> None:
    """Write each line's name at the right edge, near the height of the line's end, without overlaps.

    names: (name, x, y, colour), with x and y the end of the line in data coordinates.
    """
    if not names:
        return
    height = panel.get_window_extent().height
    apart = 1.25 * matplotlib.rcParams["font.size"] * 0.9 * panel.figure.dpi / 72 / height
    to_axes = panel.transData + panel.transAxes.inverted()
    ends = sorted(((to_axes.transform((x, y)), name, colour) for name, x, y, colour in names), key=lambda e: e[0][1])
    heights = spread([float(end[1]) for end, _, _ in ends], apart)
    for (end, name, colour), height_of_name in zip(ends, heights, strict=True):
        panel.annotate(
            name,
            xy=(float(end[0]), float(end[1])),
            xytext=(1.03, height_of_name),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=colour,
            fontsize="small",
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "alpha": 0.6, "shrinkB": 3},
            parse_math=False,  # names may hold $
        )


def spread(heights: Sequence[float], apart: float) -> list[float]:
    """Return ascending heights, moved as little as possible so that neighbours are at least `apart`."""
    groups: list[tuple[float, int]] = []  # centre and size of blocks that touch
    for height in heights:
        centre, size = height, 1
        while groups and groups[-1][0] + apart * groups[-1][1] / 2 > centre - apart * size / 2:
            other, more = groups.pop()
            centre, size = (other * more + centre * size) / (more + size), more + size
        groups.append((centre, size))
    return [centre + apart * (index - (size - 1) / 2) for centre, size in groups for index in range(size)]


def save(figure: Figure, path: Path, dpi: int = 120) -> Path:
    """Write the figure as a small PNG, which replaces an older one only when it is complete. InputError if it cannot be
    written."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=dpi, format="png")
    if path.exists() and not path.is_file():  # a folder, or a device, which a file would replace
        raise InputError(f"cannot write a figure to {path}: it is no plain file")
    small = Image.open(drawn).convert("RGB").quantize(PALETTE, Image.Quantize.MAXCOVERAGE)
    try:
        with new_file(path) as new:
            small.save(new, format="png", optimize=True)
    except OSError as error:
        raise InputError(f"cannot write a figure to {path}: {one_line(error)}") from error
    return path
