"""Tokens per second of c2t with a tree, of c2t without one, and of the alternatives, in one run.

    python -m pipelines.bench decoding --data FOLDER --prompts 40 --json data/results/decoding.jsonl

All contenders continue the same prompts one after the other, in a new random order for every prompt, so that a
drifting machine treats all alike. Where a rival has settings, the fastest one competes, and it is chosen on prompts
that are not judged. FOLDER holds gsm8k/, humaneval/ and mt_bench/ with question.jsonl, in EAGLE's format. Other sets of
--sets are made here and need no folder (see `pipelines.bench.prompt_sets.sets`). Without either the pair's own prompts
are used.

All have as many threads as torch: the cores, or `OMP_NUM_THREADS`, which `c2t tune` follows as well. Other processes
must use less than 5 % of the cores; else the run is refused. Programs of their own compete where they are installed,
and a line says how to get those that are not. Texts of the other programs are compared with their own plain decoding
of the same weights.

Where it can, c2t competes again with its target in 8 and in 4 bits, which are other models: their texts are compared
with their own plain decoding.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer

from c2t.costs.statistics import total
from c2t.errors import InputError
from c2t.models.loading.chat_templates import conversation
from c2t.models.loading.load import Pair, load_pair
from c2t.models.wrappers.ngrams import NGRAMS
from c2t.output.progress import progress_bar
from c2t.policies.plain import Plain
from c2t.policies.spec import describe
from c2t.protocols import Policy
from c2t.replay.prompts import Prompt, default_prompts, read_prompts, spread
from c2t.sampling import Sampling
from c2t.storage import paths as checkpoints
from c2t.storage.paths import DEFAULT_PAIR
from c2t.study.interval import Interval, Sums, bootstrap
from c2t.verification.prompt_ids import check_length
from pipelines import terminal
from pipelines.bench import llama_cpp, onnx_genai, openvino_genai, upstream_eagle
from pipelines.bench.contenders import (
    COMPILED,
    LOOKUP,
    LOOPS,
    PLAIN,
    ROUNDED,
    Contender,
    Contenders,
    Ids,
    Ours,
    Task,
    Written,
    contenders,
    no_compiler,
    tree_of,
)
from pipelines.bench.idle import check_idle
from pipelines.bench.lines import Json, append, computed
from pipelines.bench.policy import PolicyText, policy_of
from pipelines.bench.prompt_sets.sets import FOLDERS, NAMES, prompt_sets
from pipelines.bench.sizes import Size
from pipelines.options import Draft, PairName

CHOSEN_ON, CHOICE_TOKENS = 2, 48  # batches on which settings are chosen, and new tokens of their texts
WARM_UP_TOKENS = 8
ALL = "all"
# Programs of their own. NAMES: of a module's contenders, after the name of all of them, which may be the only one.
PROGRAMS = (llama_cpp, openvino_genai, onnx_genai, upstream_eagle)
# Names for --skip.
OTHERS = (*ROUNDED, LOOKUP, COMPILED, *LOOPS, *(name for program in PROGRAMS for name in program.NAMES))
Report = Callable[[], None]


class Batch(NamedTuple):
    """Prompts that are decoded together, and the numbers of their random streams."""

    ids: Ids
    numbers: Sequence[int]


class Result(NamedTuple):
    """Texts of one contender on a set, a Written for each batch. settings: chosen ones. size: see `Contender`."""

    settings: list[str]
    written: list[Written]
    size: Size | None = None

    def __add__(self, other: "Result") -> "Result":
        new = [setting for setting in other.settings if setting not in self.settings]
        return Result(self.settings + new, self.written + other.written, self.size)


class Comparison(NamedTuple):
    """Results by contender. base: those of the faster one of transformers' plain loops, None without any."""

    results: dict[str, Result]
    base: Result | None

    def __add__(self, other: "Comparison") -> "Comparison":
        both = {name: result + other.results[name] for name, result in self.results.items()}
        return Comparison(both, self.base and other.base and self.base + other.base)


def compare(
    field: Contenders, judged: Sequence[Batch], others: Sequence[Batch], task: Task, report: Report
) -> Comparison:
    """Decode the judged batches of a set with every contender; settings are chosen on the others. report(): counts
    calls."""
    choose = partial(fastest, batches=others, task=task, report=report)
    base = choose(field.generate) if field.generate else None
    best = [choose(rivals) for rivals in field.others.values()]
    for contender in field.ours:
        choose([contender])  # which warms it up
    order: list[Contender] = [*field.ours, *field.generate, *best]
    results = {rival.name: Result([rival.setting], [], rival.size) for rival in order}
    for number, batch in enumerate(judged):
        for contender in random.Random(number).sample(order, len(order)):
            results[contender.name].written.append(contender.write(*batch, task))
            report()
    return Comparison(results, base and results[base.name])


