"""Acceptance length above temperature 0: drafts that share the target's Gumbel noise, drafts that do not, and the
residual rule.

    python -m pipelines.bench noise --temperature 1 --data FOLDER --json data/results/noise.jsonl

All ways draft as many tokens a round, with the same head and without n-grams, and have the same seeds. Ways with ranked
candidates are counted by exact replay on the same texts. The residual rule writes texts of its own, so it runs live.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from jaxtyping import Float, Int
from torch import Tensor

from c2t.costs.statistics import Statistics, total
from c2t.models.drafts.session import DraftSession, WrappedDraft
from c2t.models.loading.load import Pair, load_pair
from c2t.output.progress import progress_bar
from c2t.policies import MCSD, Chain, DySpec, OptTree, SampledChain
from c2t.policies.spec import describe
from c2t.protocols import NextTokenDistributions, Policy
from c2t.replay.prompts import spread
from c2t.sampling import Sampling
from c2t.sessions.wrapped import WrappedSession
from c2t.storage.paths import DEFAULT_PAIR
from c2t.study.evaluate import encode, evaluate
from c2t.study.interval import bootstrap
from c2t.tree import Tree
from pipelines import terminal
from pipelines.bench.contenders import Ours, Task
from pipelines.bench.decoding import short
from pipelines.bench.lines import Json, append, computed
from pipelines.bench.prompt_sets.sets import FOLDERS, prompt_sets
from pipelines.options import PairName

UNAWARE, SHARED, RESIDUAL = "without noise", "shared noise", "residual rule"
CHAIN, LEVELS = 4, 8  # drafted tokens of a chain, and the depth of trees at most
SIBLINGS = 4  # sampled after a node at most by DySpec: of 3, 4 and 16 the best on smollm2 at T = 1
FIXED = {8: (2, 1, 1, 1), 16: (4, 1, 1, 1)}  # of MCSD's trees the best on tiny at T = 1.3, where DySpec is behind them


@dataclass(frozen=True)
class UnawareDraft(WrappedDraft):
    """Draft that ranks candidates by its probabilities at a temperature, and gets no noise."""

    temperature: float

    def session(self) -> "UnawareSession":
        """Return a new session for one generation."""
        return UnawareSession(self.draft.session(), self.temperature)


class UnawareSession(WrappedSession):
    """Session of the inner draft, with its logits divided by the temperature."""

    takes_noise = False

    def __init__(self, draft: DraftSession, temperature: float):
        super().__init__(draft)
        self.temperature = temperature

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`."""
        rows = self.draft.expand(tree, slots)
        return rows.with_logits(rows.drafted / self.temperature, rows.rows)


class Way(NamedTuple):
    """One way of verification: its name, the pair that it drafts with, and its policy."""

    name: str
    pair: Pair
    policy: Policy


def ways(pair: Pair, temperature: float) -> dict[str, list[Way]]:
    """Return the ways to draft each shape: for the residual rule, trees of DySpec and fixed ones. Sampled candidates
    come from the draft at the target's temperature."""
    unaware = replace(pair, draft=UnawareDraft(pair.draft, temperature))
    ranked: dict[str, Any] = {f"chain of {CHAIN}": Chain(CHAIN)}
    sampled: dict[str, list[Any]] = {f"chain of {CHAIN}": [SampledChain(CHAIN, temperature)]}
    for size, config in FIXED.items():
        shape = f"tree of {size}"
        ranked[shape] = OptTree(N=size + 1, delta=0.0, K=size, levels=LEVELS)
        sampled[shape] = [DySpec(size + 1, SIBLINGS, temperature, passes=LEVELS), MCSD(config, temperature)]
    return {
        shape: [Way(UNAWARE, unaware, policy), Way(SHARED, pair, policy)]
        + [Way(RESIDUAL, pair, other) for other in sampled[shape]]
        for shape, policy in ranked.items()
    }


