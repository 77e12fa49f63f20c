"""Make the papers' tables and figures again on a pair, with the papers' numbers beside ours.

    python -m pipelines.papers table1 figure4 eagle2-table3 --pair NAME --limit N --out FILE

Names say the paper: `table1` and `figure4` are C2T's (`c2t-table1` is the same), `eagle2-`, `entropytree-`,
`mcsd-plus-` and `dyspec-` stand before the others'. Without a name: the list of reports.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from c2t.stopping import Stopped
from c2t.storage.results import check_place
from pipelines import options as o
from pipelines import terminal
from pipelines.papers import study
from pipelines.papers.report import show
from pipelines.papers.reports import TOPICS, known, make, make_by_actors

Names = Annotated[list[str] | None, typer.Argument(help="Reports to make; none: list them.", metavar="REPORT")]
HarvestPrompts = Annotated[list[Path] | None, typer.Option(help="Prompt file of the harvest; repeat it for more.")]
HarvestLimit = Annotated[int | None, typer.Option(help="Prompts of the harvest.", show_default=o.OF_REPORT)]
HarvestTokens = Annotated[
    int | None, typer.Option(help="New tokens of each text of the harvest.", show_default=o.OF_REPORT)
]
Training = Annotated[
    Literal["paper", "committed"],
    typer.Option(help="Settings of classifiers: r = 1 and lr 0.001 (the paper's), or r = 20 and lr 0.01."),
]
Same = Annotated[str, typer.Option(help="Pair of the same family (table2), or to fine-tune on (figure7).")]
SameDraft = Annotated[str | None, typer.Option(help="Draft of that pair (figure7).", show_default="eagle")]
Other = Annotated[str, typer.Option(help="Pair of another family (table2).")]
Build = Annotated[bool, typer.Option("--build/--no-build", help="Build missing pairs, or leave them out.")]
Ray = Annotated[
    str | None,
    typer.Option(help="Make reports by Ray actors in the cluster at this address; local: by several processes here."),
]
Workers = Annotated[int, typer.Option(help="Number of Ray actors, each of which makes one report at a time.")]
Out = Annotated[Path | None, typer.Option(help="File to append result lines (JSON) to; figures go beside it.")]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help=__doc__)
def main(
    reports: Names = None,
    pair: o.PairName = "tiny",
    draft: o.Draft = None,
    temperature: o.Temperature = None,
    limit: o.Limit = None,
    max_new_tokens: o.MaxNewTokens = None,
    prompts: o.Prompts = None,
    harvest_prompts: HarvestPrompts = None,
    harvest_limit: HarvestLimit = None,
    harvest_tokens: HarvestTokens = None,
    training: Training = "paper",
    same: Same = study.Settings.same,
    same_draft: SameDraft = None,
    other: Other = study.Settings.other,
    build: Build = True,
    seed: o.Seed = 0,
    device: o.Device = None,
    dtype: o.Dtype = None,
    ray: Ray = None,
    workers: Workers = 2,
    out: Out = None,
) -> None:
    if not reports:
        for topic in TOPICS:
            terminal.say("\n" + topic.__doc__.partition("\n\n")[0])
            for name, report in topic.REPORTS.items():
                terminal.say(f"  {name:20} {report.about}")
        return
    given = {
        **{"pair": pair, "draft": draft, "temperature": temperature, "limit": limit, "max_new_tokens": max_new_tokens},
        **{"prompts": tuple(prompts or ()), "harvest_prompts": tuple(harvest_prompts or ())},
        **{"harvest_limit": harvest_limit, "harvest_tokens": harvest_tokens, "training": training, "seed": seed},
        **{"same": same, "same_draft": same_draft, "other": other, "build": build, "device": device, "dtype": dtype},
    }
    with terminal.errors_in_one_line("pipelines.papers"):
        chosen = [known(name) for name in reports]
        if out:
            check_place(out)
        said = {option: value for option, value in given.items() if value is not None}
        made = make(chosen, said) if ray is None else make_by_actors(chosen, said, ray, workers)
        for number, name in enumerate(chosen):
            try:
                show(name, next(made), out)
            except Stopped as stopped:
                rest = (
                    f"go on with {' '.join(chosen[number:])} and the same options; what was harvested is not made again"
                )
                stopped.add_note(
                    f"{number} of {len(chosen)} reports are made{f' and safe in {out}' if out else ''}; {rest}"
                )
                raise


if __name__ == "__main__":
    app()
