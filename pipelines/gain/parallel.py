"""Parallel drafts: what conditioning their marginals on the path saves, as tokens verified at equal tau.

    python -m pipelines.gain parallel --data FOLDER [--prompts 40] [--temperature 0]

Every draft grows the same trees without any training of theirs: all nodes above a joint probability. Drafts without a
learned condition also get the draft temperature (a factor of their logits) that is best on other prompts of the same
set, beside their own. On marginals as they are, more families compete: the N most probable nodes (DDTree), Medusa's
static tree, from accuracies that are measured on other prompts, CaDDTree, and the N most probable nodes behind an
entropy gate.

FOLDER holds gsm8k/, humaneval/ and mt_bench/ with question.jsonl, in EAGLE's format; first turns are asked. Points are
kept: the same command goes on where it was stopped. A draft that is not on this machine is left out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from c2t.classifier import TreeClassifier
from c2t.errors import InputError
from c2t.models.pairs import BIGRAMS, FIT, HYDRA, NGRAMS, Pair, load_pair
from c2t.policies.medusa_tree import Accuracies, MedusaTree
from c2t.policies.spec import describe
from c2t.progress import working
from c2t.prompts import Prompt, default_prompts, read_prompts, spread
from c2t.storage import paths as checkpoints
from c2t.storage.results import append_line, result_line
from c2t.study.accuracies import accuracies
from c2t.study.evaluate import continuations, encode
from c2t.study.pareto import RIVALS_TOGETHER, Ratio, compare, gamma_at
from c2t.study.points import Point
from c2t.study.sweep import Candidate, SweepSettings, candidates, sweep
from pipelines import terminal
from pipelines.gain.scaled import scaled

RESULTS = checkpoints.root() / "data" / "results" / "gain-parallel.jsonl"
POINTS = checkpoints.root() / "build" / "gain" / "parallel.jsonl"
SETS = ("gsm8k", "humaneval", "mt_bench")
MARGINALS, BLOCK, AUTOREGRESSIVE = "medusa", "block", "eagle"
COUNTS = NGRAMS + "=16"  # the text's n-grams, mixed in without learning
COUNTING = (MARGINALS + COUNTS, MARGINALS + BIGRAMS + COUNTS)
TRUSTING = (MARGINALS + NGRAMS, MARGINALS + FIT + NGRAMS)  # trusted as was learned
DRAFTS = (
    *(AUTOREGRESSIVE, MARGINALS, MARGINALS + BIGRAMS, MARGINALS + FIT),
    *(*COUNTING, *TRUSTING, MARGINALS + HYDRA),
    *(BLOCK, BLOCK + BIGRAMS),
)
SEARCHED = (AUTOREGRESSIVE, MARGINALS, MARGINALS + BIGRAMS)  # drafts whose temperature is searched
FACTORS = (1.0, 0.7, 1.4)
SEARCHED_ON = 16  # prompts of a set that are not judged on
MEASURED_ON = 24  # prompts that the static trees' accuracies come from; none of a set
RANKS, LEVELS = 16, 5
SHAPE = f"K={RANKS},levels={LEVELS}"
GRID = f"threshold:threshold=0.5|0.25|0.12|0.06|0.03|0.015|0.007,W=none,max_width=24,{SHAPE}"
SEARCH_GRID = f"threshold:threshold=0.12|0.02,W=none,max_width=24,{SHAPE}"
STATIC = (8, 20, 40)  # tokens of the static trees
OTHERS = {  # families on marginals as they are
    "best-first": f"opttree:N=8|20|40,delta=0,{SHAPE}",
    "caddtree": f"caddtree:slope=0.1|0.03|0.01,{SHAPE}",
    "gate": f"gate:high=3,low=2,of=opttree:N=8|20|40,delta=0,{SHAPE}",
}
RIVALS = tuple(f"{MARGINALS}, {family}" for family in ("static", *OTHERS))
# What a subject is compared with, together: the best of these families at each tau.
SCALED = ", scaled"  # a draft at the factor that was searched
ON_MARGINALS, TRAINING_FREE = "all on marginals", "all training-free"
TOGETHER = {
    ON_MARGINALS: (MARGINALS, MARGINALS + SCALED, *RIVALS),
    MARGINALS + BIGRAMS: (MARGINALS + BIGRAMS, MARGINALS + BIGRAMS + SCALED),
    AUTOREGRESSIVE: (AUTOREGRESSIVE, AUTOREGRESSIVE + SCALED),
}
TOGETHER[TRAINING_FREE] = (*TOGETHER[ON_MARGINALS], *TOGETHER[MARGINALS + BIGRAMS], *COUNTING)
SUBJECTS = (MARGINALS + FIT, *TRUSTING, BLOCK + BIGRAMS)
TAUS = (0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2)


def main(
    data: Annotated[Path, typer.Option(help="Folder of gsm8k/, humaneval/ and mt_bench/.")],
    prompts: Annotated[int, typer.Option(help="Prompts of each set.")] = 40,
    max_new_tokens: Annotated[int, typer.Option(help="New tokens of each text.")] = 64,
    temperature: Annotated[float, typer.Option(help="Temperature of the texts; 0 is greedy.")] = 0.0,
    drafts: Annotated[str, typer.Option(help="Drafts to compare.", show_default="all")] = ",".join(DRAFTS),
    points: Annotated[Path, typer.Option(help="File of the points that are known.")] = POINTS,
    out: Annotated[Path, typer.Option(help="File to append result lines to.")] = RESULTS,
) -> None:
    """Compare a parallel draft, conditioned and not, with an autoregressive one."""
    chosen = drafts.split(",")
    if unknown := sorted(set(chosen) - set(DRAFTS)):
        raise InputError(f"no draft of this comparison is called {unknown[0]}; there are {', '.join(DRAFTS)}")
    if not set(SUBJECTS) & set(chosen):
        raise InputError(f"drafts = {drafts}: take {' or '.join(SUBJECTS)} too, which the others are compared with")
    settings = SweepSettings(limit=prompts, max_new_tokens=max_new_tokens, temperature=temperature)
    points.parent.mkdir(parents=True, exist_ok=True)
    for name in SETS:
        half = halved(read_prompts(data / name / "question.jsonl"), prompts)
        found: list[Point] = []
        factors: dict[str, float] = {}
        with working(name, "drafts") as tell:
            for number, draft in enumerate(chosen):
                tell(number, len(chosen), draft)
                try:
                    pair = load_pair(draft=draft, dtype=torch.float32)
                except InputError as error:
                    terminal.say(f"{draft} is left out: {error}", error=True)
                    continue
                study = Study(pair, half, settings, points)
                factors[draft] = study.best_factor() if draft in SEARCHED else 1.0
                found += study.judged(1.0, draft)
                if factors[draft] != 1:  # beside it: what was best on few prompts may not be so on others
                    found += study.judged(factors[draft], draft + SCALED)
                if draft == MARGINALS:
                    found += study.others()
        every = set(chosen) == set(DRAFTS)
        subjects = [subject for subject in SUBJECTS if any(point.family == subject for point in found)]
        rows = [row for subject in subjects for row in ratios(found, subject, every)]
        count = len(found[0].rounds)
        show(f"{name}, T = {temperature:g}, {count} prompts", rows)
        run = {"set": name, "grid": GRID, "factors": factors, **vars(settings)}
        append_line(out, result_line("gain parallel", {"prompts": count, "rows": rows}, run))


@dataclass(frozen=True)
class Halves:
    """Prompts of a set: those that are judged on, and others that settings are searched on."""

    judged: list[Prompt]
    searched: list[Prompt]


def halved(prompts: Sequence[Prompt], count: int) -> Halves:
    """Return `count` prompts to judge on and SEARCHED_ON others, their first turns. InputError if there are too few."""
    if len(prompts) <= count:
        raise InputError(f"{count} prompts to judge on leave none of {len(prompts)} to search settings on; take fewer")
    judged = spread(prompts, count)
    taken = {id(prompt) for prompt in judged}
    searched = spread([prompt for prompt in prompts if id(prompt) not in taken], SEARCHED_ON)
    return Halves(*([prompt._replace(turns=prompt.turns[:1]) for prompt in half] for half in (judged, searched)))


@dataclass(frozen=True)
class Study:
    """A draft on a set. points: the file of the points that are known."""

    pair: Pair
    prompts: Halves
    settings: SweepSettings
    points: Path

    def best_factor(self) -> float:
        """Return the factor of the logits whose trees hold the fewest tokens at equal tau, on the other prompts."""
        return FACTORS[cheapest([self.searched(factor) for factor in FACTORS])]

    def searched(self, factor: float = 1.0) -> list[Point]:
        """Return the points of the draft's trees with its logits multiplied by `factor`, on the other prompts."""
        return self._sweep(candidates(SEARCH_GRID, TreeClassifier.from_pretrained), self.prompts.searched, factor)

    def judged(self, factor: float, family: str) -> list[Point]:
        """Return the points of the draft's trees with its logits multiplied by `factor`, as those of a family."""
        grid = candidates(GRID, TreeClassifier.from_pretrained)
        return [point._replace(family=family) for point in self._sweep(grid, self.prompts.judged, factor)]

    def others(self) -> list[Point]:
        """Return the points of the further families on marginals."""
        families = [static_trees(self.pair, self.settings)]
        families += [candidates(each, TreeClassifier.from_pretrained) for each in OTHERS.values()]
        return [
            point._replace(family=rival)
            for rival, grid in zip(RIVALS, families, strict=True)
            for point in self._sweep(grid, self.prompts.judged, 1.0)
        ]

    def _sweep(self, grid: Sequence[Candidate], prompts: Sequence[Prompt], factor: float) -> list[Point]:
        return sweep(scaled(self.pair, factor), grid, prompts, self.settings, self.points).points


