"""Build the embedded pair or one of its relatives from their corpus, or the heads of smollm2 from its own texts.

    python -m pipelines.pair tiny|tiny-small|tiny-qwen [--stage NAME]
    python -m pipelines.pair smollm2 --data FOLDER --minutes MINUTES --stage NAME

A finished stage is skipped, a stopped one resumes. Intermediate state is in build/PAIR; delete a stage's file there to
make the stage again.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer

from c2t.drafting.train import DraftSettings
from c2t.errors import InputError
from c2t.storage import paths
from pipelines import terminal
from pipelines.pair.build import STAGES, build, stages_of
from pipelines.pair.recipes import PAIRS
from pipelines.pair.smollm2 import build as smollm2

Stage = StrEnum("Stage", {name: name for name in dict.fromkeys([*STAGES, *smollm2.STAGES, "all"])})
Name = StrEnum("Name", {name: name for name in (*PAIRS, "smollm2")})
ONLY_SMOLLM2 = "smollm2 only: "

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)


@app.command(help=__doc__)
def main(
    pair: Annotated[Name, typer.Argument(help="Which one.")],
    stage: Annotated[Stage, typer.Option(help="One stage, or all that are not finished.")] = Stage["all"],
    minutes: Annotated[float | None, typer.Option(help="Time limit of each training; schedules fit into it.")] = None,
    data: Annotated[
        Path | None, typer.Option(help=f"{ONLY_SMOLLM2}folder of train/, mt_bench/, humaneval/ and gsm8k/.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help=f"{ONLY_SMOLLM2}folder of the pair.", show_default="checkpoints/smollm2")
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"] | None, typer.Option(help=f"{ONLY_SMOLLM2}where heads learn.", show_default="cpu")
    ] = None,
) -> None:
    stages = smollm2.STAGES if pair == "smollm2" else STAGES
    if stage not in (*stages, "all"):
        raise InputError(f"{pair.value} has no stage {stage.value}; it has {', '.join(stages)}")
    if pair == "smollm2":
        if device == "cuda" and not torch.cuda.is_available():
            raise InputError("no CUDA device is on this machine; --device cpu always works")
        folder, where = out or paths.root() / "checkpoints" / "smollm2", torch.device(device or "cpu")
        setup = smollm2.Setup(data, folder, where, minutes or DraftSettings().minutes)
        for name in stages if stage == "all" else [stage.value]:
            stages[name](setup)
        return
    if data or out or device:
        raise InputError(f"--data, --out and --device are for smollm2, not for {pair.value}")
    recipe = PAIRS[pair.value]
    build(recipe, stages_of(recipe) if stage == "all" else [stage.value], minutes)


if __name__ == "__main__":
    with terminal.errors_in_one_line("pipelines.pair"):
        app()
