"""Options that several pipelines share. None stands for the default of the report."""

from typing import Annotated, Literal

import typer

from c2t.models.loading.names import parts

OF_REPORT = "the report's own"

PairName = Annotated[str, typer.Option(help="NAME of a pair.")]
Draft = Annotated[
    str | None,
    typer.Option(help=f"Folder or Hub id of a draft, or the pair's own: {', '.join(parts())}.", show_default=OF_REPORT),
]
Temperature = Annotated[
    float | None, typer.Option(help="Temperature of the target; 0 is greedy.", show_default=OF_REPORT)
]
Limit = Annotated[
    int | None, typer.Option(help="Prompts to use, from all files and categories alike.", show_default=OF_REPORT)
]
MaxNewTokens = Annotated[int | None, typer.Option(help="New tokens of each text.", show_default=OF_REPORT)]
Seed = Annotated[int, typer.Option(help="Seed for sampling, also by the draft.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, ...", show_default="cuda if there is one")]
Dtype = Annotated[
    Literal["float64", "float32", "bfloat16", "float16"] | None,
    typer.Option(help="Type of the weights.", show_default="the checkpoint's; on a CPU see c2t info"),
]
