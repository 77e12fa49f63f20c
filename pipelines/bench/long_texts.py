"""Tokens per second after long prompts: plain, with the trees that are best for short ones, and with those that are
best after so many tokens.

    python -m pipelines.bench long --json data/results/long.jsonl

A prompt is a part of Python's reference, cut to an exact number of tokens, with the task to summarise it. Times are of
decoding, without the prompt's forward. Other processes must use less than 5 % of the cores; else the run is refused.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Annotated, Any

import typer

from c2t.costs.statistics import total
from c2t.costs.store import costs_of
from c2t.errors import InputError
from c2t.models.loading.chat_templates import conversation
from c2t.models.loading.load import Pair, load_pair, with_ngrams
from c2t.output.progress import progress_bar
from c2t.policies.budget import Budget
from c2t.policies.plain import Plain
from c2t.policies.round_costs import RoundCosts
from c2t.policies.threshold import JointThreshold
from c2t.protocols import Policy
from c2t.sampling import Sampling
from c2t.storage.paths import DEFAULT_PAIR
from pipelines import terminal
from pipelines.bench.contenders import Ours, Task
from pipelines.bench.decoding import Batch, Report, Result, equal, how, ratios, short
from pipelines.bench.idle import check_idle
from pipelines.bench.lines import Json, append, computed
from pipelines.bench.prompt_sets.documents import TASK, reference
from pipelines.options import Draft, PairName

LENGTHS = "1024,2048,4096,6144"
END = 32  # tokens of a prompt that are not cut: the task, and what the template puts after it
CHARACTERS = 6  # of a token, at most on average
PLAIN, FIXED, BEST, BUDGET = "plain decoding", "tree for short prompts", "best tree", "budget by costs"
NGRAMS_WAY = ", with n-grams"
THRESHOLDS = (0.05, 0.1, 0.2, 0.4)
REPEATED = 16  # tokens of a run that the text has before
CHOSEN_ON = 2
MANY = 9  # verified tokens whose price is shown, for each but the first


def sizes_of(lengths: str, pair: Pair, new_tokens: int) -> list[int]:
    """Return the numbers of an option; InputError for other texts, and for those that the target does not read."""
    if not lengths.replace(",", "").isdecimal():
        raise InputError(f"--lengths {lengths!r}: give numbers of tokens, as {LENGTHS}")
    sizes = [int(length) for length in lengths.split(",") if length]
    most = pair.target.max_positions - new_tokens
    for length in sizes:
        if not END < length <= most:
            raise InputError(
                f"--lengths {length}: with {new_tokens} new tokens {pair.name} reads prompts of {END + 1} to {most}"
            )
    return sizes


def prompts_of(pair: Pair, length: int, number: int) -> list[list[int]]:
    """Return so many prompts of `length` tokens, which share no text; InputError if there is not enough."""
    whole = "\n\n".join(reference())
    distance = len(whole) // number
    if distance < CHARACTERS * length:
        raise InputError(f"{number} prompts of {length} tokens share text: lower --prompts or --lengths")
    prompts = []
    for start in range(0, distance * number, distance):
        page = whole[start : start + CHARACTERS * length]
        ids = conversation(pair.tokenizer, pair.template, [page + TASK])
        prompts.append(ids[: length - END] + ids[-END:])
    return prompts


def settings(pair: Pair) -> list[Ours]:
    """Return trees by thresholds."""
    policies = [JointThreshold(threshold=threshold) for threshold in THRESHOLDS]
    return [Ours(BEST, how(pair, policy), pair, policy) for policy in policies]


def decoding_speed(result: Result) -> float:
    """Return the tokens per second after the first token."""
    tokens = sum(text.new - len(text.tokens) for text in result.written)
    return tokens / sum(text.seconds - text.first for text in result.written)


def write(contenders: Sequence[Ours], prompts: Sequence[Batch], task: Task, report: Report) -> list[Result]:
    """Return each contender's texts, which take turns in a new order for every prompt. report(): counts them."""
    results = [Result([contender.setting], []) for contender in contenders]
    for batch in prompts:
        for number in random.Random(batch.numbers[0]).sample(range(len(contenders)), len(contenders)):
            results[number].written.append(contenders[number].write(*batch, task))
            report()
    return results


def fastest(contenders: Sequence[Ours], prompts: Sequence[Batch], task: Task, report: Report) -> Ours:
    """Return the one that decodes the fastest."""
    speeds = [decoding_speed(texts) for texts in write(contenders, prompts, task, report)]
    return contenders[speeds.index(max(speeds))]


