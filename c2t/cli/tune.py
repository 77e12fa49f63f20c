"""The command that finds the fastest policy on this machine: tune."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from c2t.cli import options as o
from c2t.cli import shared, terminal
from c2t.cli.reports import TAU
from c2t.costs.store import costs_of, measure_and_store
from c2t.errors import InputError
from c2t.models.target.packed_model import PackedModel
from c2t.models.wrappers.ngrams import NGRAMS
from c2t.output.progress import progress_bar
from c2t.policies.round_costs import RoundCosts
from c2t.policies.spec import describe, split
from c2t.protocols import Policy
from c2t.replay.prompts import default_prompts
from c2t.storage.results import check_place
from c2t.study import autotune as tuning
from c2t.study import autotune_cache as tuned
from c2t.study import engine_flags
from c2t.study.evaluate import room
from c2t.verification.compatibility import live_only

TUNE = tuning.TuneSettings()
SHOWN = (1, 8, 16, 32, 64, 128)  # tokens of the forwards whose costs are reported
FIGURES = ("label", "predicted", "predicted_there", "measured", "corrected", "ngrams")


@o.with_models
def tune(
    models: o.Models,
    policies: Annotated[
        str,
        typer.Option(
            help="Policies to choose from, separated by commas, settings after a colon: eagle2:N=60,K=10,c2t:beta=0.5.",
            show_default="plain, chain, eagle2, c2t, threshold and drafting with the int4 target, at several sizes",
        ),
    ] = tuning.DEFAULT_CANDIDATES,
    classifier: o.Classifier = None,
    prompts: o.Prompts = None,
    batch: Annotated[
        int, typer.Option(help="Prompts to decode together; the choice is for this batch size.")
    ] = TUNE.batch,
    limit: Annotated[
        int | None, typer.Option(help="Prompts to count tau and gamma on.", show_default="16, or 3 batches")
    ] = TUNE.limit,
    repeats: Annotated[int, typer.Option(help="Times to run each forward; the median time counts.")] = TUNE.repeats,
    timed: Annotated[
        int, typer.Option(help="Batches to decode with the best predictions, of which the fastest is chosen.")
    ] = TUNE.timed,
    compared: Annotated[
        int, typer.Option(help="Number of best policies to decode those batches with, besides the best of each kind.")
    ] = TUNE.compared,
    ngrams: Annotated[
        bool,
        typer.Option(
            "--ngrams",
            help="Try every policy a second time with +ngrams in the draft, which --tuned uses if that was faster.",
        ),
    ] = TUNE.ngrams,
    max_new_tokens: o.MaxNewTokens = TUNE.max_new_tokens,
    temperature: o.Temperature = TUNE.temperature,
    seed: o.Seed = TUNE.seed,
    figure: Annotated[
        Path | None,
        o.file_out("Plot tokens/s over gamma into this PNG file."),
    ] = None,
    flags: Annotated[
        engine_flags.Engine | None,
        typer.Option(
            help="Print the best setting that this engine can run, as its own options.",
            show_default="none",
            rich_help_panel=o.OUTPUT_PANEL,
        ),
    ] = None,
    json: o.Json = None,
) -> None:
    """Find the fastest policy on this machine; generate --tuned and bench --tuned use it.

    The choice is for this number of prompts together and this temperature.
    Measures what forwards of target and draft cost here, and predicts the speed of each policy.
    The costs for a budget are measured again, and stored for all commands on this machine.
    The prompts are those of c2t harvest, so that c2t bench --tuned measures on other ones.
    """
    if figure:
        check_place(figure)
        from c2t.study import plots  # noqa: PLC0415 - needs an extra, and says so before the work
    settings = tuning.TuneSettings(
        batch=batch,
        limit=limit,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        repeats=repeats,
        timed=timed,
        compared=compared,
        ngrams=ngrams,
    )
    if ngrams and flags:
        raise InputError(f"--flags {flags}: its drafts have no n-grams; leave --ngrams out")
    loaded = shared.load(models)
    if ngrams and loaded.draft.has_ngrams:
        raise InputError(f"--draft {models.draft} has {NGRAMS} already; leave --ngrams out")
    room(loaded, max_new_tokens)  # before costs are measured, which takes a while
    files = prompts or default_prompts(loaded.name, "harvest")
    specs = split(policies)
    if policies == tuning.DEFAULT_CANDIDATES:
        specs = shared.available(loaded, classifier, specs)
    turns = shared.read(files)

    def costs(policy: Policy, file: str | None = None) -> RoundCosts:
        return costs_of(loaded, policy, file) if file else measure_and_store(loaded, policy, turns, settings.repeats)

    candidates = shared.policies(loaded, classifier, specs, None, costs)
    if policies == tuning.DEFAULT_CANDIDATES and (flags or PackedModel.why_not_rounded(loaded.target.model)):
        candidates = [policy for policy in candidates if not live_only(policy)]
    if flags:
        engine_flags.check(flags, candidates)
    with progress_bar("tune", "stages") as report:
        result = tuning.tune(loaded, candidates, turns, settings, progress=report)
    key = tuned.key(loaded, batch, temperature)
    configuration = {**key, "classifier": classifier or loaded.name, "prompts": [Path(path).name for path in files]}
    configuration |= asdict(settings)
    terminal.table(*table(result))
    terminal.say(remarks(result))
    options = engine_flags.lines(flags, result) if flags else []
    for line in options:
        terminal.say(line)
    path = tuned.store(
        key,
        tuned.Tuned(
            describe(result.best.policy),
            classifier or loaded.name,
            result.best.corrected,
            configuration,
            result.best.ngrams,
        ),
    )
    terminal.say(f"stored for --tuned in {path}")
    try:
        if figure:
            terminal.say(f"figure: {plots.plot_speeds(result, figure)}")
    finally:  # figures are written even if the plot cannot be
        terminal.result(json, "tune", figures(result) | ({"flags": options} if flags else {}), configuration)


def table(result: tuning.Tuning) -> tuple[str, list[str], list[list[Any]]]:
    """Make a table with a row per candidate, the fastest prediction first."""
    columns = ["policy", "tau", "gamma", "passes/round", "predicted tokens/s", "x plain"]
    columns += ["predicted, timed prompts", "measured", "error", "corrected"]
    rows: list[list[Any]] = []
    for row in result.rows:
        cells: list[Any] = [
            row.label,
            f"{row.total.tau:.2f}",
            f"{row.total.gamma:.1f}",
            f"{row.total.draft_passes:.1f}" * (row.rounds is not None),
        ]
        cells += [f"{row.predicted:.0f}", f"{row.predicted / result.plain.predicted:.2f}"]
        if row.measured:
            error = f"{row.predicted_there / row.measured - 1:+.0%}" * (row.rounds is not None)
            there = f"{row.predicted_there:.0f}" * (row.rounds is not None)
            cells += [there, f"{row.measured:.0f}", error, f"{row.corrected:.0f}"]
        else:
            cells += [""] * 4
        rows.append(cells)
    settings = result.settings
    return f"batch size {settings.batch}, T = {settings.temperature:g}", columns, rows


def remarks(result: tuning.Tuning) -> str:
    """Return the costs of the predictions and the chosen policy, in lines."""
    costs, settings = result.costs, result.settings
    target, level = (", ".join(f"{n}: {curve.at(n) * 1e3:.3g}" for n in SHOWN) for curve in (costs.verify, costs.draft))
    overhead = ", ".join(f"{name} {seconds * 1e3:.2g}" for name, seconds in costs.overhead._asdict().items())
    lines = [
        TAU,
        f"ms of a target forward over n tokens of all prompts: {target}",
        f"ms of a draft forward over n tokens of all prompts: {level}",
        f"ms of the rest of a round: {overhead}",
        f"error: of the prediction for the measured prompts ({settings.timed} batches at most). "
        "corrected: the prediction for all prompts without it",
    ]
    if measured := [row.label for row in result.rows if row.rounds is None]:
        lines.append(f"{', '.join(measured)}: only measured; predicted as plain decoding times the measured ratio")
    lines.append(f"chosen: {result.summary}")
    return "\n".join(lines)


def figures(result: tuning.Tuning) -> dict[str, Any]:
    """Return a tuning as JSON."""
    costs = {name: getattr(result.costs, name)._asdict() for name in ("verify", "draft", "overhead")}
    rows = [
        {
            **{name: getattr(row, name) for name in FIGURES},
            "policy": describe(row.policy),
            "replayed": row.rounds is not None,
            **row.total.figures(),
        }
        for row in result.rows
    ]
    return {"best": result.best.label, "rows": rows, "costs": costs}