def cheapest(fronts: Sequence[Sequence[Point]]) -> int:
    """Return the number of the points with the least mean log gamma at the TAUS that all of them reach; 0 if there is
    no such tau."""
    gammas = [
        gamma_at(np.array([[point.tau for point in front]]), np.array([[point.gamma for point in front]]), TAUS)[0]
        for front in fronts
    ]
    common = ~np.isnan(gammas).any(0)
    return int(np.log(np.array(gammas)[:, common]).mean(1).argmin()) if common.any() else 0


def static_trees(pair: Pair, settings: SweepSettings) -> list[Candidate]:
    """Return Medusa's static trees of this pair, of several sizes, from the prompts that classifiers learn from."""
    prompts = [prompt for path in default_prompts(pair.name, "harvest") for prompt in read_prompts(path)]
    ids = encode(pair, spread(prompts, MEASURED_ON), settings.max_new_tokens, settings.sampling).ids
    texts = continuations(pair, ids, settings.max_new_tokens, LEVELS, settings.sampling)
    rates = Accuracies(accuracies(pair.draft, texts, LEVELS, RANKS).rates, MARGINALS)
    policies = [MedusaTree(rates, size) for size in STATIC]
    return [Candidate("static", policy, describe(policy), describe(policy, brief=True)) for policy in policies]


