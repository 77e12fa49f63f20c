"""Commands that decode: generate, bench; and info."""

import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from c2t.classifier import TreeClassifier
from c2t.cli import info as information
from c2t.cli import options as o
from c2t.cli import reports, shared, terminal
from c2t.cli.chat import Settings as ChatSettings
from c2t.cli.chat import converse
from c2t.cli.stream import TextStream
from c2t.decoder import SpeculativeDecoder
from c2t.errors import InputError
from c2t.models.loading import Pair, with_ngrams
from c2t.models.tensor_parallel import FirstProcessTrees, rank_and_world
from c2t.policies.spec import describe, parse
from c2t.progress import working
from c2t.prompt_ids import check_length
from c2t.prompts import default_prompts
from c2t.protocols import Policy
from c2t.storage.paths import DEFAULT_PAIR, is_name
from c2t.storage.provenance import hardware
from c2t.storage.results import check_place
from c2t.study import acceptance
from c2t.study import autotune_cache as tuning
from c2t.study import batches as batching
from c2t.study import bench as benchmark
from c2t.study.autotune import TuneSettings

BENCH = benchmark.BenchSettings()
TUNED_AT = TuneSettings().temperature
PROMPT = "Write a Python function that returns the n-th Fibonacci number."
GRAPHED = ("cuda",)  # elsewhere graphs are called kernel by kernel, padded
Tuned = Annotated[bool, typer.Option("--tuned", help="Use the policy that c2t tune found to be the fastest here.")]


def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(help="Text to answer, or to continue if the pair has no chat template.", show_default=PROMPT),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Hold a conversation: read turns, a line each, until /exit or Ctrl-D."),
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text as it stands, without the chat template.")
    ] = False,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="Prompt file (JSONL) in place of PROMPT: its first turns are decoded together.",
            parser=o.a_path,
            metavar="FILE",
        ),
    ] = None,
    pair: o.PairName = None,
    target: o.Target = None,
    draft: o.Draft = None,
    policy: o.PolicySpec = None,
    tuned: Tuned = False,
    classifier: o.Classifier = None,
    beta: Annotated[
        float | None,
        typer.Option(
            help="Keep the tokens to which the policy c2t gives at least this confidence, between 0 and 1.",
            show_default="the classifier's own",
        ),
    ] = None,
    max_new_tokens: o.MaxNewTokens = 128,
    temperature: o.Temperature = 0.0,
    seed: o.Seed = 0,
    rule: o.Rule = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    device_map: o.DeviceMap = None,
    tp: o.TensorParallel = False,
    graphs: o.Graphs = False,
    trust_remote_code: o.TrustRemoteCode = False,
    json: o.Json = None,
) -> None:
    """Answer or continue a prompt, and show how many rounds and verified tokens that took.

    The text appears round by round, and nothing else on stdout.
    On a terminal the tokens that the draft guessed are green, unless NO_COLOR is set.
    With --chat, PROMPT is the first turn, and Ctrl-C ends an answer.
    Several prompts out of a file appear when all of them have ended, in the file's order.
    """
    if prompts and (chat or prompt is not None):
        raise InputError("--prompts is in place of PROMPT and of --chat: leave one out")
    texts = [one.turns[0] for one in shared.read(prompts)] if prompts else [PROMPT if prompt is None else prompt]
    if chat and raw:
        raise InputError("--chat answers with the pair's chat template: leave --raw out")
    if tp and chat:
        raise InputError("--chat reads a terminal, which only one process has: leave --tp out")
    if tp and rank_and_world()[0]:
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process lives
        json = None
    if graphs and (chat or tp):
        raise InputError(
            f"--graphs decodes texts of a known length in one process: leave --{'chat' if chat else 'tp'} out"
        )
    loaded = shared.load(pair, target, draft, device, dtype, device_map, trust_remote_code, tp)
    if graphs and loaded.target.device.type not in GRAPHED:
        raise InputError(f"--graphs is for CUDA devices, and the target is on {loaded.target.device}: leave it out")
    if tuned and (policy, beta) != (None, None):
        raise InputError("--tuned chooses the policy: leave --policy and --beta out")
    if tuned:
        loaded, chosen, entry = _tuned(loaded, len(texts), temperature, classifier, tp)
        _check_tuned_with(entry, classifier)
    else:
        rates = acceptance.lookup(loaded, temperature, rule)
        if policy is None and beta is None:
            policy = shared.default_policy(loaded, classifier)
        specs = ["c2t" if policy is None else policy]
        (chosen,) = shared.policies(loaded, classifier, specs, rates, shared.costs(loaded, tp), beta=beta)
    if beta is not None and getattr(chosen, "beta", None) != beta:
        raise InputError(
            f"--beta {beta:g} cannot be applied to the policy {describe(chosen, brief=True)}: give it with --policy c2t"
        )
    decoder = SpeculativeDecoder(loaded, FirstProcessTrees(chosen) if tp else chosen)
    if graphs:
        longest = max(map(len, decoder.encode(texts, chat=not raw)))
        check_length(longest, max_new_tokens, loaded.target.max_positions, "the prompt")
        decoder = SpeculativeDecoder(loaded, chosen, graph_tokens=longest + max_new_tokens)
    decoder.warm_up(len(texts))  # part of loading, not of the text's time
    settings = {"pair": loaded.name, "policy": describe(chosen), "temperature": temperature, "seed": seed}
    settings |= {"raw": raw, "rule": rule, "max_new_tokens": max_new_tokens}
    if chat:
        said = converse(decoder, prompt, ChatSettings(max_new_tokens, temperature, seed, rule))
        figures = {"turns": said.turns, "answers": said.answers, **said.total.figures(), "seconds": said.seconds}
        terminal.result(json, "generate", figures, settings)
        return
    watch = TextStream(decoder, max_new_tokens, _continued(loaded, texts[0], raw)) if len(texts) == 1 else None
    start = time.perf_counter()
    output = decoder.generate(
        texts, max_new_tokens, temperature, chat=not raw, seed=seed, rule=rule, watch=watch or (lambda step: None)
    )
    seconds = time.perf_counter() - start
    if watch:
        watch.end()
    else:
        for text, tokens in zip(texts, output.sequences, strict=True):
            TextStream(decoder, max_new_tokens, _continued(loaded, text, raw)).whole(tokens)
    terminal.say(reports.statistics_line(output.total, seconds), error=True)
    figures = {"text": output.text} if watch else {"texts": output.texts}
    terminal.result(json, "generate", {**figures, **output.total.figures(), "seconds": seconds}, settings)


