"""Commands that decode: generate, bench; and info."""

import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from c2t.classifier import TreeClassifier
from c2t.cli import info as information
from c2t.cli import options as o
from c2t.cli import reports, shared, terminal
from c2t.cli.chat import Settings as ChatSettings
from c2t.cli.chat import converse
from c2t.decoder import SpeculativeDecoder
from c2t.errors import InputError
from c2t.grammars.grammar import Grammar
from c2t.models.loading.load import Pair, with_ngrams
from c2t.models.target.tensor_parallel import FirstProcessTrees, rank_and_world
from c2t.output.progress import progress_bar
from c2t.output.stoppable import checked_stops
from c2t.policies.spec import describe, parse
from c2t.protocols import Policy
from c2t.replay.prompts import default_prompts
from c2t.storage.checked import read_file
from c2t.storage.paths import DEFAULT_PAIR, is_name
from c2t.storage.provenance import hardware
from c2t.storage.results import check_place
from c2t.study import acceptance
from c2t.study import autotune_cache as tuning
from c2t.study import batches as batching
from c2t.study import bench as benchmark
from c2t.study.autotune import TuneSettings
from c2t.study.first_guess import first_guess
from c2t.verification.prompt_ids import check_length
from c2t.verification.prompts import encode

BENCH = benchmark.BenchSettings()
TUNED_AT = TuneSettings().temperature
PROMPT = "Write a Python function that returns the n-th Fibonacci number."
GRAPHED = ("cuda",)  # elsewhere graphs are called kernel by kernel, padded
Tuned = Annotated[bool, typer.Option("--tuned", help="Use what c2t tune found to be the fastest.")]
# Options of generate -> options that cannot be given with them, and the line that says so.
EXCLUSIVE = {
    "prompts": (("chat", "prompt"), "--prompts is in place of PROMPT and of --chat: leave one out"),
    "raw": (("chat", "system"), "--{} is for the pair's chat template: leave --raw out"),
    "tp": (("chat",), "--chat reads a terminal, which only one process has: leave --tp out"),
    "graphs": (("chat", "tp"), "--graphs decodes texts of a known length in one process: leave --{} out"),
    "tuned": (("policy", "beta"), "--tuned chooses the policy: leave --policy and --beta out"),
    "json_schema": (("regex", "grammar"), "a text has one constraint: leave --json-schema or --{} out"),
    "regex": (("grammar",), "a text has one constraint: leave --regex or --{} out"),
}


@o.with_models
def generate(
    context: terminal.Context,
    models: o.Models,
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="Text to answer; without a chat template, to continue.", metavar="PROMPT", show_default=False
        ),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Hold a conversation, a line a turn, until /exit."),
    ] = False,
    system: o.System = None,
    raw: o.Raw = False,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="Decode the first turns of a JSONL file together.",
            parser=o.a_path,
            metavar="FILE",
        ),
    ] = None,
    policy: o.PolicySpec = None,
    tuned: Tuned = False,
    classifier: o.Classifier = None,
    beta: Annotated[
        float | None,
        typer.Option(
            help="Least confidence of policy c2t.",
            show_default="the classifier's",
        ),
    ] = None,
    max_new_tokens: o.MaxNewTokens = 128,
    temperature: o.Temperature = 0.0,
    top_p: o.TopP = 1.0,
    top_k: o.TopK = 0,
    min_p: o.MinP = 0.0,
    seed: o.NewSeed = None,
    stop: o.Stop = None,
    json_schema: o.JsonSchema = None,
    regex: o.Regex = None,
    grammar: o.GrammarFile = None,
    rule: o.Rule = None,
    tp: o.TensorParallel = False,
    graphs: o.Graphs = False,
    threads: o.Threads = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show tau, gamma and draft passes.", rich_help_panel=o.OUTPUT_PANEL)
    ] = False,
    json: o.Json = None,
) -> None:
    """Answer or continue a prompt, and show how fast that was.

    The text appears round by round, those tokens green that the draft guessed.
    Texts of --prompts appear when all of them have ended. Ctrl-C ends an answer of --chat.
    """
    for option, (others, line) in EXCLUSIVE.items():
        terminal.refuse(context, option, others, line)
    texts = [turns.turns[0] for turns in shared.read(prompts)] if prompts else [PROMPT if prompt is None else prompt]
    if tp and rank_and_world()[0]:
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process lives
        json = None
    constraint = _constraint(json_schema, regex, grammar)
    how = ChatSettings(
        max_new_tokens, temperature, top_k, top_p, min_p, seed, rule, checked_stops(stop or ()), constraint
    )
    if threads is not None:
        torch.set_num_threads(threads)
    pair = shared.load(models, tp)
    if graphs and pair.target.device.type not in GRAPHED:
        raise InputError(f"--graphs is for CUDA devices, and the target is on {pair.target.device}: leave it out")
    if tuned:
        pair, chosen, entry = _tuned(pair, len(texts), temperature, classifier, tp)
        _check_tuned_with(entry, classifier)
    else:
        rates = acceptance.lookup(pair, temperature, rule)
        spec = policy or ("c2t" if beta is not None else shared.default_policy(pair, classifier))
        (chosen,) = shared.policies(pair, classifier, [spec], rates, shared.costs(pair, tp), beta=beta)
    if beta is not None and getattr(chosen, "beta", None) != beta:
        raise InputError(
            f"--beta {beta:g} cannot be applied to the policy {describe(chosen, brief=True)}: give it with --policy c2t"
        )
    decoder = SpeculativeDecoder(pair, FirstProcessTrees(chosen) if tp else chosen)
    if graphs:
        longest = max(map(len, decoder.encode(texts, not raw, system)))
        check_length(longest, max_new_tokens, pair.target.max_positions, "the prompt")
        decoder = SpeculativeDecoder(pair, chosen, graph_tokens=longest + max_new_tokens)
    if constraint is not None:
        constraint.matcher(pair.vocabulary)  # compiled here: part of loading, as the first tokens are
    decoder.warm_up(len(texts))
    about = {"pair": pair.name, "policy": describe(chosen), "raw": raw, "system": system}
    if chat:
        talk = converse(decoder, prompt, how, system, verbose)
        figures = {"turns": talk.turns, "answers": talk.answers, **talk.total.figures(), "seconds": talk.seconds}
        seed = talk.seed
    else:
        figures, seed = _decode(decoder, texts, how, system, raw, verbose)
    terminal.result(json, "generate", figures, about | how.facts() | {"seed": seed})


