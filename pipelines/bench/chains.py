"""Trees against chains on one draft head that has a confidence, the chain that this confidence cuts among them.

    c2t draft train --target smollm2 --kind dspark --out work/dspark
    python -m pipelines.bench chains --draft work/dspark/draft --data FOLDER --json data/results/chains.jsonl

All rules read the same distributions of the same head, and their rounds are counted by exact replay on the same texts.
Two comparisons: tokens verified at equal acceptance length, and tokens per second. A round's seconds are those of the
target's forward over its tokens, by one measured curve, and of the rest of a real round, which contains the whole
draft and is measured with each setting. Estimates are calibrated, and settings are chosen, on other prompts.

At T > 0 the drafted tokens are the most probable ones. The chain of sampled tokens, which is DeepSpec's own rule, is
judged too, by live runs, and with its chosen length only.
"""

import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from jaxtyping import Float

from c2t.classifier import TreeClassifier
from c2t.costs.measure import Forwards, ForwardTimer, RealRounds
from c2t.models.loading.load import Pair, load_pair
from c2t.output.progress import progress_bar
from c2t.policies import C2T, CaDDTree, Chain, ConfidenceChain, OptTree, Plain, SampledChain
from c2t.policies.round_costs import Curve
from c2t.policies.spec import describe
from c2t.protocols import Policy
from c2t.replay.prompts import Prompt, read_prompts, spread
from c2t.sampling import Sampling
from c2t.storage.paths import DEFAULT_PAIR
from c2t.study.evaluate import continuations, encode
from c2t.study.interval import Interval, bootstrap
from c2t.study.pareto import compare
from c2t.study.points import Point
from c2t.study.sweep import GridPolicy, SweepSettings, sweep
from pipelines import terminal
from pipelines.bench.confidence import ConfidenceDraft, Fitted, fit
from pipelines.bench.decoding import short
from pipelines.bench.lines import Json, append, computed
from pipelines.bench.prompt_sets.documents import REACH
from pipelines.bench.prompt_sets.sets import FOLDERS, MADE, NAMES, prompt_sets
from pipelines.options import PairName

COMMAND = "bench chains"
FIXED, BY_CONFIDENCE, CALIBRATED = "chain, fixed", "chain, by confidence", "chain, by calibrated confidence"
BY_MARGIN, BY_PROBABILITY, SAMPLED = "chain, by margin", "chain, by probability", "chain, sampled"
BEST_FIRST, WITH_STOP = "tree, best first", "tree, best first, most profitable size"
BY_NETWORK, BY_RANK = "tree, by C2T's network", "tree, by confidence and rank"
CHAINS = (FIXED, BY_CONFIDENCE, CALIBRATED, BY_MARGIN, BY_PROBABILITY, SAMPLED)
PLAIN = "plain"
LENGTH, K = 7, 6  # of chains and trees in tokens, and candidates of a node
SLOPES = (0.3, 0.1, 0.03, 0.01)
SIZES = (3, 5, 8, 12, 20, 32)
BETAS = (0.98, 0.95, 0.9, 0.7, 0.55, 0.4, 0.2)
SETS = (*FOLDERS, "functions", "documents")
OTHERS = ("gsm8k_train.jsonl", "self_instruct.jsonl")
TURNS, MEASURED, NEW_TOKENS = 6, 3, 64  # in which costs are measured, on so many texts
Field = dict[str, tuple[Pair, Sequence[Policy]]]  # family -> the pair that it drafts with, and its settings
VERIFIED = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)  # tokens of timed forwards


class PromptSets(NamedTuple):
    """judged: prompts of each set. others: prompts that settings are chosen on, of none of them."""

    judged: dict[str, list[Prompt]]
    others: list[Prompt]


def separated(names: Sequence[str], folder: Path, judged: int, others: int) -> PromptSets:
    """Return the first turns of so many prompts of each set, and of so many others of each kind.

    folder: has SET/question.jsonl for EAGLE's sets, and train/ with OTHERS.
    """
    sets = prompt_sets(names, folder)
    for_choice = [read_prompts(folder / "train" / name) for name in OTHERS]
    for_choice += [sets[name][-others:] for name in names if name in MADE]
    sets |= {name: sets[name][: -others - REACH] for name in names if name in MADE}
    return PromptSets(
        {name: [_first(prompt, name) for prompt in spread(prompts, judged)] for name, prompts in sets.items()},
        [_first(prompt, prompt.file) for prompts in for_choice for prompt in spread(prompts, others)],
    )


def _first(prompt: Prompt, name: str) -> Prompt:
    return prompt._replace(turns=prompt.turns[:1], file=name)