def _continued(pair: Pair, text: str, raw: bool) -> str:
    """Return what to print ahead of a prompt's new text: the prompt, where it is continued and not answered."""
    return text if raw or not pair.template else ""


def bench(
    pair: o.PairName = None,
    target: o.Target = None,
    draft: o.Draft = None,
    policies: Annotated[
        str | None,
        typer.Option(
            help="Policies to compare, separated by commas, settings behind a colon: eagle2:N=60,K=10,c2t:beta=0.5; "
            "all compares every one.",
            show_default="plain, eagle2 and c2t at several sizes; with --tuned only plain",
        ),
    ] = None,
    tuned: Tuned = False,
    batch: Annotated[
        str | None,
        typer.Option(
            help="Only measure tokens/s, for these numbers of prompts decoded together: 1,4,16.",
            metavar="SIZES",
            show_default="one prompt at a time",
            parser=o.a_word,
        ),
    ] = None,
    classifier: o.Classifier = None,
    prompts: o.Prompts = None,
    limit: o.Limit = BENCH.limit,
    timed: Annotated[int, typer.Option(help="Prompts to measure the speed on; 0 measures none.")] = BENCH.timed,
    max_new_tokens: o.MaxNewTokens = BENCH.max_new_tokens,
    temperature: o.BenchTemperature = None,
    seed: o.Seed = BENCH.seed,
    live: o.Live = BENCH.live,
    rule: o.Rule = BENCH.rule,
    device: o.Device = None,
    dtype: o.Dtype = None,
    device_map: o.DeviceMap = None,
    trust_remote_code: o.TrustRemoteCode = False,
    figure: Annotated[
        Path | None,
        typer.Option(
            help="With --batch, draw tokens/s over the batch size into this PNG file.",
            metavar="FILE",
            parser=o.a_path,
            rich_help_panel=o.OUTPUT_PANEL,
        ),
    ] = None,
    json: o.Json = None,
) -> None:
    """Compare policies on a set of prompts: tau, gamma, draft passes and speed.

    tau: drafted tokens accepted per round (acceptance length = tau + 1).
    gamma: tokens that the target verified per round. draft passes: how often the draft ran per round.
    Speed: tokens per second.
    The speeds of plain decoding and of transformers' generate stand beside them.
    With --batch all policies take turns on the same batches of prompts, and only speeds are compared.
    """
    if temperature is None:
        temperature = TUNED_AT if tuned else BENCH.temperature
    if figure and not batch:
        raise InputError("--figure draws tokens/s over the batch size: give --batch 1,4,16 too")
    if figure:
        check_place(figure)
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
    loaded = shared.load(pair, target, draft, device, dtype, device_map, trust_remote_code)
    files = prompts or default_prompts(loaded.name, "bench")
    rates = acceptance.lookup(loaded, temperature, rule)
    if policies is not None:
        specs = benchmark.specs(policies)
    else:
        usual = batching.DEFAULT_POLICIES if batch else benchmark.DEFAULT_POLICIES
        default = "plain" if tuned else usual
        specs = shared.available(loaded, classifier, benchmark.specs(default))
    own = None if tuned and policies is None else classifier  # the tuned policy's alone then
    compared = shared.policies(loaded, own, specs, rates, shared.costs(loaded))
    if tuned:
        sizes = several.batches if several else (1,)
        choices = [_tuned(loaded, size, temperature, classifier) for size in sizes]
        loaded, _, entry = choices[-1]
        if policies is None:
            _check_tuned_with(entry, classifier)
        if len({entry.ngrams for _, _, entry in choices}) > 1:
            raise InputError(f"--batch {batch}: tuned with +ngrams for some of these sizes only; give those alone")
        for _, fastest, _ in choices:
            compared += [fastest] * (describe(fastest) not in map(describe, compared))
    if several:
        _bench_batches(loaded, compared, files, several, figure, json)
        return
    with working("bench", "prompts") as tell:
        found = benchmark.bench(loaded, compared, shared.read(files), settings, tell)
    terminal.table(*reports.bench_table(found))
    terminal.say(reports.bench_remarks(found))
    if tuned:
        terminal.say(_beside(entry, found))
    configuration = benchmark.configuration(loaded, settings, files, classifier or loaded.name)
    terminal.result(json, "bench", benchmark.figures(found), configuration)


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
    json: str | None,
) -> None:
    """Compare speeds over the batch size; show table and figure, and write the result line."""
    with working("bench", "batches") as tell:
        found = batching.measure(pair, policies, shared.read(files), settings, tell)
    terminal.table(*reports.batches_table(found, settings))
    terminal.say(reports.batches_remarks(found, settings))
    if figure:
        from c2t.study import plots  # noqa: PLC0415 - needs an extra

        title = f"{pair.name}, T = {settings.temperature:g}, {hardware()}"
        terminal.say(f"figure: {plots.plot_batches(found, title, figure)}")
    about = {
        "pair": pair.name,
        "sources": pair.sources,
        "prompts": [Path(path).name for path in files],
        **asdict(settings),
    }
    terminal.result(json, "bench batches", {"rows": [batching.figures(row) for row in found]}, about)


