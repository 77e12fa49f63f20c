"""The command line: options become settings, the library does the work, a table says what came out."""

from collections.abc import Callable

import typer

from c2t.cli import terminal
from c2t.cli.catalog import drafts, policies
from c2t.cli.data import finetune, harvest, train
from c2t.cli.decode import bench, generate, info
from c2t.cli.draft import app as draft
from c2t.cli.export import export_hub
from c2t.cli.help import Command
from c2t.cli.overview import HELP, LISTED, main
from c2t.cli.serve import serve
from c2t.cli.study import plot, sweep
from c2t.cli.tune import tune
from c2t.cli.view import view

COMMANDS: tuple[Callable[..., None], ...] = (
    *(harvest, train, finetune),
    *(generate, serve, view, bench, tune, export_hub),
    *(sweep, plot, info, policies, drafts),
)
PANELS = {name: panel for panel, commands in LISTED.items() for name in commands}

app = typer.Typer(cls=terminal.Commands, no_args_is_help=True, rich_markup_mode=None, help=HELP)
app.callback()(main)
app.add_typer(draft, name="draft", rich_help_panel=PANELS["draft"])
for command in COMMANDS:
    app.command(cls=Command, rich_help_panel=PANELS[command.__name__.replace("_", "-")])(command)