class Costs(NamedTuple):
    """Seconds of a target's forward by its tokens, and of the rest of a round by the label of its policy."""

    verify: Curve
    rest: Mapping[str, float]

    def speed(self, label: str, rounds: Any, accepted: Any, verified: Any) -> Any:
        """Return the tokens per second of rounds with these counts."""
        return (rounds + accepted) / rounds / (self.verify.at(verified / rounds) + self.rest[label])

    @property
    def plain(self) -> float:
        """Tokens per second of plain decoding."""
        return self.speed(PLAIN, 1, 0, 1)


def families(pair: Pair, fitted: Fitted, classifier: TreeClassifier | None, temperature: float) -> Field:
    """Return the settings of each family, and the pair that they draft with."""
    weights, biases = fitted.confidence
    margin_weights, margin_biases = fitted.margin
    by_rank = replace(pair, draft=ConfidenceDraft(pair.draft, fitted))
    chains = {
        FIXED: [Chain(length) for length in range(1, LENGTH + 1)],
        BY_CONFIDENCE: [ConfidenceChain(slope=slope, length=LENGTH) for slope in SLOPES],
        CALIBRATED: [ConfidenceChain(slope=slope, length=LENGTH, weights=weights, biases=biases) for slope in SLOPES],
        BY_MARGIN: [
            ConfidenceChain("margin", slope, LENGTH, weights=margin_weights, biases=margin_biases) for slope in SLOPES
        ],
        BY_PROBABILITY: [CaDDTree(slope=slope, N=LENGTH + 1, K=1, levels=LENGTH) for slope in SLOPES],
    }
    if temperature > 0:
        chains[SAMPLED] = [SampledChain(length, temperature) for length in range(1, LENGTH + 1)]
    stopped = [CaDDTree(slope=slope, N=max(SIZES), K=K, levels=LENGTH) for slope in SLOPES]
    trees = {
        BEST_FIRST: [OptTree(N=size, delta=0.0, K=K, levels=LENGTH) for size in SIZES],
        WITH_STOP: stopped,
    }
    if classifier is not None:
        trees[BY_NETWORK] = [C2T(classifier, beta, K=K, W=K, levels=LENGTH) for beta in BETAS]
    of_pair = {family: (pair, policies) for family, policies in (chains | trees).items()}
    return {**of_pair, BY_RANK: (by_rank, stopped)}


def judge(field: Field, prompts: Sequence[Prompt], settings: SweepSettings, doing: str) -> list[Point]:
    """Count every policy on these prompts."""
    points: list[Point] = []
    with progress_bar("chains", "texts") as report:
        for family, (pair, policies) in field.items():
            grid = [GridPolicy(family, policy, describe(policy), label(policy)) for policy in policies]
            done = f"{doing}: {family}"
            swept = sweep(pair, grid, prompts, settings, progress=lambda at, of, _, done=done: report(at, of, done))
            points += swept.points
    return points


def measure(field: Field, ids: Sequence[Sequence[int]]) -> Costs:
    """Measure the costs of rounds on this machine; all settings take turns."""
    pair = field[FIXED][0]
    text = continuations(pair, ids[:1], NEW_TOKENS, LENGTH, Sampling())[0]
    forwards = Forwards(ForwardTimer(pair, text, time.perf_counter), VERIFIED, ())
    rounds = {
        label(policy): RealRounds(of, policy, [[prompt] for prompt in ids], TURNS, time.perf_counter)
        for of, policies in [*field.values(), (pair, [Plain()])]
        for policy in policies
    }
    for _ in range(TURNS):
        forwards.time()
        for real in rounds.values():
            real.run_turn()
    verify = forwards.curve("verify")
    rest = {
        name: statistics.median(seconds - float(verify.at(verified)) for *_, verified, seconds in real.timed)
        for name, real in rounds.items()
    }
    return Costs(verify, rest)


def label(policy: Policy) -> str:
    """Return the settings that distinguish a policy from others of the field."""
    return describe(policy, brief=True)


def fastest(points: Sequence[Point], costs: Costs) -> dict[str, str]:
    """Return the label of the fastest point of each family."""
    best: dict[str, tuple[float, str]] = {}
    for point in points:
        speed = float(costs.speed(point.label, *_sums(point)))
        best[point.family] = max(best.get(point.family, (0.0, "")), (speed, point.label))
    return {family: name for family, (_, name) in best.items()}


def _sums(point: Point, prompts: slice = slice(None)) -> tuple[int, int, int]:
    return sum(point.rounds[prompts]), sum(point.accepted[prompts]), sum(point.verified[prompts])