def fastest(rivals: Sequence[Contender], batches: Sequence[Batch], task: Task, report: Report) -> Contender:
    """Return the one with the most tokens per second on these batches. All of them are warm then."""
    speeds, brief = [], task._replace(max_new_tokens=min(CHOICE_TOKENS, task.max_new_tokens))
    for rival in rivals:
        rival.write(*batches[0], task._replace(max_new_tokens=WARM_UP_TOKENS))
        speeds.append(speed([rival.write(*batch, brief) for batch in batches]) if len(rivals) > 1 else 0.0)
        report()
    return rivals[speeds.index(max(speeds))]


def speed(written: Sequence[Written]) -> float:
    """Return the tokens per second of all texts, their prompts' forwards included."""
    return sum(text.new for text in written) / sum(text.seconds for text in written)


def calls(field: Contenders, batches: int) -> int:
    """Return how often `compare` will call its `report`."""
    families = [[contender] for contender in field.ours] + [field.generate, *field.others.values()]
    judged = len(field.ours) + len(field.generate) + len(field.others)
    return batches * judged + sum(map(len, families))


def figures(comparison: Comparison, sampled: bool) -> Iterator[dict[str, Any]]:
    """Yield the figures of each contender.

    against_*: ratios of tokens per second, with 95 % intervals by a bootstrap over batches; decoding_*: the same after
    the first token, without the prompt's own forward. equal_*: share of the texts that are, token for token, those of
    c2t's plain decoding and of transformers in float32; where texts are sampled c2t's only. Plain decoding is that in
    the same arithmetic. Ratios of other programs are over c2t's plain decoding, too; their texts and the ratios *_own
    are over their own, where they have one. against: ratio over plain decoding of each other program. bits_per_weight,
    gb_per_second: see `memory`.
    """
    elsewhere = {other: of for other, of in comparison.results.items() if plain_elsewhere(other) == other}
    float32 = comparison.results.get(LOOPS[0])
    for name, result in comparison.results.items():
        kind, _, _ = name.partition(", ")
        plain = comparison.results[plain_in(kind) if kind in ROUNDED else PLAIN]
        other_plain = plain_elsewhere(name)
        same = comparison.results.get(other_plain) if other_plain else plain  # of the same weights
        ours = result.written[0].statistics is not None
        counts = total(text.statistics for text in result.written) if ours else None
        yield {
            "contender": name,
            "setting": ", ".join(filter(None, result.settings)),
            "tokens_per_second": speed(result.written),
            **ratios(result, plain, "plain"),
            **(ratios(result, comparison.base, "transformers") if comparison.base else {}),
            **(ratios(result, same, "own") if other_plain and same else {}),
            "against": {other: speed_over(result, of) for other, of in elsewhere.items()},
            "equal_to_plain": None if same is None or (sampled and not ours) else equal(result, same),
            "equal_to_float32": None if sampled or other_plain or not float32 else equal(result, float32),
            **(counts.figures() if counts else {"new_tokens": sum(text.new for text in result.written)}),
            "seconds": sum(text.seconds for text in result.written),
            "first_token_seconds": sum(text.first for text in result.written),
            **memory(result),
        }


def plain_elsewhere(name: str) -> str | None:
    """Return the contender of another program that decodes plainly with the same weights; None for others."""
    return next(filter(None, (program.plain_of(name) for program in PROGRAMS)), None)


def memory(result: Result) -> dict[str, float]:
    """Return the bits of a target's weight, and the GB/s of weights that its forwards after the prompt's read: their
    bytes times the forwards, over the seconds after the first token. What a draft reads is not in it. Without a size,
    without a count of forwards and for texts decoded together there are no figures.
    """
    if result.size is None or any(len(text.tokens) > 1 for text in result.written):
        return {}
    rounds = [text.statistics.rounds if text.statistics else text.rounds for text in result.written]
    seconds = sum(text.seconds - text.first for text in result.written)
    figures = {"bits_per_weight": result.size.bits}
    if None not in rounds and seconds > 0:
        figures["gb_per_second"] = result.size.bytes * sum(rounds) / seconds / 1e9
    return figures


