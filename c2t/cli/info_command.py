"""The command info: facts about what is on this machine, and a check of a draft."""

from typing import Annotated

import typer

from c2t.cli import info as information
from c2t.cli import options as o
from c2t.cli import shared, terminal
from c2t.errors import InputError
from c2t.storage.paths import DEFAULT_PAIR
from c2t.study.first_guess import first_guess
from c2t.verification.prompts import encode


@o.with_models
def info(
    models: o.Models,
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a pair, or folder or Hub id of a pair's part, a classifier or a harvest.",
            parser=o.a_name,
            metavar="NAME",
            show_default=DEFAULT_PAIR,
        ),
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(
            help="Decode 64 tokens after a prompt instead, and say how often the draft's first guess was right.",
            metavar="PROMPT",
        ),
    ] = None,
) -> None:
    """Describe a pair, a classifier or a harvest."""
    if check is None:
        if typed := shared.typed(models):
            raise InputError(
                f"{typed.split()[0]} is for --check PROMPT, which loads models; c2t info FOLDER describes a draft alone"
            )
        shared.show(information.info(DEFAULT_PAIR if name is None else name))
        return
    if name is not None and models.pair is not None:
        raise InputError("NAME and --model both say which model to check: give one of them")
    pair = shared.load(models if name is None else models._replace(pair=name))
    (ids,) = encode(pair, [check])
    terminal.say(first_guess(pair, ids).line)
