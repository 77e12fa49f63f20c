"""Commands that study policies: sweep, plot."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from c2t.cli import options as o
from c2t.cli import reports, shared, terminal
from c2t.errors import InputError
from c2t.output.progress import progress_bar
from c2t.policies.spec import split
from c2t.replay.prompts import default_prompts
from c2t.storage import paths as checkpoints
from c2t.storage.results import check_place
from c2t.study import acceptance
from c2t.study import pareto as fronts
from c2t.study import sweep as sweeping
from c2t.study.points import Condition, Point, latest, read_points

SWEEP = sweeping.SweepSettings()
Taus = Annotated[
    str | None,
    typer.Option(
        help="Compare at these values of tau (drafted tokens accepted per round, which is acceptance length - 1), "
        "separated by commas.",
        show_default="up to 5 round values that c2t and a rival both reach",
    ),
]


@o.with_models
def sweep(
    models: o.Models,
    grid: Annotated[
        str,
        typer.Option(
            help="Policies with alternatives: c2t:beta=0.1|0.3,eagle2:N=26|60,levels=4|6 runs c2t with 2 settings and "
            "eagle2 with 4.",
            show_default="c2t, threshold, eagle2 and others at many sizes",
        ),
    ] = sweeping.DEFAULT_GRID,
    oracle: Annotated[
        bool,
        typer.Option(
            "--oracle",
            help="Also run trees that know the target's probabilities: the limit that no policy can pass (slow).",
        ),
    ] = False,
    classifier: o.Classifier = None,
    prompts: o.Prompts = None,
    limit: o.Limit = SWEEP.limit,
    max_new_tokens: o.MaxNewTokens = SWEEP.max_new_tokens,
    temperature: o.Temperature = SWEEP.temperature,
    seed: o.Seed = SWEEP.seed,
    rule: o.Rule = SWEEP.rule,
    taus: Taus = None,
    out: Annotated[
        Path | None,
        o.file_out("Add the results to this JSONL file, and write the figure next to it.", "data/sweep/PAIR.jsonl"),
    ] = None,
    ray: o.Ray = None,
    workers: o.Workers = None,
    json: o.Json = None,
) -> None:
    """Compare policies at many settings: how many tokens does each verify for the same tau?

    The figure shows tau (drafted tokens accepted a round) against gamma (tokens verified a round).

    Finished settings stay in --out and are not run again; delete the file when the code has changed.
    """
    from c2t.study import plots  # noqa: F401, PLC0415 - needs an extra, and says so before the work

    settings = sweeping.SweepSettings(
        max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, limit=limit, rule=rule
    )
    wanted = _taus(taus)
    if out:
        check_place(out)
        shared.check_figure("--out", out.with_suffix(".png"))
    shared.read(prompts or [])  # what is wrong with them is said before models are loaded
    loaded = shared.load(models, specs=sweeping.expand(grid))
    # The same arithmetic on Ray's machines, whose processors may differ.
    make = partial(shared.load, models._replace(dtype=loaded.dtype))
    loaded = loaded if ray is None else make()
    files = prompts or default_prompts(loaded.name, "bench")
    rates = acceptance.lookup(loaded, temperature, rule)
    if grid == sweeping.DEFAULT_GRID:
        grid = ",".join(shared.available(loaded, classifier, split(grid)))
    network = shared.Classifier(loaded.classifier, classifier, loaded.target.device)
    candidates = sweeping.candidates(grid, network, rates, shared.costs(loaded))
    network.check()
    candidates += sweeping.oracles() if oracle else []
    file = out or checkpoints.root() / "data" / "sweep" / f"{loaded.name}.jsonl"
    others = [file.with_suffix(".png"), *([Path(json)] if json else [])]
    if file.resolve() in [other.resolve() for other in others]:
        raise InputError(f"--out {file} is for the points: it cannot be the figure (.png) or --json's file too")
    with (
        shared.pool(ray, workers, make, loaded.target.device.type) as actors,
        progress_bar("sweep", "prompts") as report,
    ):
        result = sweeping.sweep(loaded, candidates, shared.read(files), settings, file, report, actors)
    _report(result, file, wanted, json, {"grid": grid, "oracle": oracle})


def plot(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Files that c2t sweep wrote.",
            show_default=f"data/sweep/{checkpoints.DEFAULT_PAIR}.jsonl",
            parser=o.a_path,
            metavar="FILES",
        ),
    ] = None,
    taus: Taus = None,
    out: Annotated[
        Path | None,
        o.file_out("Write the figure to this PNG file.", "the file's name with .png; of several files plot.png"),
    ] = None,
    json: o.Json = None,
) -> None:
    """Plot the results of sweeps again, and compare the policies at equal acceptance length.

    Results of other prompts, models or temperatures get their own panel.
    """
    from c2t.study import plots  # noqa: PLC0415 - needs an extra

    wanted = _taus(taus)
    paths = files or [checkpoints.root() / "data" / "sweep" / f"{checkpoints.DEFAULT_PAIR}.jsonl"]
    if not files and not paths[0].is_file():
        raise InputError(f"{paths[0]} is missing: make it with c2t sweep, or name a file")
    conditions: dict[Condition, list[Point]] = {}
    for path in paths:
        for condition, points in read_points(path).items():
            conditions.setdefault(condition, []).extend(latest(points))
    if not conditions:
        raise InputError(f"{paths[0]} holds no points of a sweep: make them with c2t sweep --out FILE")
    default = paths[0].with_suffix(".png") if len(paths) == 1 else paths[0].with_name("plot.png")
    file, stored = out or default, [path.resolve() for path in paths]
    if file.resolve() in stored:
        raise InputError(f"--out {file} is a file of points: give another name to the figure")
    if json and Path(json).resolve() in [*stored, file.resolve()]:
        raise InputError(f"--json {json} is a file of points, or the figure: give another name to the result")
    shared.check_figure("--out", file)
    figure = plots.plot_fronts(conditions, file)
    comparisons = [_compare(condition, points, wanted) for condition, points in conditions.items()]
    terminal.say(f"figure: {figure}")
    compared = [comparison and reports.comparison_figures(comparison) for comparison in comparisons]
    settings = {"files": paths, "conditions": list(map(asdict, conditions))}
    terminal.result(json, "plot", {"comparisons": compared, "figure": str(figure)}, settings)


def _report(
    result: sweeping.Sweep, file: Path, wanted: list[float] | None, json: str | None, grid: dict[str, str | bool]
) -> None:
    """Figure, tables and result line of a sweep."""
    from c2t.study import plots  # noqa: PLC0415 - needs an extra

    figure = plots.plot_fronts({result.condition: result.points}, file.with_suffix(".png"))
    terminal.table(*reports.points_table(result.points))
    comparison = _compare(result.condition, result.points, wanted)
    terminal.say(reports.sweep_remarks(result))
    terminal.say(f"points: {file}\nfigure: {figure}")
    figures = {
        "comparison": comparison and reports.comparison_figures(comparison),
        "points": len(result.points),
        "figure": str(figure),
    }
    terminal.result(json, "sweep", figures, {**asdict(result.condition), **grid})


def _taus(text: str | None) -> list[float] | None:
    """Read the numbers in an option; InputError for anything else."""
    if text is None:
        return None
    try:
        taus = [float(tau) for tau in text.split(",")]
    except ValueError:
        taus = []
    if not taus or not all(0 <= tau < float("inf") for tau in taus):
        raise InputError(f"--taus {text}: give numbers separated by commas, as in 0.5,0.75,1")
    return taus


def _compare(condition: Condition, points: list[Point], taus: list[float] | None) -> fronts.Comparison | None:
    """Show gamma at equal acceptance length, if there is C2T and something to compare it with."""
    names = fronts.families(points)
    if fronts.SUBJECT not in names or len(names) == 1:
        terminal.say(f"{condition.title}: nothing to compare: run a grid with {fronts.SUBJECT} and another policy")
        return None
    comparison = fronts.compare(points, taus=taus)
    terminal.table(*reports.comparison_table(condition, comparison))
    terminal.say(reports.headline(comparison))
    return comparison