def ratios(result: Result, base: Result, name: str) -> dict[str, Interval]:
    """Return the ratio of two speeds, with and without the prompts' own forwards."""
    counts = np.array(
        [
            (text.new, text.seconds, text.new - len(text.tokens), text.seconds - text.first)
            for side in (result, base)
            for text in side.written
        ]
    )
    counts = np.concatenate(np.split(counts, 2), 1).T  # (8, batches)

    def speeds(sums: Sums) -> Sums:
        tokens, seconds, later, decoding, of_tokens, of_seconds, of_later, of_decoding = sums
        return np.stack([tokens / seconds * of_seconds / of_tokens, later / decoding * of_decoding / of_later])

    whole, decoding = bootstrap(counts, speeds)
    return {f"against_{name}": whole, f"decoding_against_{name}": decoding}


def speed_over(result: Result, base: Result) -> Interval:
    """Return the ratio of two speeds, the prompts' own forwards included."""
    return ratios(result, base, "")["against_"]


def equal(result: Result, other: Result) -> float:
    """Return the share of texts that are the same."""
    pairs = [
        tokens == other_tokens
        for text, other_text in zip(result.written, other.written, strict=True)
        for tokens, other_tokens in zip(text.tokens, other_text.tokens, strict=True)
    ]
    return sum(pairs) / len(pairs)


def batches(pair: Pair, prompts: Sequence[Prompt], size: int, task: Task) -> list[Batch]:
    """Return the prompts' first turns in batches."""
    ids = [conversation(pair.tokenizer, pair.template, prompt.turns[:1]) for prompt in prompts]
    for number, prompt in enumerate(ids):
        check_length(len(prompt), task.max_new_tokens, pair.target.max_positions, f"prompt {number}")
    numbers = range(len(ids))
    return [Batch(ids[start : start + size], numbers[start : start + size]) for start in numbers[::size]]


