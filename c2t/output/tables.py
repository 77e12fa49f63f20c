"""Lines and tables on a terminal, in a pipe and in a file. Names from files are escaped, and never read as markup."""

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from c2t.errors import plain

PADDING, EDGES = 3, 2  # characters between two columns of a table, and around it
UNLIMITED = 100_000  # width of a file or a pipe


def say(text: str, error: bool = False) -> None:
    """Print lines on stdout, or on stderr."""
    typer.echo(_lines(text), err=error)


def _lines(text: str) -> str:
    return "\n".join(map(plain, text.split("\n")))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table of names and figures: the first column, and all others.

    If it is too wide, the columns are split into several tables, each with the first column.
    """
    console, cells = _console(), [[cell(value) for value in row] for row in rows]
    names, *figures = ([plain(column), *below] for column, *below in zip(columns, *cells, strict=True))
    _print(
        console,
        title,
        *(_block(names, block, width) for block, width in _blocks(names, figures, console.width - EDGES)),
    )


def _blocks(names: list[str], figures: list[list[str]], width: int) -> list[tuple[list[list[str]], int]]:
    """Return the columns of figures of each table, and the width that is left for its names."""
    if sum(max(map(len, column)) + PADDING for column in (names, *figures)) <= width:
        return [(figures, width)]
    least = max(width // 3, min(width // 2, max(len(piece) for name in names for piece in pieces(name)))) + PADDING
    blocks: list[tuple[list[list[str]], int]] = []
    for header, *below in figures:
        needed = max(map(len, [*header.split(), *below]))
        if not blocks or blocks[-1][1] - needed - PADDING < least:
            blocks.append(([], width))
        block, left = blocks[-1]
        blocks[-1] = [*block, [broken(header, needed), *below]], left - needed - PADDING
    return blocks


def _block(names: list[str], figures: list[list[str]], width: int) -> Table:
    """Draw names and figures, each column with its header in front."""
    header, *named = (Text(broken(name, width - PADDING)) for name in names)
    drawn = Table(box=box.SIMPLE_HEAD)
    drawn.add_column(header, overflow="fold")
    for above, *_ in figures:
        drawn.add_column(Text(above), justify="right")
    for name, *row in zip(named, *(below for _, *below in figures), strict=True):
        drawn.add_row(name, *map(Text, row))
    return drawn


def pieces(text: str) -> list[str]:
    """Return the parts of a text between which a line may break: after a blank, and after a comma, a colon or a slash
    before anything but a digit."""
    return re.split(r"(?<= )|(?<=[,:/])(?=[^\d ])", text)


def broken(text: str, width: int) -> str:
    """Return a text in lines of at most `width` characters; only a longer part without a break exceeds it."""
    lines = [""]
    for piece in pieces(text):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def facts(title: str, values: Mapping[str, Any]) -> None:
    """Print names and values."""
    drawn, console = Table(box=box.SIMPLE_HEAD, show_header=False), _console()
    left = console.width - max((len(plain(name)) for name in values), default=0) - 2 * PADDING - EDGES
    drawn.add_column(overflow="fold")
    drawn.add_column(overflow="fold")
    for name, value in values.items():
        drawn.add_row(Text(plain(name)), Text(broken(cell(value), left)))
    _print(console, title, drawn)


def _console() -> Console:
    """Return a console as wide as the terminal; without limit for a file or a pipe."""
    return Console() if sys.stdout.isatty() else Console(width=UNLIMITED)


def _print(console: Console, title: str, *drawn: Table) -> None:
    """Print a title and tables, as Text, in which Rich reads no markup such as [red]."""
    console.print(Text(_lines(title), style="table.title"))
    for part in drawn:
        console.print(part)


def cell(value: Any) -> str:
    """Return a value in a table: four significant digits, thousands separators, "" for None, names by `plain`."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return plain(", ".join(map(str, value)))
    return "" if value is None else plain(str(value))


def watched() -> bool:
    """Return True if the output is a terminal."""
    return Console().is_terminal
