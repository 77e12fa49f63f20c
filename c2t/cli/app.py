"""The command line: options become settings, the library does the work, a table says what came out."""

from collections.abc import Callable
from typing import Annotated

import typer

from c2t import __version__
from c2t.cli import terminal
from c2t.cli.data import finetune, harvest, train
from c2t.cli.decode import bench, generate, info
from c2t.cli.export import export_hub
from c2t.cli.serve import serve
from c2t.cli.study import plot, sweep
from c2t.cli.tune import tune
from c2t.cli.view import view

HELP = """Speculative decoding with token trees that a small classifier shapes (C2T).

A draft model guesses a tree of next tokens, the classifier keeps those worth checking,
and the target model checks them in one forward. The text stays the target's own.

To decode faster: tune, then generate --tuned, or serve.
To study trees, in this order: harvest, train, generate, bench.
Each runs without arguments, on the pair of models that comes with c2t.
c2t COMMAND --help lists the options of a command.
"""
GROUPS: dict[str, tuple[Callable[..., None], ...]] = {
    "Make a classifier": (harvest, train, finetune),
    "Decode": (generate, serve, view, bench, tune, export_hub),
    "Compare and inspect": (sweep, plot, info),
}

app = typer.Typer(cls=terminal.Commands, no_args_is_help=True, help=HELP)


def _version(asked: bool) -> bool:
    if asked:
        terminal.say(f"c2t {__version__}")
        raise typer.Exit
    return asked


Version = Annotated[
    bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
]


@app.callback()
def main(version: Version = False) -> None: ...


for group, commands in GROUPS.items():
    for command in commands:
        app.command(rich_help_panel=group)(command)
