"""Options that several commands share; their defaults stand in the settings that they fill."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from c2t.harvest.extra_columns import COLUMNS
from c2t.models.pairs import DRAFTS, NGRAMS
from c2t.storage.results import check_place
from c2t.training.settings import LOGGERS


def _before_the_work(path: str | None) -> str | None:
    """A place that cannot hold the results is refused before they are made."""
    if path not in (None, "-"):
        check_place(Path(path))
    return path


PairName = Annotated[str | None, typer.Option("--pair", help="NAME of a pair.", show_default="tiny")]
Target = Annotated[str | None, typer.Option(help="Folder or Hub id of a target, instead of a pair's.")]
Draft = Annotated[
    str | None,
    typer.Option(
        help=f"Folder or Hub id of a draft, or a pair's own: {', '.join(DRAFTS)}; with {NGRAMS} behind it (or "
        f"{NGRAMS}=WEIGHT) it is mixed with what followed the same tokens earlier in the text."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, ...", show_default="cuda if there is one")]
Dtype = Annotated[
    Literal["float64", "float32", "bfloat16", "float16"] | None,
    typer.Option(help="Of target and draft.", show_default="float32 on a CPU, else the checkpoint's"),
]
DeviceMap = Annotated[str | None, typer.Option(help="Spread the target over devices, as transformers does: auto.")]

Prompts = Annotated[list[Path] | None, typer.Option(help="Prompt file (JSONL); repeat it for more.")]
Limit = Annotated[int | None, typer.Option(help="Prompts to use, from all files and categories alike.")]
MaxNewTokens = Annotated[int, typer.Option(help="New tokens of each text.")]
Temperature = Annotated[float, typer.Option(help="Of the target; 0 is greedy.")]
Rule = Annotated[
    Literal["residual", "target-only"] | None,
    typer.Option(
        help="Of policies that sample their candidates; ranked ones have the second.", show_default="residual"
    ),
]
Seed = Annotated[int, typer.Option(help="Of what is random.")]
Live = Annotated[bool, typer.Option("--live", help="Run the target on every tree instead of replaying its text.")]
Classifier = Annotated[str | None, typer.Option(help="NAME, folder or Hub id.", show_default="the pair's own")]

Trees = Annotated[
    str, typer.Option(help="eagle2, or mcsd+: K forks of the target's tokens and levels - 1 drafted ones.")
]
Positions = Annotated[str, typer.Option(help="Trees at the visited positions of a live run, or at all of the text.")]
Columns = Annotated[str, typer.Option(help=f"Further columns, by commas: {', '.join(COLUMNS)}.")]

Data = Annotated[list[str] | None, typer.Argument(help="Harvests: folders, or names of pairs.", show_default="tiny")]
Epochs = Annotated[int, typer.Option(help="Passes over the data; longer ones where it is too small for 2000 steps.")]
BatchSize = Annotated[int, typer.Option(help="Nodes per optimiser step.")]
LearningRate = Annotated[float, typer.Option(help="Adam's.")]
Fraction = Annotated[float, typer.Option(help="Share of the training prompts that is used.")]
Logger = Annotated[str, typer.Option(help=f"One of {', '.join(LOGGERS)}.")]

Out = Annotated[Path | None, typer.Option(help="Folder to write.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what stands in the folder.")]
Json = Annotated[
    str | None, typer.Option(help="File to append a line of results to; - prints it last.", callback=_before_the_work)
]