def main(
    pair: PairName = DEFAULT_PAIR,
    draft: Draft = None,
    policy: PolicyText = None,
    prompts: Annotated[int, typer.Option(help="Prompts to judge on, of each set.", min=1)] = 8,
    data: Annotated[
        Path | None, typer.Option(help="Folder with SET/question.jsonl.", show_default="the pair's own prompts")
    ] = None,
    sets: Annotated[
        str | None,
        typer.Option(help=f"Of {', '.join(NAMES)}; separated by commas.", show_default="the first three, with --data"),
    ] = None,
    new_tokens: Annotated[int, typer.Option(help="New tokens of a text at most; it also ends with EOS.", min=1)] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    batch: Annotated[int, typer.Option(help="Prompts to decode together.", min=1)] = 1,
    skip: Annotated[list[str] | None, typer.Option(help=f"Leave out: {'; '.join(OTHERS)}.", metavar="NAME")] = None,
    json: Json = None,
) -> None:
    """Compare the speed of a tree with plain decoding, with transformers and with other programs."""
    skipped = sorted(set(skip or ()))
    for name in skipped:
        if name not in OTHERS:
            raise InputError(f"--skip {name!r} is none of: {'; '.join(OTHERS)}")
    if batch > 1 and (loop := next((name for name in skipped if name in LOOPS), None)):
        raise InputError(f"--skip {loop!r}: in a batch it may be the faster loop, which the ratios are over")
    if sets is None and data is None:
        prompts_of = {path.stem: read_prompts(path) for path in default_prompts(pair, "bench")}
    else:
        prompts_of = prompt_sets(sets.split(",") if sets else FOLDERS, data)
    of_pair = [prompt for path in checkpoints.prompts_of(pair, "bench") for prompt in read_prompts(path)]
    parts = {name: divided(name, of_set, prompts, of_pair, batch) for name, of_set in prompts_of.items()}
    check_idle()  # before minutes of loading
    loaded = load_pair(pair, draft=draft)
    ours, chosen = policy_of(loaded, policy, batch, temperature)
    task = Task(new_tokens, Sampling(temperature), loaded.target.eos)
    if COMPILED not in skipped and batch == 1 and (why_not := no_compiler()):
        terminal.say(f"{COMPILED} is left out: {why_not}", error=True)
        skipped.append(COMPILED)
    programs = [program for program in PROGRAMS if program.NAMES[0] not in skipped]
    for program in list(programs):
        if why_not := program.missing(loaded, batch, temperature):
            terminal.say(f"{program.NAMES[0]} is left out: {why_not}", error=True)
            programs.remove(program)
    kinds = [kind for kind in ROUNDED if kind not in skipped]
    rounded = [ours for kind in kinds for ours in in_fewer_bits(kind, pair, draft, policy, batch, temperature)]
    configuration = {
        "pair": loaded.name,
        "sources": ours.sources,
        "policy": describe(chosen),
        "tuned": policy is None,
        "prompts": prompts,
        "max_new_tokens": new_tokens,
        "temperature": temperature,
        "batch": batch,
        **computed(loaded),
        "rounded": [contender.setting for contender in rounded],
        "programs": {program.NAMES[0]: f"{program.PACKAGE} {program.VERSION}" for program in programs},
        "skipped": skipped,
    }
    comparisons: dict[str, Comparison] = {}
    with ExitStack() as running, progress_bar("decoding", "runs") as report:
        field = contenders(ours, Plain(), chosen, partial(how, ours), batch, skipped)
        field.ours.extend(rounded)
        for program in programs:
            field.others.update(running.enter_context(program.start(loaded)))
        for name in skipped:  # of a program, some of whose ways compete
            field.others.pop(name, None)
        check_idle()
        per_set, done = calls(field, -(-prompts // batch)), count(1)
        for name, of_set in parts.items():

            def advance(name: str = name) -> None:
                report(next(done), per_set * len(parts), name)

            judged, others = (batches(loaded, part, batch, task) for part in of_set)
            comparisons[name] = compare(field, judged, others, task, advance)
    if len(comparisons) > 1:
        first, *rest = comparisons.values()
        comparisons[ALL] = sum(rest, first)
    for name, comparison in comparisons.items():
        rows = list(figures(comparison, temperature > 0))
        show(f"{name}: T = {temperature:g}, batch {batch}, {torch.get_num_threads()} threads", rows)
        append(json, "bench decoding", ({"set": name, **row} for row in rows), configuration)


def divided(
    name: str, of_set: Sequence[Prompt], judged: int, of_pair: Sequence[Prompt], batch: int
) -> tuple[Sequence[Prompt], Sequence[Prompt]]:
    """Return prompts to judge on, and those that settings are chosen on: the rest of the set, or where that is too
    small the pair's own, of which there may be none. InputError where neither is enough."""
    others = CHOSEN_ON * batch
    taken = spread(of_set, judged + others)
    rest = taken[judged:] if len(taken) == judged + others else [prompt for prompt in of_pair if prompt not in of_set]
    if len(taken) < judged or len(rest) < others:
        raise InputError(
            f"{name} has {len(of_set)} prompts: judging {judged} and choosing settings on {others} others takes "
            f"{judged + others}; lower --prompts or --batch"
        )
    return taken[:judged], rest[:others]


def in_fewer_bits(
    kind: str, pair: str, draft: str | None, policy: str | None, batch: int, temperature: float
) -> list[Ours]:
    """Return c2t with its target in a kind of `ROUNDED`, plain and with a tree; none, and a line, where that is not
    possible."""
    try:
        ours, chosen = policy_of(load_pair(pair, draft=draft, dtype=ROUNDED[kind]), policy, batch, temperature)
    except InputError as error:
        terminal.say(f"{kind} is left out: {error}", error=True)
        return []
    tree = tree_of(chosen)
    return [Ours(plain_in(kind), "", ours, Plain()), Ours(f"{kind}, tree", how(ours, tree), ours, tree)]


def plain_in(kind: str) -> str:
    """Return the name of plain decoding in a kind of `ROUNDED`."""
    return f"{kind}, plain"


def how(pair: Pair, policy: Policy) -> str:
    """Return the policy as text, and whether the draft has n-grams."""
    return describe(policy, brief=True) + f" {NGRAMS}" * pair.draft.has_ngrams


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print a set's table."""
    columns = ["contender", "setting", "tokens/s", "x c2t plain", "x transformers", "acceptance length", "gamma"]
    columns += ["text = plain's", "bits a weight", "GB/s"]
    cells = [
        [
            row["contender"],
            row["setting"],
            f"{row['tokens_per_second']:.1f}",
            short(row["against_plain"]),
            short(row["against_transformers"]) if "against_transformers" in row else None,
            1 + row["tau"] if "tau" in row else None,
            row.get("gamma"),
            row["equal_to_plain"],
            row.get("bits_per_weight"),
            row.get("gb_per_second"),
        ]
        for row in rows
    ]
    terminal.table(title, columns, cells)


def short(ratio: Interval) -> str:
    """Return a ratio and its interval as text."""
    return f"{ratio.estimate:.2f}" + ("" if ratio.low is None else f" ({ratio.low:.2f}-{ratio.high:.2f})")
