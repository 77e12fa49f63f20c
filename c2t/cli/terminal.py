"""Commands on a terminal: wrong input in one line on stderr, results as JSON; `say`, `table` and `facts` are those of
`c2t.output.tables`."""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from c2t.cli.help import CommandGroup
from c2t.errors import InputError, installed_by, one_line, plain
from c2t.output.tables import facts, say, table
from c2t.storage.results import append_line, result_line

# Packages that only some commands import, and the extra of c2t that brings them.
EXTRAS = {"lightning": "train", "pyarrow": "train", "sklearn": "train", "matplotlib": "study", "scipy": "study"}
EXTRAS |= {"tensorboard": "loggers", "wandb": "loggers", "accelerate": "hub", "ray": "ray"}
EXTRAS |= dict.fromkeys(("fastapi", "prometheus_client", "starlette", "uvicorn"), "serve")
if TYPE_CHECKING:
    Context = typer.Context
else:
    Context = typer.Context.__bases__[0]  # the class of what a command gets; for Typer itself its subclass would do
UsageError: Any = typer.BadParameter.__bases__[0]  # click's, or that of the copy that newer Typer brings along
__all__ = ["Commands", "Context", "facts", "given", "refuse", "result", "say", "table"]


class Commands(CommandGroup):
    """A group of commands in which wrong input ends with one line on stderr and exit code 2."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        if not args:  # which asks for help, and Typer raises that as a usage error
            return super().make_context(info_name, args, *more, **extra)
        with _in_one_line():
            return super().make_context(info_name, args, *more, **extra)

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings(), _in_one_line():
            warnings.showwarning = lambda message, *_args, **_kwargs: say(f"warning: {plain(str(message))}", error=True)
            try:
                return super().invoke(ctx)
            except ModuleNotFoundError as error:
                package = (error.name or "").partition(".")[0]
                extra = EXTRAS.get(package)
                if extra is None:
                    raise
                command = f"c2t {ctx.invoked_subcommand}"
                raise InputError(f"{command} needs {package}: {installed_by(extra)}") from error
            except BrokenPipeError:  # the reader of the output has closed it
                raise
            except OSError as error:  # of a file system: full, read-only, gone
                where = "" if error.filename is None else f"{error.filename}: "
                line = "; ".join([one_line(error), *getattr(error, "__notes__", [])])  # which say what is safe
                raise InputError(f"{where}{line}") from error


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


def given(context: Context) -> list[str]:
    """Return the names of the options that stand on the command line."""
    return [name for name in context.params if context.get_parameter_source(name).name == "COMMANDLINE"]


def refuse(context: Context, option: str, others: Collection[str], line: str) -> None:
    """Raise InputError if an option is given together with one of others; the line names that one at {}."""
    names = given(context)
    for other in others if option in names else ():
        if other in names:
            raise InputError(line.format(other))


def result(path: str | None, command: str, figures: Mapping[str, Any], configuration: Mapping[str, Any]) -> None:
    """Write the result line, to a file or ("-") as the last line of stdout."""
    if path is None:
        return
    line = result_line(command, dict(figures), dict(configuration))
    if path == "-":
        typer.echo(line)
    else:
        append_line(Path(path), line)
