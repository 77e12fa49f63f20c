"""The command that compares policies: bench."""

from pathlib import Path
from typing import Annotated

import typer

from c2t.cli import options as o
from c2t.cli import reports, shared, terminal
from c2t.cli.tuned import check_tuned_with, tuned_policy
from c2t.errors import InputError
from c2t.models.loading.load import Pair
from c2t.output.progress import progress_bar
from c2t.policies.spec import describe
from c2t.protocols import Policy
from c2t.replay.prompts import default_prompts
from c2t.storage.provenance import hardware
from c2t.study import acceptance
from c2t.study import autotune_cache as tuning
from c2t.study import batches as batching
from c2t.study import bench as benchmark
from c2t.study.autotune import TuneSettings

BENCH = benchmark.BenchSettings()
TUNED_AT = TuneSettings().temperature


@o.with_models
def bench(
    models: o.Models,
    context: terminal.Context,
    policies: Annotated[
        str | None,
        typer.Option(
            help="Policies to compare: eagle2:N=60,K=10,c2t; or all.",
            metavar="POLICIES",
            show_default="plain, eagle2, c2t; with --tuned plain",
        ),
    ] = None,
    tuned: o.Tuned = False,
    batch: Annotated[
        str | None,
        typer.Option(
            help="Only measure speeds at these batch sizes: 1,4,16.",
            metavar="SIZES",
            parser=o.a_word,
        ),
    ] = None,
    classifier: o.Classifier = None,
    prompts: o.Prompts = None,
    limit: o.Limit = BENCH.limit,
    timed: Annotated[int, typer.Option(help="Prompts to time; 0 times none.")] = BENCH.timed,
    max_new_tokens: o.MaxNewTokens = BENCH.max_new_tokens,
    temperature: o.BenchTemperature = None,
    seed: o.Seed = BENCH.seed,
    live: o.Live = BENCH.live,
    rule: o.Rule = BENCH.rule,
    figure: Annotated[
        Path | None,
        o.file_out("With --batch, plot the speeds into this PNG file."),
    ] = None,
    json: o.Json = None,
) -> None:
    """Compare policies on a set of prompts: acceptance length, gamma, draft passes and speed.

    acceptance length: new tokens per round (tau + 1; tau counts drafted tokens that were accepted).
    gamma: tokens that the target verified per round. draft passes: how often the draft ran per round.
    Speed: tokens per second.
    The speeds of plain decoding and of transformers' generate are shown too.
    With --batch all policies take turns on the same batches of prompts, and only speeds are compared.
    """
    if temperature is None:
        temperature = TUNED_AT if tuned else BENCH.temperature
    terminal.refuse(context, "batch", ("limit", "live", "rule"), "--batch only times live rounds: leave --{} out")
    if figure and not batch:
        raise InputError("--figure plots tokens/s over the batch size: give --batch 1,4,16 too")
    if figure:
        shared.check_figure("--figure", figure)
        from c2t.study import plots  # noqa: F401, PLC0415 - needs an extra, and says so before the work
    settings = benchmark.BenchSettings(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        limit=limit,
        timed=timed,
        live=live,
        rule=rule,
    )
    several = None
    if batch:
        several = batching.BatchSettings(
            max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, batches=_sizes(batch), timed=timed
        )
    shared.read(prompts or [])  # what is wrong with them is said before models are loaded
    pair = shared.load(models, specs=[] if policies is None else benchmark.specs(policies))
    files = prompts or default_prompts(pair.name, "bench")
    rates = acceptance.lookup(pair, temperature, rule)
    if policies is not None:
        specs = benchmark.specs(policies)
    else:
        default = batching.DEFAULT_POLICIES if batch else benchmark.DEFAULT_POLICIES
        specs = shared.available(pair, classifier, benchmark.specs("plain" if tuned else default))
    reference = None if tuned and policies is None else classifier  # only the tuned policy reads it then
    compared = shared.policies(pair, reference, specs, rates, shared.costs(pair))
    if tuned:
        sizes = several.batches if several else (1,)
        choices = [tuned_policy(pair, size, temperature, classifier) for size in sizes]
        pair, _, entry = choices[-1]
        if policies is None:
            check_tuned_with(entry, classifier)
        if len({entry.ngrams for _, _, entry in choices}) > 1:
            raise InputError(f"--batch {batch}: tuned with +ngrams for some of these sizes only; give those alone")
        for _, fastest, _ in choices:
            compared += [fastest] * (describe(fastest) not in map(describe, compared))
    about = benchmark.configuration(pair, several or settings, files, classifier or str(pair.classifier))
    if several:
        speeds = _bench_batches(pair, compared, files, several, figure)
        terminal.result(json, "bench batches", {"rows": [batching.figures(row) for row in speeds]}, about)
        return
    with progress_bar("bench", "prompts") as report:
        result = benchmark.bench(pair, compared, shared.read(files), settings, report)
    terminal.table(*reports.bench_table(result))
    terminal.say(reports.bench_remarks(result))
    if tuned:
        terminal.say(_then_and_now(entry, result))
    terminal.result(json, "bench", benchmark.figures(result), about)


def _sizes(text: str) -> tuple[int, ...]:
    """Read the batch sizes in an option; InputError for anything else."""
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError as error:
        raise InputError(f"--batch {text}: give whole numbers separated by commas, as in 1,4,16") from error


def _bench_batches(
    pair: Pair,
    policies: list[Policy],
    files: list[Path],
    settings: batching.BatchSettings,
    figure: Path | None,
) -> list[batching.Speed]:
    """Compare speeds over the batch size; show table and figure."""
    with progress_bar("bench", "batches") as report:
        speeds = batching.measure(pair, policies, shared.read(files), settings, report)
    terminal.table(*reports.batches_table(speeds, settings))
    terminal.say(reports.batches_remarks(speeds, settings))
    if figure:
        from c2t.study import plots  # noqa: PLC0415 - needs an extra

        title = f"{pair.name}, T = {settings.temperature:g}, {hardware()}"
        terminal.say(f"figure: {plots.plot_batches(speeds, title, figure)}")
    return speeds


def _then_and_now(entry: tuning.Tuned, result: benchmark.Bench) -> str:
    """Say what c2t tune measured of the policy, and what this run measured."""
    row = next(row for row in result.rows if row.policy == entry.policy)
    measured = f"{row.tokens_per_second:.0f} measured" if row.tokens_per_second else "not measured (--timed 0)"
    return (
        f"tuned: {row.label}, {entry.speed:.0f} tokens/s in c2t tune, {measured} here; there at "
        f"T = {entry.settings['temperature']:g} on other prompts, without the prompts' own forwards"
    )
