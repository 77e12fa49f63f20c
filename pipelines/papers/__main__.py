"""Make the papers' tables and figures again on a pair, with the papers' numbers next to ours.

    python -m pipelines.papers table1 figure4 eagle2-table3 --pair NAME --limit N --out FILE
    python -m pipelines.papers all --pair smollm2 --data FOLDER --limit 40 --temperature 0 --out FILE

`all` stands for all that the pair allows. A report that FILE has with the same settings is not made again, so a stopped
command can be resumed. `table1` and `figure4` are C2T's, `eagle2-` stands before EAGLE-2's. Without a name: the list of
reports.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from c2t.errors import InputError
from c2t.output.signals import Stopped
from c2t.storage.results import check_place
from pipelines import options as o
from pipelines import terminal
from pipelines.papers.report import made_before, show
from pipelines.papers.reports import TOPICS, chosen, make, make_by_actors

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
Same = Annotated[
    str | None,
    typer.Option(help="Pair of the same family (table2), or to fine-tune on (figure7).", show_default="tiny-small"),
]
SameDraft = Annotated[str | None, typer.Option(help="Draft of that pair (figure7).", show_default="eagle")]
Other = Annotated[str | None, typer.Option(help="Pair of another family (table2).", show_default="tiny-qwen")]
Ray = Annotated[
    str | None,
    typer.Option(help="Make reports by Ray actors in the cluster at this address; local: by several processes here."),
]
Workers = Annotated[int, typer.Option(help="Number of Ray actors, each of which makes one report at a time.")]
Data = Annotated[Path | None, typer.Option(help="Folder of data sets, each NAME/question.jsonl as EAGLE has them.")]
Out = Annotated[Path | None, typer.Option(help="File to append result lines (JSON) to.")]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help=__doc__)
def main(
    reports: Names = None,
    pair: o.PairName = "tiny",
    draft: o.Draft = None,
    temperature: o.Temperature = None,
    limit: o.Limit = None,
    max_new_tokens: o.MaxNewTokens = None,
    data: Data = None,
    harvest_prompts: HarvestPrompts = None,
    harvest_limit: HarvestLimit = None,
    harvest_tokens: HarvestTokens = None,
    training: Training = "paper",
    same: Same = None,
    same_draft: SameDraft = None,
    other: Other = None,
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
    with terminal.errors_in_one_line("pipelines.papers"):
        names = chosen(reports, pair)
        given = {
            **{"pair": pair, "draft": draft, "temperature": temperature, "limit": limit},
            **{"max_new_tokens": max_new_tokens, "prompts": files(data), "seed": seed},
            **{"harvest_prompts": tuple(harvest_prompts or ()), "harvest_limit": harvest_limit},
            **{"harvest_tokens": harvest_tokens, "training": training, "device": device, "dtype": dtype},
            **{"same": same, "same_draft": same_draft, "other": other},
        }
        if out:
            check_place(out)
        chosen_settings = {option: value for option, value in given.items() if value is not None}
        done = made_before(out) if out else {}
        wanted = names, chosen_settings, done
        made = make(*wanted) if ray is None else make_by_actors(*wanted, ray, workers)
        for number, name in enumerate(names):
            try:
                report_made = next(made)
                if report_made is None:
                    terminal.say(f"{name}: made before, in {out}")
                else:
                    show(name, report_made, out)
            except Stopped as stopped:
                stopped.add_note(
                    f"{number} of {len(names)} reports are made{f' and safe in {out}' if out else ''}; go on with the "
                    "same command; what was harvested is not made again"
                )
                raise


def files(folder: Path | None) -> tuple[Path, ...]:
    """Return the prompt files of a folder of data sets, none without one; InputError for a folder without any."""
    paths = tuple(sorted(folder.glob("*/question.jsonl"))) if folder else ()
    if folder and not paths:
        raise InputError(f"{folder} holds no data sets: give a folder with NAME/question.jsonl")
    return paths


if __name__ == "__main__":
    app()
