"""Build the embedded pair, or one of its relatives, from Python sources.

    python -m pipelines.pair tiny|tiny-small|tiny-qwen [--stage NAME]

A finished stage is skipped, a stopped one resumes. Intermediate state is in build/PAIR; delete a stage's file there to
make the stage again.
"""

from enum import StrEnum
from typing import Annotated

import torch
import typer

from pipelines import terminal
from pipelines.pair.build import STAGES, build, stages_of
from pipelines.pair.recipes import PAIRS

Stage = StrEnum("Stage", {name: name for name in (*STAGES, "all")})
Name = StrEnum("Name", {name: name for name in PAIRS})

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)


@app.command(help=__doc__)
def main(
    pair: Annotated[Name, typer.Argument(help="Which one.")],
    stage: Annotated[Stage, typer.Option(help="One stage, or all that are not finished.")] = Stage["all"],
    minutes: Annotated[float | None, typer.Option(help="Time limit of each training; schedules fit into it.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
) -> None:
    if threads:
        torch.set_num_threads(threads)
    recipe = PAIRS[pair.value]
    build(recipe, stages_of(recipe) if stage == "all" else [stage.value], minutes)


if __name__ == "__main__":
    with terminal.errors_in_one_line("pipelines.pair"):
        app()
