"""Commands that study policies: sweep, plot."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from c2t.cli import options as o
from c2t.cli import reports, shared, terminal
from c2t.errors import InputError
from c2t.policies.spec import split
from c2t.progress import working
from c2t.prompts import default_prompts
from c2t.storage import paths as checkpoints
from c2t.study import acceptance
from c2t.study import pareto as fronts
from c2t.study import sweep as sweeping
from c2t.study.points import Condition, Point, read_points

SWEEP = sweeping.SweepSettings()
Taus = Annotated[
    str | None,
    typer.Option(
        help="Compare at these values of tau (drafted tokens accepted per round, which is acceptance length - 1), "
        "separated by commas.",
        show_default="up to 5 round values that c2t and a rival both reach",
    ),
]


def sweep(
    pair: o.PairName = None,
    target: o.Target = None,
    draft: o.Draft = None,
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
        typer.Option(
            help="Add the results to this JSONL file, and draw the figure beside it.",
            metavar="FILE",
            parser=o.a_path,
            show_default="data/sweep/PAIR.jsonl",
            rich_help_panel=o.OUTPUT_PANEL,
        ),
    ] = None,
    ray: o.Ray = None,
    workers: o.Workers = shared.WORKERS,
    device: o.Device = None,
    dtype: o.Dtype = None,
    device_map: o.DeviceMap = None,
    trust_remote_code: o.TrustRemoteCode = False,
    json: o.Json = None,
) -> None:
    """Compare policies at many settings: how many tokens does each verify for the same tau?

    The figure shows tau (drafted tokens accepted a round) against gamma (tokens verified a round).

    Finished settings are kept in --out and not run again; delete the file when the code has changed.
    """
    from c2t.study import plots  # noqa: F401, PLC0415 - needs an extra, and says so before the work

    settings = sweeping.SweepSettings(
        max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, limit=limit, rule=rule
    )
    wanted = _taus(taus)
    loaded = shared.load(pair, target, draft, device, dtype, device_map, trust_remote_code)
    # The same arithmetic on Ray's machines, whose processors may differ.
    make = partial(shared.load, pair, target, draft, device, loaded.dtype, device_map, trust_remote_code)
    loaded = loaded if ray is None else make()
    files = prompts or default_prompts(loaded.name, "bench")
    rates = acceptance.lookup(loaded, temperature, rule)
    if grid == sweeping.DEFAULT_GRID:
        grid = ",".join(shared.available(loaded, classifier, split(grid)))
    network = shared.Classifier(loaded.name, classifier, loaded.target.device)
    candidates = sweeping.candidates(grid, network, rates, shared.costs(loaded))
    network.check()
    candidates += sweeping.oracles() if oracle else []
    file = out or checkpoints.root() / "data" / "sweep" / f"{loaded.name}.jsonl"
    others = [file.with_suffix(".png"), *([Path(json)] if json else [])]
    if file.resolve() in [other.resolve() for other in others]:
        raise InputError(f"--out {file} is for the points: it cannot be the figure (.png) or --json's file too")
    with shared.pool(ray, workers, make, loaded.target.device.type) as actors, working("sweep", "prompts") as tell:
        found = sweeping.sweep(loaded, candidates, shared.read(files), settings, file, tell, actors)
    _report(found, file, wanted, json, {"grid": grid, "oracle": oracle})


def plot(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Files written by c2t sweep.",
            show_default=f"data/sweep/{checkpoints.DEFAULT_PAIR}.jsonl",
            parser=o.a_path,
            metavar="[FILES]...",
        ),
    ] = None,
    taus: Taus = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the figure to this PNG file.",
            metavar="FILE",
            parser=o.a_path,
            show_default="the file's name with .png; of several files plot.png",
            rich_help_panel=o.OUTPUT_PANEL,
        ),
    ] = None,
    json: o.Json = None,
) -> None:
    """Draw the results of sweeps again, and compare the policies at equal tau.

    Results of other prompts, models or temperatures get a panel of their own.
    """
    from c2t.study import plots  # noqa: PLC0415 - needs an extra

    wanted = _taus(taus)
    paths = files or [checkpoints.root() / "data" / "sweep" / f"{checkpoints.DEFAULT_PAIR}.jsonl"]
    if not files and not paths[0].is_file():
        raise InputError(f"{paths[0]} is missing: make it with c2t sweep, or name a file")
    conditions: dict[Condition, list[Point]] = {}
    for path in paths:
        for condition, points in read_points(path).items():
            conditions.setdefault(condition, []).extend(points)
    if not conditions:
        raise InputError(f"{paths[0]} holds no points of a sweep: make them with c2t sweep --out FILE")
    beside = paths[0].with_suffix(".png") if len(paths) == 1 else paths[0].with_name("plot.png")
    if (out or beside).resolve() in [path.resolve() for path in paths]:
        raise InputError(f"--out {out or beside} is a file of points: give another name to the figure")
    figure = plots.plot_fronts(conditions, out or beside)
    comparisons = [_compare(condition, points, wanted) for condition, points in conditions.items()]
    terminal.say(f"figure: {figure}")
    found = [comparison and reports.comparison_figures(comparison) for comparison in comparisons]
    settings = {"files": paths, "conditions": list(map(asdict, conditions))}
    terminal.result(json, "plot", {"comparisons": found, "figure": str(figure)}, settings)


def _report(
    found: sweeping.Sweep, file: Path, wanted: list[float] | None, json: str | None, grid: dict[str, str | bool]
) -> None:
    """Figure, tables and result line of a sweep."""
    from c2t.study import plots  # noqa: PLC0415 - needs an extra

    figure = plots.plot_fronts({found.condition: found.points}, file.with_suffix(".png"))
    terminal.table(*reports.points_table(found.points))
    comparison = _compare(found.condition, found.points, wanted)
    terminal.say(reports.sweep_remarks(found))
    terminal.say(f"points: {file}\nfigure: {figure}")
    figures = {
        "comparison": comparison and reports.comparison_figures(comparison),
        "points": len(found.points),
        "figure": str(figure),
    }
    terminal.result(json, "sweep", figures, {**asdict(found.condition), **grid})


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
    """Show gamma at equal tau, if there is C2T and something to compare it with."""
    names = fronts.families(points)
    if fronts.SUBJECT not in names or len(names) == 1:
        terminal.say(f"{condition.title}: nothing to compare: run a grid with {fronts.SUBJECT} and another policy")
        return None
    comparison = fronts.compare(points, taus=taus)
    terminal.table(*reports.comparison_table(condition, comparison))
    terminal.say(reports.headline(comparison))
    return comparison
