"""A command line of some commands; it imports none of them."""

from collections.abc import Callable

import typer

from c2t.cli import terminal
from c2t.cli.help import Command
from c2t.cli.overview import HELP, PANELS, main


def program(*commands: Callable[..., None]) -> typer.Typer:
    """Return the command line that has these commands."""
    made = typer.Typer(cls=terminal.Commands, no_args_is_help=True, rich_markup_mode=None, help=HELP)
    made.callback()(main)
    for command in commands:
        made.command(cls=Command, rich_help_panel=PANELS[command.__name__.replace("_", "-")])(command)
    return made