def _tuned(
    pair: Pair, batch: int, temperature: float, reference: str | None, tensor_parallel: bool = False
) -> tuple[Pair, Policy, tuning.Tuned]:
    """Return what c2t tune chose for so many prompts of this pair at this temperature on this device, and the pair with
    its draft. reference: of --classifier. InputError for a policy that reads a classifier by a path or a Hub id, unless
    that is given: a file of the cache cannot ask for one."""
    entry = tuning.lookup(tuning.key(pair, batch, temperature))
    pair = with_ngrams(pair) if entry.ngrams else pair
    costs = shared.costs(pair, tensor_parallel)
    load = shared.Classifier(pair.name, entry.classifier, pair.target.device)

    def classifier(name: str | None = None) -> TreeClassifier:
        if name is None and not is_name(entry.classifier) and entry.classifier != reference:
            raise InputError(f"the policy was tuned with another classifier: give --classifier {entry.classifier}")
        return load(name)

    return pair, parse(entry.policy, classifier, costs=costs), entry


def _check_tuned_with(entry: tuning.Tuned, reference: str | None) -> None:
    if reference not in (None, entry.classifier):
        raise InputError(
            f"--classifier {reference}: the policy was tuned with {entry.classifier}; leave the option out"
        )


def _beside(entry: tuning.Tuned, found: benchmark.Bench) -> str:
    """Set side by side the tuned policy's prediction and what this run measured."""
    row = next(row for row in found.rows if row.policy == entry.policy)
    measured = f"{row.tokens_per_second:.0f} measured" if row.tokens_per_second else "not measured (--timed 0)"
    return (
        f"tuned: {row.label}, {entry.predicted:.0f} tokens/s predicted, {measured}; predicted at "
        f"T = {entry.settings['temperature']:g} on the prompts of c2t tune, without the prompts' own forwards"
    )


def info(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of a pair, or folder or Hub id of a pair's part, a classifier or a harvest.",
            parser=o.a_name,
            metavar="[NAME]",
        ),
    ] = DEFAULT_PAIR,
) -> None:
    """Describe a pair, a classifier or a harvest."""
    shared.show(information.info(name))
