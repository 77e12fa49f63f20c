"""Display of results: tables and text on stdout, progress bars and errors on stderr."""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from transformers.utils import logging as transformers_logging

from c2t.errors import InputError

UNLIMITED = 10_000  # characters: tables that go to a file or a pipe are as wide as they need to be


def say(text: str, error: bool = False) -> None:
    """Print a line."""
    typer.echo(text, err=error)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table; all columns but the first hold figures, and None is an empty cell."""
    drawn = Table(box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        drawn.add_column(Text(column), justify="right" if number else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(_cell(value)) for value in row))  # Text is not searched for markup such as [red]
    console = Console() if sys.stdout.isatty() else Console(width=UNLIMITED)
    console.print(Text(title, style="table.title"))
    console.print(drawn)


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}"


def progress(what: str, note: str) -> Progress:
    """Return a bar on stderr, hidden if stderr is no terminal; `note` is a template over the task's fields."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn(note), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


@contextmanager
def errors_in_one_line(who: str) -> Iterator[None]:
    """Turn wrong input into one line on stderr and exit code 2, and warnings into one line each."""
    transformers_logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_args, **_kwargs: say(f"warning: {message}", error=True)
        try:
            yield
        except InputError as error:
            say(f"{who}: {error}", error=True)
            raise SystemExit(2) from error