def count(way: Way, ids: Sequence[Sequence[int]], task: Task) -> list[Statistics]:
    """Return the statistics of each prompt. Texts of the residual rule are written one by one: distributions of
    a batch over the whole vocabulary would fit no cache."""
    if way.policy.proposal == "ranked":
        limit, sampling, _ = task
        return evaluate(way.pair, way.policy, ids, max_new_tokens=limit, sampling=sampling)
    live = Ours(way.name, "", way.pair, way.policy)
    texts = (live.write([prompt], [number], task) for number, prompt in enumerate(ids))
    return [text.statistics for text in texts if text.statistics]


def figures(
    compared: Sequence[Way], counted: Sequence[Sequence[Statistics]], sets: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield the figures of each way to draft one shape.

    counted: each way's statistics of each prompt. sets: that of each prompt. acceptance_length: by_set on each set.
    shared_over: the acceptance length with shared noise over that of the way.
    """
    shared = [way.name for way in compared].index(SHARED)
    counts = [[of.rounds for of in way] for way in counted] + [[of.accepted_tokens for of in way] for way in counted]

    def lengths(sums: Float[np.ndarray, "C R"]) -> Float[np.ndarray, "F R"]:
        rounds, accepted = np.split(sums, 2)
        length = 1 + accepted / rounds
        return np.concatenate([length, length[shared] / length])

    intervals = bootstrap(np.array(counts, float), lengths)
    for at, (way, statistics) in enumerate(zip(compared, counted, strict=True)):
        by_set: dict[str, Statistics] = {}
        for chosen, of in zip(sets, statistics, strict=True):
            by_set[chosen] = by_set.get(chosen, Statistics()) + of
        yield {
            "way": way.name,
            "policy": describe(way.policy, brief=True),
            "acceptance_length": intervals[at],
            "shared_over": intervals[len(compared) + at],
            "by_set": {chosen: of.tau_with_bonus for chosen, of in by_set.items()},
            "gamma": total(statistics).gamma,
            "rounds": total(statistics).rounds,
        }


def main(
    data: Annotated[Path, typer.Option(help="Folder with SET/question.jsonl, in EAGLE's format.")],
    pair: PairName = DEFAULT_PAIR,
    draft: Annotated[str | None, typer.Option(help="One of the pair's drafts.", show_default="the pair's")] = None,
    prompts: Annotated[int, typer.Option(help="Prompts of each set.", min=1)] = 16,
    new_tokens: Annotated[int, typer.Option(help="New tokens of a text at most.", min=2)] = 40,
    temperature: Annotated[float, typer.Option(help="Of the target.", min=0.1)] = 1.0,
    json: Json = None,
) -> None:
    """Compare shared noise with drafts without it and with the residual rule."""
    loaded, sampling = load_pair(pair, draft=draft), Sampling(temperature)
    taken = [
        prompt._replace(turns=prompt.turns[:1], file=name)
        for name, of_set in prompt_sets(FOLDERS, data).items()
        for prompt in spread(of_set, prompts)
    ]
    encoded = encode(loaded, taken, new_tokens, sampling)
    sets, task = [prompt.file for prompt in encoded.prompts], Task(new_tokens, sampling, loaded.target.eos)
    rows: list[dict[str, Any]] = []
    with progress_bar("noise", "runs") as report:
        shapes, done = ways(loaded, temperature), itertools.count()
        of = sum(map(len, shapes.values()))
        for shape, compared in shapes.items():
            counted: list[list[Statistics]] = []
            for way in compared:
                report(next(done), of, f"{shape}, {way.name}")
                counted.append(count(way, encoded.ids, task))
            rows += [{"shape": shape, **row} for row in figures(compared, counted, sets)]
    table = [
        [row["shape"], row["way"], f"{row['gamma']:.1f}"]
        + [short(row[name]) for name in ("acceptance_length", "shared_over")]
        for row in rows
    ]
    name = Path(loaded.sources["draft"][0]).name
    columns = ["drafted", "way", "gamma", "acceptance length", "shared noise over it"]
    terminal.table(f"{loaded.name}, {name}, T = {temperature:g}: {len(sets)} texts", columns, table)
    run = {
        "pair": loaded.name,
        "draft": name,
        "temperature": temperature,
        "sets": list(FOLDERS),
        "prompts": prompts,
        "max_new_tokens": new_tokens,
        "seed": sampling.seed,
        **computed(loaded),
    }
    append(json, "bench noise", rows, run)
