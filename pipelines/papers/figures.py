"""What the scripts that reproduce the papers' figures share: options, and showing a figure with the numbers behind it
and what they say of the paper's conclusions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import typer
from matplotlib.figure import Figure

from c2t.cli import terminal
from c2t.errors import InputError
from c2t.records.schema import Harvest
from c2t.storage.provenance import hardware
from pipelines.papers import command, drawing
from pipelines.papers import study as paper
from pipelines.papers.study import Study
from pipelines.papers.verdicts import FAILS, HOLDS, OPEN, Conclusion, Estimate

FIGURES = Path("build/figures")
Out = Annotated[Path, typer.Option(help="Folder of the PNG.")]


class Shown(NamedTuple):
    """A figure, the numbers behind it as a table, and what they say of the paper's conclusions. numbers: further ones,
    for the result line only."""

    title: str
    figure: Figure
    columns: Sequence[str]
    rows: list[list[Any]]
    conclusions: list[Conclusion]
    notes: Sequence[str] = ()
    numbers: Mapping[str, Any] = MappingProxyType({})


def fact(statement: str, holds: bool | None, comparison: str) -> Conclusion:
    """A conclusion from figures without a sampling error of their own: of one network, or of clocks. None: there is too
    little to compare."""
    return Conclusion(statement, OPEN if holds is None else HOLDS if holds else FAILS, comparison)


def rounds_of(harvest: Harvest) -> str:
    """What a figure's rows come from."""
    return f"{harvest.trees:,} rounds of {len(harvest.prompts)} harvested texts, {harvest.rows:,} nodes"


def about(mean: float, error: float) -> Estimate:
    """A mean of independent values with its standard error."""
    return Estimate(mean, mean - 1.96 * error, mean + 1.96 * error)


def show(name: str, shown: Shown, study: Study, out: Path, json: str | None) -> None:
    """Write the PNG, print table and conclusions, and append the result line to `json`."""
    path = drawing.save(shown.figure, out / f"{name}.png")
    rows = [[None if value != value else value for value in row] for row in shown.rows]  # NaN is where nothing was
    terminal.table(f"{shown.title}\n{study.title}", shown.columns, rows)
    for note in shown.notes:
        terminal.say(note)
    terminal.say("")
    for conclusion in shown.conclusions:
        terminal.say(f"{conclusion.statement}: {conclusion.verdict.upper()} on this pair\n    {conclusion.comparison}")
    terminal.say(f"figure: {path} ({hardware()})")
    conclusions = [conclusion._asdict() for conclusion in shown.conclusions]
    figures = {"columns": shown.columns, "rows": rows, "conclusions": conclusions, "notes": shown.notes}
    terminal.result(json, name, {**figures, **shown.numbers}, asdict(study.settings) | {"sources": study.pair.sources})


def script(name: str, build: Callable[[Study], Shown], **defaults: Any) -> None:
    """Run a figure's script: the common options on the command line, with other `defaults` where the figure needs
    them."""
    command.run(partial(run, name, build), build.__doc__, {"out": (Out, FIGURES)}, **defaults)


def run(
    name: str,
    build: Callable[[Study], Shown],
    out: Path,
    json: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    **chosen: Any,
) -> Shown:
    """Make a figure and show it; wrong input ends with one line and exit code 2."""
    try:
        study = paper.study(device, dtype, **chosen)
        shown = build(study)
        show(name, shown, study, out, json)
    except InputError as error:
        terminal.say(f"{name}: {error}", error=True)
        raise typer.Exit(2) from error
    return shown