def speeds(points: Sequence[Point], costs: Costs) -> list[tuple[Interval, Interval]]:
    """Return the speed of each point over plain decoding, and over the fastest of the chains, with intervals by
    prompt."""
    counts = np.array([getattr(point, name) for point in points for name in ("rounds", "accepted", "verified")], float)
    chains = [number for number, point in enumerate(points) if point.family in CHAINS]

    def figures(sums: Float[np.ndarray, "C R"]) -> Float[np.ndarray, "F R"]:
        speed = np.stack(
            [costs.speed(point.label, *of) for point, of in zip(points, np.split(sums, len(points)), strict=True)]
        )
        return np.concatenate([speed / costs.plain, speed / speed[chains].max(0)])

    intervals = bootstrap(counts, figures)
    return list(zip(intervals[: len(points)], intervals[len(points) :], strict=True))


def figures(
    points: Sequence[Point], chosen: Mapping[str, str], costs: Costs, sets: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    """Yield the figures of each family's chosen setting.

    against_plain, against_chain: speed over plain decoding, and over the fastest chain. by_set: the first of them on
    each set. verified_against: of trees, tokens of a round over those of each family of chains at equal acceptance.
    """
    best = [point for point in points if point.label == chosen[point.family]]
    ends = dict(zip(sets, itertools.accumulate(sets.values()), strict=True))
    for point, (over_plain, over_chain) in zip(best, speeds(best, costs), strict=True):
        by_set = {
            name: float(costs.speed(point.label, *_sums(point, slice(end - sets[name], end)))) / costs.plain
            for name, end in ends.items()
        }
        ratios = {}
        if point.family not in CHAINS:
            rivals = [other for other in points if other.family in (point.family, *CHAINS)]
            ratios = compare(rivals, subject=point.family).ratios
        yield {
            "family": point.family,
            "setting": point.label,
            "tau": point.tau,
            "gamma": point.gamma,
            "against_plain": over_plain,
            "against_chain": over_chain,
            "by_set": by_set,
            "verified_against": {name: [[row.tau, *row.ratio] for row in rows] for name, rows in ratios.items()},
        }


def main(
    draft: Annotated[str, typer.Option(help="Folder of a head with a confidence.")],
    data: Annotated[Path, typer.Option(help="Folder with SET/question.jsonl and train/, in EAGLE's format.")],
    pair: PairName = DEFAULT_PAIR,
    classifier: Annotated[Path | None, typer.Option(help="C2T's network, trained on this head.")] = None,
    prompts: Annotated[int, typer.Option(help="Prompts of each set to judge on.", min=1)] = 80,
    others: Annotated[int, typer.Option(help="Other prompts of each kind, for choices.", min=1)] = 12,
    new_tokens: Annotated[int, typer.Option(help="New tokens of a text at most.", min=8)] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0)] = 0.0,
    sets: Annotated[str, typer.Option(help=f"Of {', '.join(NAMES)}; separated by commas.")] = ",".join(SETS),
    json: Json = None,
) -> None:
    """Compare trees and chains on one draft head."""
    loaded = load_pair(pair, draft=draft)
    network = None if classifier is None else TreeClassifier.from_pretrained(classifier)
    of_sets = separated(sets.split(","), data, prompts, others)
    settings = SweepSettings(limit=None, temperature=temperature, max_new_tokens=new_tokens)
    ids = encode(loaded, of_sets.others, new_tokens, settings.sampling).ids
    field = families(loaded, fit(loaded, ids, settings, LENGTH, K), network, temperature)
    costs = measure(field, ids[:MEASURED])
    chosen = fastest(judge(field, of_sets.others, settings, "chooses"), costs)
    if SAMPLED in field:  # live, so one setting alone takes as long as all those of a family of counted ones
        field[SAMPLED] = loaded, [policy for policy in field[SAMPLED][1] if label(policy) == chosen[SAMPLED]]
    points = judge(field, [prompt for of in of_sets.judged.values() for prompt in of], settings, "judges")
    lengths = {name: len(of) for name, of in of_sets.judged.items()}
    rows = list(figures(points, chosen, costs, lengths))
    table = [
        [row["family"], row["setting"], f"{1 + row['tau']:.2f}", f"{row['gamma']:.1f}"]
        + [short(row[name]) for name in ("against_plain", "against_chain")]
        for row in rows
    ]
    title = f"{loaded.name}, {Path(draft).name}, T = {temperature:g}: {sum(lengths.values())} texts"
    terminal.table(title, ["family", "setting", "acceptance length", "gamma", "x plain", "x chain"], table)
    run = {
        "pair": loaded.name,
        "draft": loaded.sources["draft"],
        "temperature": temperature,
        "sets": lengths,
        "others": len(of_sets.others),
        "max_new_tokens": new_tokens,
        "verify": [costs.verify.sizes, costs.verify.seconds],
        "rest": costs.rest,
        **computed(loaded),
    }
    append(json, COMMAND, rows, run)