def repeated(tokens: Sequence[int]) -> float:
    """Return the share of tokens that end a run of REPEATED tokens which the text has before."""
    runs = [tuple(tokens[end - REPEATED : end]) for end in range(REPEATED, len(tokens) + 1)]
    return (len(runs) - len(set(runs))) / max(len(tokens), 1)


def row_price(costs: RoundCosts, prefix: int) -> float:
    """Return what each of MANY verified tokens but the first adds to a step of plain decoding, as a share of it."""
    step, wide_step = (float(costs.seconds(1, (), tokens, prefix)) for tokens in (1, MANY))
    return (wide_step / step - 1) / (MANY - 1)


def figures(results: dict[str, Result]) -> Iterator[dict[str, Any]]:
    """Yield each way's figures."""
    plain = results[PLAIN]
    for name, result in results.items():
        texts = [tokens for text in result.written for tokens in text.tokens]
        yield {
            "contender": name,
            "setting": result.settings[0],
            "tokens_per_second": decoding_speed(result),
            **ratios(result, plain, "plain"),
            "equal_to_plain": equal(result, plain),
            **total(text.statistics for text in result.written).figures(),
            "first_token_seconds": sum(text.first for text in result.written),
            "repeated": sum(repeated(tokens) * len(tokens) for tokens in texts) / sum(map(len, texts)),
        }


def main(
    pair: PairName = DEFAULT_PAIR,
    draft: Draft = None,
    lengths: Annotated[str, typer.Option(help="Tokens of prompts, separated by commas; rising.")] = LENGTHS,
    prompts: Annotated[int, typer.Option(help="Prompts of each length.", min=1)] = 4,
    new_tokens: Annotated[int, typer.Option(help="New tokens of a text at most; it also ends with EOS.", min=2)] = 2048,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    json: Json = None,
) -> None:
    """Compare trees after prompts of several lengths."""
    check_idle()
    alone = load_pair(pair, draft=draft)
    mixed = with_ngrams(alone)
    sizes = sizes_of(lengths, alone, new_tokens)
    task = Task(new_tokens, Sampling(temperature), alone.target.eos)
    brief = task._replace(max_new_tokens=min(new_tokens, 96), eos=frozenset())
    inner = JointThreshold(threshold=THRESHOLDS[0])
    costs = costs_of(mixed, inner)
    plain = Ours(PLAIN, "", alone, Plain())
    budget = Ours(BUDGET, "", mixed, Budget(inner, costs=costs))
    trees = {NGRAMS_WAY: settings(mixed), "": settings(alone)}
    configuration = {
        "pair": alone.name,
        "sources": mixed.sources,
        "prompts": prompts,
        "max_new_tokens": new_tokens,
        "temperature": temperature,
        **computed(alone),
    }
    fixed: dict[str, Policy] = {}
    with progress_bar("long", "texts") as report:
        done, choices = count(1), sum(map(len, trees.values()))
        calls = len(sizes) * (CHOSEN_ON * choices + prompts * (2 + 2 * len(trees)))

        def advance() -> None:
            report(next(done), calls, f"{length} tokens")

        for length in sizes:
            made = prompts_of(alone, length, CHOSEN_ON + prompts)
            all_batches = [Batch([ids], [number]) for number, ids in enumerate(made)]
            others, judged = all_batches[:CHOSEN_ON], all_batches[CHOSEN_ON:]
            ways = {PLAIN: plain, BUDGET: budget}
            for ending, candidates in trees.items():
                best = fastest(candidates, others, brief, advance)
                policy = fixed.setdefault(ending, best.policy)
                ways[BEST + ending] = best
                ways[FIXED + ending] = Ours(FIXED, how(best.pair, policy), best.pair, policy)
            texts = write(list(ways.values()), judged, task, advance)
            rows = list(figures(dict(zip(ways, texts, strict=True))))
            price = row_price(costs, length)
            show(f"{length} tokens before: another verified token costs {price:.0%} of a step", rows)
            append(json, "bench long", ({"prefix": length, "row_price": price, **row} for row in rows), configuration)


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print a length's table."""
    columns = ["way", "setting", "tokens/s", "x plain", "acceptance length", "gamma", "text = plain's", "repeated"]
    cells = []
    for row in rows:
        counts = row["tau"] + 1, row["gamma"], f"{row['equal_to_plain']:.0%}", f"{row['repeated']:.0%}"
        speeds = f"{row['tokens_per_second']:.1f}", short(row["decoding_against_plain"])
        cells.append([row["contender"], row["setting"], *speeds, *counts])
    terminal.table(title, columns, cells)