def _constraint(json_schema: Path | None, regex: str | None, grammar: Path | None) -> Grammar | None:
    """Return what the text must follow, None for anything; InputError that names the file that is none."""
    if regex is not None:
        return Grammar.regex(regex)
    file = json_schema or grammar
    if file is None:
        return None
    data = read_file(file)
    try:
        return Grammar.json_schema(data.decode()) if json_schema else Grammar.lark(data.decode())
    except ValueError as error:
        said = "no text in UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise InputError(f"{file}: {said}") from error


def _decode(
    decoder: SpeculativeDecoder, texts: list[str], settings: ChatSettings, system: str | None, raw: bool, verbose: bool
) -> tuple[dict[str, Any], int]:
    """Print what one text becomes round by round, or several when they have ended; return the figures and the seed."""
    streams = [settings.stream(decoder, _continued(decoder.pair, text, raw)) for text in texts]
    alone = len(texts) == 1
    watch = streams[0] if alone else lambda step: None
    start = time.perf_counter()
    try:
        output = decoder.generate(texts, **settings._asdict(), chat=not raw, system=system, watch=watch)
    except InputError:
        if streams[0].tokens:  # a constraint became too complex on the way
            streams[0].end()
        raise
    seconds = time.perf_counter() - start
    if alone:
        streams[0].end()
    else:
        for stream, tokens in zip(streams, output.sequences, strict=True):
            stream.whole(tokens)
    seed = output.seed if settings.temperature else None
    terminal.say(reports.statistics_line(output.total, seconds, seed, verbose), error=True)
    generated = {"text": output.text} if alone else {"texts": output.texts}
    return {**generated, **output.total.figures(), "seconds": seconds}, output.seed


def _continued(pair: Pair, text: str, raw: bool) -> str:
    """Return what to print before a prompt's new text: the prompt, where it is continued and not answered."""
    return text if raw or not pair.template else ""


