"""The list of commands, which `c2t --help` shows without what the commands import: that takes seconds."""

from typing import Annotated

import typer

from c2t import __version__
from c2t.cli.help import CommandGroup

HELP = """Lossless tree speculative decoding: C2T and the constructions of four other papers.

A draft model guesses a tree of next tokens, a threshold or a classifier prunes it,
and the target model verifies it in one forward. The text stays the target's own.

To decode faster: tune, then generate --tuned, or serve.
To study trees, in this order: harvest, train, generate, bench.
Each runs without arguments, on the pair of models that comes with c2t.
c2t COMMAND --help lists the options of a command.
"""
# Panel -> command -> the first paragraph of its help.
LISTED = {
    "Make a classifier": {
        "harvest": "Record drafted tokens and whether the target accepts them: the rows that a classifier learns from.",
        "train": "Train a classifier on the rows of harvests; no language model is loaded.",
        "finetune": "Adapt a trained classifier to the rows of other harvests.",
    },
    "Decode": {
        "generate": "Answer or continue a prompt, and show how fast that was.",
        "serve": "Serve completions and chat by OpenAI's API, until Ctrl-C.",
        "view": "Decode a prompt and show each round's tree: drafted, pruned, verified and accepted tokens.",
        "bench": "Compare policies on a set of prompts: acceptance length, gamma, draft passes and speed.",
        "tune": "Find the fastest policy on this machine; generate --tuned and bench --tuned use it.",
        "export-hub": "Write a folder for the Hub, with which transformers' generate decodes by trees.",
    },
    "Compare and inspect": {
        "sweep": "Compare policies at many settings: how many tokens does each verify for the same tau?",
        "plot": "Plot the results of sweeps again, and compare the policies at equal acceptance length.",
        "info": "Describe a pair, a classifier or a harvest.",
        "parity": "Say whether a tree's logits are plain decoding's bit for bit, and which modules differ.",
        "policies": "List the ways to build trees, with their settings.",
        "drafts": "List the names that drafts and pairs have.",
    },
    "Make a head": {
        "draft": "Train a draft head for a model of your own: c2t draft train.",
    },
}
PANELS = {name: panel for panel, commands in LISTED.items() for name in commands}


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"c2t {__version__}")
        raise typer.Exit
    return wanted


def main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None: ...


def overview() -> typer.Typer:
    """Return a command line that knows its commands by name only."""
    listed = typer.Typer(cls=CommandGroup, no_args_is_help=True, rich_markup_mode=None, help=HELP)
    listed.callback()(main)
    for panel, commands in LISTED.items():
        for name, summary in commands.items():
            listed.command(name, help=summary, rich_help_panel=panel)(lambda: None)
    return listed
