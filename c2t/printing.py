"""Lines and tables on a terminal, in a pipe and in a file; names from outside are texts in them and nothing else."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from c2t.errors import plain

UNLIMITED = 100_000  # columns of a file or a pipe; a table takes what it needs of them


def say(text: str, error: bool = False) -> None:
    """Print lines on stdout, or on stderr."""
    typer.echo(_lines(text), err=error)


def _lines(text: str) -> str:
    return "\n".join(map(plain, text.split("\n")))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table; all columns but the first are figures."""
    drawn = Table(box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        drawn.add_column(Text(plain(column)), justify="right" if number else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell(value)) for value in row))
    _print(title, drawn)


def facts(title: str, values: Mapping[str, Any]) -> None:
    """Print names and values."""
    drawn = Table(box=box.SIMPLE_HEAD, show_header=False)
    drawn.add_column(overflow="fold")
    drawn.add_column(overflow="fold")
    for name, value in values.items():
        drawn.add_row(Text(plain(name)), Text(cell(value)))
    _print(title, drawn)


def _print(title: str, drawn: Table) -> None:
    """Print a table as wide as the terminal allows, or as it needs to be where a file or a pipe takes it.

    Names from outside are Text, which Rich does not search for markup such as [red].
    """
    console = Console() if sys.stdout.isatty() else Console(width=UNLIMITED)
    console.print(Text(_lines(title), style="table.title"))
    console.print(drawn)


def cell(value: Any) -> str:
    """Return four significant digits, thousands apart; nothing for None; names as `plain` shows them."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return plain(", ".join(map(str, value)))
    return "" if value is None else plain(str(value))


def watched() -> bool:
    """Return True if somebody looks at the output while it is made."""
    return Console().is_terminal
