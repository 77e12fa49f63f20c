"""The command line: options become settings, the library does the work, a table says what came out."""

from typing import Annotated

import typer

from c2t import __version__
from c2t.cli import terminal
from c2t.cli.data import finetune, harvest, train
from c2t.cli.decode import bench, generate, info
from c2t.cli.study import plot, sweep
from c2t.cli.tune import tune

app = typer.Typer(cls=terminal.Commands, no_args_is_help=True, help="Token trees shaped by a learned classifier (C2T).")


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


for command in (harvest, train, finetune, generate, bench, tune, sweep, plot, info):
    app.command()(command)
