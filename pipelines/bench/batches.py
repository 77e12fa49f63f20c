"""Tokens per second over the batch size: plain decoding, the best of each family of trees, and one budget for all rows.

    python -m pipelines.bench batches --pair smollm2 --json data/results/batches.jsonl

Every family competes with the setting that was the fastest at the same batch size on the harvest's prompts; the bench's
prompts judge.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any

import typer

from c2t.costs.store import costs_of
from c2t.models.loading.load import Pair, load_pair
from c2t.output.progress import progress_bar
from c2t.policies.spec import parse
from c2t.protocols import Policy
from c2t.replay.prompts import Prompt, default_prompts, read_prompts
from c2t.storage.paths import DEFAULT_PAIR
from c2t.study.batches import BatchSettings, Entrant, Group, Speed, figures, first_turns, grouped, race, speed
from pipelines import terminal
from pipelines.bench.lines import Json, append, computed
from pipelines.bench.policy import classifier
from pipelines.options import Draft, PairName

CHOICE_PROMPTS, CHOICE_TOKENS = 48, 32  # prompts for the choice of settings, in two batches at least; their new tokens
# What competes; of several settings the fastest one, which is searched for each batch size.
FAMILIES: dict[str, tuple[str, ...]] = {
    "plain": ("plain",),
    "EAGLE-2": (
        *("eagle2:K=4,levels=1,N=3", "eagle2:K=4,levels=1,N=5", "eagle2:K=4,levels=2,N=4", "eagle2:K=4,levels=2,N=8"),
        *("eagle2:K=4,levels=3,N=8", "eagle2:K=4,levels=3,N=14", "eagle2:levels=4,N=26", "eagle2:levels=6,N=60"),
        "eagle2:K=6,levels=4,N=14",
    ),
    "untrained": (
        *("chain:length=1", "chain:length=2", "threshold:threshold=0.5,K=6,W=6,levels=2"),
        *("threshold:threshold=0.3,K=6,W=6,levels=3", "threshold:threshold=0.1,K=6,W=6,levels=3", "caddtree:K=6"),
        *("threshold:threshold=0.05,K=6,W=6,levels=5", "threshold:threshold=0.03,K=8,W=8,levels=5"),
    ),
    "C2T": (
        *("c2t:beta=0.7,K=6,W=6,levels=2", "c2t:beta=0.5,K=6,W=6,levels=2", "c2t:beta=0.5,K=6,W=6,levels=3"),
        *("c2t:beta=0.3,K=6,W=6,levels=3", "c2t:beta=0.1,K=6,W=6,levels=4"),
    ),
    # Their depth and size are the budget's choice, so shallow ones need no entry of their own; but of small trees there
    # is less to rank, to sort and to cut, which counts where a round is short.
    "budget": (
        *("budget", "budget:of=eagle2:N=none,K=4,levels=4", "budget:of=eagle2:N=none,K=10,levels=6"),
        *("budget:of=threshold:threshold=0.1,K=6,W=6,levels=3", "budget:of=c2t:beta=0.3,K=6,W=6,levels=3"),
        *("budget:of=eagle2:K=4,levels=3,N=8", "budget:of=chain:length=1", "budget:of=chain:length=2"),
        "budget:of=threshold:threshold=0.03,K=8,W=8,levels=5",
    ),
}
Field = dict[str, list[Policy]]
Entrants = dict[str, list[Entrant]]  # of each family


def field_of(pair: Pair, costs: Callable[..., Any]) -> Field:
    """Return the policies of every family."""
    network = partial(classifier, pair.name)
    return {name: [parse(spec, network, costs=costs) for spec in specs] for name, specs in FAMILIES.items()}


def fastest(field: Entrants, groups: Sequence[Group], settings: BatchSettings) -> dict[str, Entrant]:
    """Return the fastest one of each name on these batches."""
    rivals = [entrant for family in field.values() if len(family) > 1 for entrant in family]
    spent = dict.fromkeys(range(len(rivals)), 0.0)
    for number, run in race(rivals, groups, replace(settings, max_new_tokens=CHOICE_TOKENS)):
        spent[number] += run.seconds
    seconds = {id(rival): spent[number] for number, rival in enumerate(rivals)}
    return {name: min(family, key=lambda entrant: seconds.get(id(entrant), 0.0)) for name, family in field.items()}


def judged(chosen: dict[str, Entrant], groups: Sequence[Group], settings: BatchSettings) -> dict[str, Speed]:
    """Return the speed of each, all in turn on the same batches; one of them is called "plain"."""
    runs: dict[str, list] = {name: [] for name in chosen}
    for number, run in race(list(chosen.values()), groups, settings):
        runs[list(chosen)[number]].append(run)
    batch = len(groups[0].ids)
    return {name: speed(batch, chosen[name].policy, entrant_runs, runs["plain"]) for name, entrant_runs in runs.items()}


def main(
    pair: PairName = DEFAULT_PAIR,
    draft: Draft = None,
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1,2,4,8,16,32",
    timed: Annotated[int, typer.Option(help="Prompts to judge each size on, in two batches at least.", min=1)] = 16,
    new_tokens: Annotated[int, typer.Option(help="New tokens of each text, whatever EOS says.", min=2)] = 48,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    json: Json = None,
) -> None:
    """Compare speeds over the batch size."""
    sizes = tuple(int(size) for size in batch.split(","))
    settings = BatchSettings(max_new_tokens=new_tokens, temperature=temperature, batches=sizes, timed=timed)
    loaded = load_pair(pair, draft=draft)
    judging, choosing = (
        [prompt for path in default_prompts(loaded.name, purpose) for prompt in read_prompts(path)]
        for purpose in ("bench", "harvest")
    )
    configuration = {"pair": loaded.name, "sources": {part: list(at) for part, at in loaded.sources.items()}}
    run = asdict(settings)
    configuration |= {name: run[name] for name in ("max_new_tokens", "temperature", "seed")}
    configuration |= {"timed": timed, **computed(loaded)}
    field = {
        name: [Entrant(loaded, policy) for policy in policies]
        for name, policies in field_of(loaded, partial(costs_of, loaded)).items()
    }
    most = max(settings.groups(size) * size for size in sizes)
    with progress_bar("batches", "batch sizes") as report:
        for done, size in enumerate(sizes):
            report(done, len(sizes), f"{size} prompts together")
            mine, others = (shorter(loaded, prompts, most, settings) for prompts in (judging, choosing))
            chosen = fastest(field, grouped(others, size, max(2, CHOICE_PROMPTS // size)), settings)
            speeds = judged(chosen, grouped(mine, size, settings.groups(size)), settings)
            rows = [{"contender": name, **figures(row)} for name, row in speeds.items()]
            show(f"batch {size}", rows)
            append(json, "bench batches", rows, configuration)


def shorter(pair: Pair, prompts: Sequence[Prompt], most: int, settings: BatchSettings) -> list[list[int]]:
    """Return the shorter half of the prompts, in their order: long ones would only make runs longer."""
    ids = first_turns(pair, prompts, 2 * most, settings)
    middle = sorted(map(len, ids))[len(ids) // 2]
    return [prompt for prompt in ids if len(prompt) <= middle]


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print a batch size's table."""
    cells = []
    for row in rows:
        rate, ratio = row["tokens_per_second"][0], row["against_plain"][0]
        counts = [f"{row['tau']:.2f}", f"{row['gamma']:.1f}"]
        cells.append([row["contender"], row["label"], f"{rate:.0f}", f"{ratio:.2f}", *counts])
    terminal.table(title, ["contender", "setting", "tokens/s", "x plain", "tau", "gamma"], cells)
