"""Help that fits a screen: options in groups, each with its text next to it. It imports nothing that takes time."""

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

LEFT, COMMAND = 22, 10  # columns of the names of options and of commands; after longer ones a line begins
OWN = "Options"  # the group of options that no other command has
# Typer's names of types, of this version and of older ones, and what is shown.
TYPES = {"<int>": "N", "<int range>": "N", "<float>": "X", "<str>": "TEXT", "INTEGER": "N", "FLOAT": "X"}


class Command(TyperCommand):
    """A command whose help lists its options by their groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options, the command's own first."""
        _write(formatter, _options(self, ctx))


class CommandGroup(TyperGroup):
    """A group of commands whose help lists them by their groups, each with the first paragraph of its own help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, then the commands."""
        commands = [(_panel(command), name, command.help) for name, command in self.commands.items()]
        summaries = [(group or "Commands", name, text.partition("\n\n")[0]) for group, name, text in commands]
        _write(formatter, _options(self, ctx))
        _write(formatter, summaries, COMMAND)


def _options(command: Any, ctx: Any) -> list[tuple[str, str, str]]:
    """Return the group, the names and the text of each option."""
    options = []
    for option in command.get_params(ctx):
        if (record := option.get_help_record(ctx)) is None:
            continue
        names, text = record
        for other in [name for name in option.opts if name.startswith("--")][1:]:  # another name is for old scripts
            names = names.replace(f", {other}", "")
        for kind, shown in TYPES.items():
            names = names.removesuffix(kind) + shown * names.endswith(kind)
        names = names.partition(" ")[0] if option.param_type_name == "argument" else names
        text = re.sub(r"; (x>=|0<=x<=)\d+\]$", "]", text)  # what a wrong value is answered with
        text = re.sub(r"  \[(default: )?\(?(.*?)\)?\]$", r" [\1\2]", text)  # Typer puts words in parentheses, too
        options.append((_panel(option) or OWN, names, text))
    return options


def _panel(part: Any) -> str | None:
    panel = getattr(part, "rich_help_panel", None)
    return panel if isinstance(panel, str) else None  # Typer's stand-in for a default is none


def _write(formatter: Any, entries: list[tuple[str, str, str]], left: int = LEFT) -> None:
    """Write the groups of entries, each with its names on the left, in so many columns."""
    for group in sorted(dict.fromkeys(group for group, _, _ in entries), key=lambda group: group != OWN):
        with formatter.section(group):
            formatter.write_dl([(name.ljust(left), text) for at, name, text in entries if at == group], col_max=left)