@o.with_models
def bench(
    models: o.Models,
    policies: Annotated[
        str | None,
        typer.Option(
            help="Policies to compare: eagle2:N=60,K=10,c2t; or all.",
            metavar="POLICIES",
            show_default="plain, eagle2, c2t; with --tuned plain",
        ),
    ] = None,
    tuned: Tuned = False,
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
    """Compare policies on a set of prompts: tau, gamma, draft passes and speed.

    tau: drafted tokens accepted per round (acceptance length = tau + 1).
    gamma: tokens that the target verified per round. draft passes: how often the draft ran per round.
    Speed: tokens per second.
    The speeds of plain decoding and of transformers' generate are shown too.
    With --batch all policies take turns on the same batches of prompts, and only speeds are compared.
    """
    if temperature is None:
        temperature = TUNED_AT if tuned else BENCH.temperature
    if figure and not batch:
        raise InputError("--figure plots tokens/s over the batch size: give --batch 1,4,16 too")
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
    pair = shared.load(models)
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
        choices = [_tuned(pair, size, temperature, classifier) for size in sizes]
        pair, _, entry = choices[-1]
        if policies is None:
            _check_tuned_with(entry, classifier)
        if len({entry.ngrams for _, _, entry in choices}) > 1:
            raise InputError(f"--batch {batch}: tuned with +ngrams for some of these sizes only; give those alone")
        for _, fastest, _ in choices:
            compared += [fastest] * (describe(fastest) not in map(describe, compared))
    if several:
        _bench_batches(pair, compared, files, several, figure, json)
        return
    with progress_bar("bench", "prompts") as report:
        result = benchmark.bench(pair, compared, shared.read(files), settings, report)
    terminal.table(*reports.bench_table(result))
    terminal.say(reports.bench_remarks(result))
    if tuned:
        terminal.say(_then_and_now(entry, result))
    configuration = benchmark.configuration(pair, settings, files, classifier or str(pair.classifier))
    terminal.result(json, "bench", benchmark.figures(result), configuration)


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
    with progress_bar("bench", "batches") as report:
        speeds = batching.measure(pair, policies, shared.read(files), settings, report)
    terminal.table(*reports.batches_table(speeds, settings))
    terminal.say(reports.batches_remarks(speeds, settings))
    if figure:
        from c2t.study import plots  # noqa: PLC0415 - needs an extra

        title = f"{pair.name}, T = {settings.temperature:g}, {hardware()}"
        terminal.say(f"figure: {plots.plot_batches(speeds, title, figure)}")
    about = {
        "pair": pair.name,
        "sources": pair.sources,
        "prompts": [Path(path).name for path in files],
        **asdict(settings),
    }
    terminal.result(json, "bench batches", {"rows": [batching.figures(row) for row in speeds]}, about)


def _tuned(
    pair: Pair, batch: int, temperature: float, reference: str | None, tensor_parallel: bool = False
) -> tuple[Pair, Policy, tuning.Tuned]:
    """Return what c2t tune chose for so many prompts of this pair at this temperature on this device, and the pair with
    its draft. reference: of --classifier. InputError for a policy that reads a classifier by a path or a Hub id, unless
    that is given or the pair's own: a file of the cache cannot ask for one."""
    entry = tuning.lookup(tuning.key(pair, batch, temperature))
    pair = with_ngrams(pair) if entry.ngrams else pair
    costs = shared.costs(pair, tensor_parallel)
    load = shared.Classifier(pair.classifier, entry.classifier, pair.target.device)

    def classifier(name: str | None = None) -> TreeClassifier:
        if name is None and not is_name(entry.classifier) and entry.classifier not in (reference, str(pair.classifier)):
            raise InputError(f"the policy was tuned with another classifier: give --classifier {entry.classifier}")
        return load(name)

    return pair, parse(entry.policy, classifier, costs=costs), entry


def _check_tuned_with(entry: tuning.Tuned, reference: str | None) -> None:
    if reference not in (None, entry.classifier):
        raise InputError(
            f"--classifier {reference}: the policy was tuned with {entry.classifier}; leave the option out"
        )


def _then_and_now(entry: tuning.Tuned, result: benchmark.Bench) -> str:
    """Say what c2t tune measured of the policy, and what this run measured."""
    row = next(row for row in result.rows if row.policy == entry.policy)
    measured = f"{row.tokens_per_second:.0f} measured" if row.tokens_per_second else "not measured (--timed 0)"
    return (
        f"tuned: {row.label}, {entry.speed:.0f} tokens/s in c2t tune, {measured} here; there at "
        f"T = {entry.settings['temperature']:g} on other prompts, without the prompts' own forwards"
    )


@o.with_models
def info(
    context: terminal.Context,
    models: o.Models,
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a pair, or folder or Hub id of a pair's part, a classifier or a harvest.",
            parser=o.a_name,
            metavar="NAME",
            show_default=DEFAULT_PAIR,
        ),
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(
            help="Decode 64 tokens after a prompt instead, and say how often the draft's first guess was right.",
            metavar="PROMPT",
        ),
    ] = None,
) -> None:
    """Describe a pair, a classifier or a harvest."""
    if check is None:
        if others := set(terminal.given(context)) & set(o.Models._fields):
            named = f"--{min(others).replace('_', '-')}"
            raise InputError(
                f"{named} is for --check PROMPT, which loads models; c2t info FOLDER describes a draft alone"
            )
        shared.show(information.info(DEFAULT_PAIR if name is None else name))
        return
    if name is not None and models.pair is not None:
        raise InputError("NAME and --model both say which model to check: give one of them")
    pair = shared.load(models if name is None else models._replace(pair=name))
    (ids,) = encode(pair, [check])
    terminal.say(first_guess(pair, ids).line)
