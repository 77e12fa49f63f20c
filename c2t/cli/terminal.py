"""Output of commands: tables and messages on stdout, progress bars and errors on stderr."""

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from transformers.utils import logging as transformers_logging
from typer.core import TyperGroup

from c2t.errors import InputError, one_line, plain
from c2t.storage.results import append_line, result_line

# Packages that only some commands import, and the extra of c2t that brings them.
EXTRAS = {"lightning": "train", "pyarrow": "train", "sklearn": "train", "matplotlib": "study", "scipy": "study"}
EXTRAS |= {"tensorboard": "loggers", "wandb": "loggers", "accelerate": "hub"}
UsageError: Any = typer.BadParameter.__bases__[0]  # click's, or that of the copy that newer Typer brings along
UNLIMITED = 100_000  # columns of a file or a pipe; a table takes what it needs of them


class Commands(TyperGroup):
    """A group of commands in which wrong input ends with one line on stderr and exit code 2."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        if not args:  # which asks for help, and Typer raises that as a usage error
            return super().make_context(info_name, args, *more, **extra)
        with _in_one_line():
            return super().make_context(info_name, args, *more, **extra)

    def invoke(self, ctx: Any) -> Any:
        transformers_logging.disable_progress_bar()
        with warnings.catch_warnings(), _in_one_line():
            warnings.showwarning = lambda message, *_args, **_kwargs: say(f"warning: {plain(str(message))}", error=True)
            try:
                return super().invoke(ctx)
            except ModuleNotFoundError as error:
                extra = EXTRAS.get((error.name or "").partition(".")[0])
                if extra is None:
                    raise
                command, package = f"c2t {ctx.invoked_subcommand}", f"c2t[{extra}]"
                raise InputError(f"{command} needs {package}: pip install '{package}'") from error
            except BrokenPipeError:  # whoever read the output has seen enough
                raise
            except OSError as error:  # of a file system: full, read-only, gone
                where = "" if error.filename is None else f"{error.filename}: "
                raise InputError(f"{where}{one_line(error)}") from error


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Wrong input and wrong usage of an option, without a traceback or a box."""
    try:
        yield
    except InputError as error:
        say(f"c2t: {error}", error=True)
        raise typer.Exit(2) from error
    except UsageError as error:
        help_of = f"; see {error.ctx.command_path} --help" if error.ctx else ""
        say(f"c2t: {plain(' '.join(error.format_message().split())).rstrip('.')}{help_of}", error=True)
        raise typer.Exit(2) from error


def say(text: str, error: bool = False) -> None:
    typer.echo("\n".join(map(plain, text.split("\n"))), err=error)


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
    console.print(Text(plain(title), style="table.title"))
    console.print(drawn)


def cell(value: Any) -> str:
    """Four significant digits, thousands apart; nothing for None; names as `plain` shows them."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return plain(", ".join(map(str, value)))
    return "" if value is None else plain(str(value))


def progress(what: str, *notes: str) -> Progress:
    """Make a bar on stderr if somebody looks at it; `notes` are templates over the task's fields. Bars read markup, so
    nothing of these may come from outside."""
    columns = [TextColumn(what), BarColumn(), MofNCompleteColumn(), *map(TextColumn, notes)]
    console = Console(stderr=True)
    return Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, disable=not console.is_terminal
    )


def watched() -> bool:
    """Return True if somebody looks at the output while it is made."""
    return Console().is_terminal


def result(path: str | None, command: str, figures: Mapping[str, Any], configuration: Mapping[str, Any]) -> None:
    """Write the result line, to a file or ("-") as the last line of stdout."""
    if path is None:
        return
    line = result_line(command, dict(figures), dict(configuration))
    if path == "-":
        typer.echo(line)
    else:
        append_line(Path(path), line)