def ratios(points: Sequence[Point], subject: str, every: bool = True) -> list[dict[str, Any]]:
    """Return the subject's tokens verified over each other draft's and family's, and, if `every` draft was asked for,
    over those of TOGETHER, at equal tau, with both and the interval; those of TRUSTING only over the latter."""
    there = {point.family for point in points} - {subject}
    if subject == BLOCK + BIGRAMS:  # it has learned too little for the others: what counts do to it is asked
        there &= {BLOCK}
    rivals = {name: (name,) for name in (*DRAFTS, *RIVALS) if name in there and subject not in TRUSTING}
    rivals |= TOGETHER if every else {}
    rows: list[dict[str, Any]] = []
    for name, families in rivals.items():
        if several := there.intersection(families):
            found = compare([point for point in points if point.family in {subject, *several}], subject, TAUS).ratios
            best = found[RIVALS_TOGETHER] if len(several) > 1 else found[several.pop()]
            rows += as_rows(subject, name, best)
    return rows


def as_rows(subject: str, rival: str, ratios: Iterable[Ratio]) -> list[dict[str, Any]]:
    """Return ratios as rows of a result line, to four digits, without those at which neither side reaches the tau."""
    rows: list[dict[str, Any]] = []
    for one in ratios:
        if one.gamma is not None or one.rival_gamma is not None:
            gammas = {"gamma": short(one.gamma), "rival_gamma": short(one.rival_gamma)}
            ratio = [short(part) for part in one.ratio]
            rows.append({"draft": subject, "rival": rival, "tau": one.tau, **gammas, "ratio": ratio})
    return rows


def short(value: float | None) -> float | None:
    """Return a figure to four digits behind the point: more of them would only be longer lines."""
    return None if value is None else round(value, 4)


def show(title: str, rows: Iterable[dict[str, Any]]) -> None:
    """Print a set's ratios."""
    cells = [[r["draft"], r["rival"], r["tau"], r["gamma"], r["rival_gamma"], *r["ratio"]] for r in rows]
    terminal.table(title, ["draft", "rival", "tau", "gamma", "rival's", "ratio", "low", "high"], cells)
