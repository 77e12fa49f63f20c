"""The command that finds the fastest policy on this machine: tune."""

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from c2t.cli import options as o
from c2t.cli import reports, shared, terminal
from c2t.costs.store import measure_and_store
from c2t.errors import InputError
from c2t.models.loading.load import Pair
from c2t.models.wrappers.ngrams import NGRAMS
from c2t.output.progress import progress_bar
from c2t.policies.round_costs import RoundCosts
from c2t.policies.spec import describe, split
from c2t.protocols import Policy
from c2t.replay.prompts import timing_prompts
from c2t.study import autotune as tuning
from c2t.study import autotune_cache as tuned
from c2t.study import engine_flags
from c2t.study.evaluate import room
from c2t.verification.compatibility import check_compatible, live_only

TUNE = tuning.TuneSettings()


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
        int | None, typer.Option(help="Prompts that the last candidates decode.", show_default="16, or 3 batches")
    ] = TUNE.limit,
    ngrams: Annotated[
        bool,
        typer.Option(
            "--ngrams",
            help="Try every policy a second time with +ngrams in the draft, which --tuned uses if that was faster.",
        ),
    ] = TUNE.ngrams,
    minutes: Annotated[
        float, typer.Option(help="Take about so long at most; on a slow machine fewer and shorter texts are decoded.")
    ] = TUNE.minutes,
    max_new_tokens: o.MaxNewTokens = TUNE.max_new_tokens,
    temperature: o.Temperature = TUNE.temperature,
    seed: o.Seed = TUNE.seed,
    figure: Annotated[
        Path | None,
        o.file_out("Plot the speed over plain decoding by gamma into this PNG file."),
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
    All candidates decode a few texts in turns; the slower half leaves, and the others go on.
    The costs for a budget are measured again, and stored for all commands on this machine.
    The prompts are those of c2t harvest, so that c2t bench --tuned measures on other ones.
    A model of your own gets smollm2's, unless you give some like those that you will send.
    """
    if figure:
        shared.check_figure("--figure", figure)
        from c2t.study import plots  # noqa: PLC0415 - needs an extra, and says so before the work
    begun = time.monotonic()
    settings = tuning.TuneSettings(
        batch=batch,
        limit=limit,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        ngrams=ngrams,
        minutes=minutes,
    )
    if ngrams and flags:
        raise InputError(f"--flags {flags}: its drafts have no n-grams; leave --ngrams out")
    shared.read(prompts or [])  # what is wrong with them is said before models are loaded
    loaded = shared.load(models, specs=split(policies))
    if ngrams and loaded.draft.has_ngrams:
        raise InputError(f"--draft {models.draft} has {NGRAMS} already; leave --ngrams out")
    room(loaded, max_new_tokens)  # before costs are measured, which takes a while
    files = prompts or timing_prompts(loaded.name)
    specs = split(policies)
    if policies == tuning.DEFAULT_CANDIDATES:
        specs = shared.available(loaded, classifier, specs)
    turns = shared.read(files)

    def costs(policy: Policy, file: str | None = None) -> RoundCosts:
        if file:
            raise InputError(f"budget:costs={file}: c2t tune measures the costs itself; leave them out of --policies")
        return measure_and_store(loaded, policy, turns)

    candidates = shared.policies(loaded, classifier, specs, None, costs)
    if policies == tuning.DEFAULT_CANDIDATES:
        candidates = [policy for policy in candidates if serves(policy, loaded, flags)]
    if flags:
        engine_flags.check(flags, candidates)
    left = max(minutes / 4, minutes - (time.monotonic() - begun) / 60)
    with progress_bar("tune", "texts") as report:
        result = tuning.tune(loaded, candidates, turns, replace(settings, minutes=left), progress=report)
    key = tuned.key(loaded, batch, temperature)
    network = classifier or str(loaded.classifier)
    configuration = {**key, "classifier": network, "prompts": [Path(path).name for path in files]}
    configuration |= asdict(settings)
    terminal.table(*table(result))
    terminal.say(reports.COUNTS)
    terminal.say(f"chosen: {result.summary}")
    options = engine_flags.lines(flags, result, loaded, turns) if flags else []
    for line in options:
        terminal.say(line)
    chosen = result.best
    choice = tuned.Tuned(describe(chosen.policy), network, chosen.tokens_per_second, configuration, chosen.ngrams)
    try:
        use = f"c2t generate {shared.typed(models)}--tuned TEXT"
        terminal.say(f"stored in {tuned.store(key, choice)}; use it with: {use}")
        if figure:
            terminal.say(f"figure: {plots.plot_speeds(result, figure)}")
    finally:  # figures are written even if the choice or the plot cannot be
        terminal.result(json, "tune", figures(result) | ({"flags": options} if flags else {}), configuration)


def serves(policy: Policy, pair: Pair, flags: engine_flags.Engine | None) -> bool:
    """Return True for a default candidate that this target runs; an engine has no self-speculation."""
    if flags and live_only(policy):
        return False
    try:
        check_compatible(policy, pair.target)
    except InputError:
        return False
    return True


def table(result: tuning.Tuning) -> tuple[str, list[str], list[list[Any]]]:
    """Make a table with a row per candidate, those with the most texts first, of these the fastest."""
    columns = ["policy", "acceptance length", "gamma", "passes/round", "texts", "tokens/s", "x plain"]
    rows = [
        [
            row.label,
            f"{row.total.tau_with_bonus:.2f}",
            f"{row.total.gamma:.1f}",
            f"{row.total.draft_passes:.1f}",
            str(row.texts * result.settings.batch),
            f"{row.tokens_per_second:.0f}",
            f"{row.against_plain:.2f}",
        ]
        for row in result.rows
    ]
    settings = result.settings
    return f"batch size {settings.batch}, T = {settings.temperature:g}", columns, rows


def figures(result: tuning.Tuning) -> dict[str, Any]:
    """Return a tuning as JSON."""
    names = ("label", "texts", "tokens_per_second", "against_plain", "ngrams")
    rows = [
        {**{name: getattr(row, name) for name in names}, "policy": describe(row.policy), **row.total.figures()}
        for row in result.rows
    ]
    return {"best": result.best.label, "rows": rows}
