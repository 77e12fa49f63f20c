"""What the scripts that reproduce the papers' tables share: options, and one study of a pair.

A study loads the pair once, makes the harvest it needs (or finds it in data/harvest), trains classifiers on it, and
counts policies by exact replay on prompts that no classifier has learned from. `papers.verdicts` says what the
counts mean and prints them.
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from transformers.utils import logging as transformers_logging

from c2t.classifier import TreeClassifier
from c2t.cli import shared, terminal
from c2t.decoding import Policy, check_rule
from c2t.harvest import harvest as harvesting
from c2t.models.pairs import Pair
from c2t.policies import C2T, Eagle2
from c2t.policies.spec import describe
from c2t.prompts import Prompt, default_prompts, read_prompts, spread
from c2t.records.schema import Harvest
from c2t.replay.lockstep import Continuation
from c2t.sampling import Sampling
from c2t.statistics import Statistics, total
from c2t.storage import paths as checkpoints
from c2t.study.evaluate import continuations, encode, evaluate
from c2t.study.points import Point
from c2t.training.data import TrainSettings
from c2t.training.fit import FINETUNE, finetune, train
from pipelines.pair.recipes import PAIRS

P, H, D = "joint_prob", "entropy", "depth"
# What classifiers are trained with: the paper's settings, or the committed one's (see pipelines.pair.classifier).
TRAINING = {"paper": TrainSettings(), "committed": TrainSettings(negatives=20, lr=1e-2)}
SIZES = (10, 640)  # of EAGLE-2's trees, the least and the most that are tried
STEPS = 5  # of the search for a tau
LEVELS = 11  # texts are written for trees of so many levels, unless a policy has more

PairName = Annotated[str, typer.Option(help="NAME of a pair.")]
HarvestPrompts = Annotated[list[Path] | None, typer.Option(help="Prompt file of the harvest; repeat it for more.")]
HarvestLimit = Annotated[int, typer.Option(help="Prompts of the harvest.")]
HarvestTokens = Annotated[int, typer.Option(help="New tokens of each text of the harvest.")]
Training = Annotated[
    Literal["paper", "committed"],
    typer.Option(help="Of classifiers: r = 1 and lr 0.001 (the paper's), or r = 20 and lr 0.01."),
]


@dataclass(frozen=True)
class Settings:
    """limit: prompts that policies are counted on; harvest_*: what classifiers learn from; prompts, harvest_prompts:
    files, None for those that come with the pair."""

    pair: str = "tiny"
    draft: str | None = None
    temperature: float = 0.4
    limit: int | None = 24
    max_new_tokens: int = 64
    prompts: tuple[Path, ...] = ()
    harvest_prompts: tuple[Path, ...] = ()
    harvest_limit: int = 200
    harvest_tokens: int = 96
    training: Literal["paper", "committed"] = "paper"
    seed: int = 0


DEFAULT = Settings()


class Counted(NamedTuple):
    """One policy: counts of every prompt, and all prompts together. lossless: its text is that of plain decoding with
    the same seed, token for token."""

    point: Point
    total: Statistics
    lossless: bool

    @property
    def tau(self) -> float:
        return self.total.tau

    @property
    def verified_tokens(self) -> int:
        return self.total.verified_tokens

    @property
    def label(self) -> str:
        """The settings that shape the trees."""
        return self.point.label.partition(":")[2]


class Study:
    """A pair under one set of settings; what was counted or trained once is not made again."""

    def __init__(self, pair: Pair, settings: Settings):
        self.pair, self.settings = pair, settings
        self.sampling = Sampling(settings.temperature, seed=settings.seed)
        prompts = spread(_read(settings.prompts or default(settings.pair, "bench")), settings.limit)
        self.encoded = encode(pair, prompts, settings.max_new_tokens, self.sampling)
        self.counted: dict[tuple[Policy, str], Counted] = {}
        self._texts: dict[int, list[Continuation]] = {}
        self._classifiers: dict[tuple, TreeClassifier] = {}

    @property
    def title(self) -> str:
        """The pair and what it is counted on."""
        s = self.settings
        draft = Path(s.draft or "eagle").name
        return f"{s.pair}, draft {draft}, T = {s.temperature:g}, {len(self.encoded.ids)} texts of {s.max_new_tokens}"

    def texts(self, levels: int) -> list[Continuation]:
        """The target's texts, written once for trees of up to `levels` levels."""
        levels = max(LEVELS, levels)
        if levels not in self._texts:
            self._texts[levels] = continuations(
                self.pair, self.encoded.ids, self.settings.max_new_tokens, levels, self.sampling
            )
        return self._texts[levels]

    def count(self, policy: Policy, rule: str | None = None) -> Counted:
        """What the policy costs and yields on every prompt; `rule` as in `c2t.study.evaluate.evaluate`."""
        rule = check_rule(policy, rule)
        key = (policy, rule)
        if key not in self.counted:
            replayed = policy.exact and (rule != "residual" or self.settings.temperature == 0)
            statistics = evaluate(
                self.pair,
                policy,
                self.encoded.ids,
                max_new_tokens=self.settings.max_new_tokens,
                sampling=self.sampling,
                rule=rule,
                texts=self.texts(policy.levels) if replayed else None,
            )
            self.counted[key] = Counted(_point(self.pair, policy, statistics), total(statistics), replayed)
        return self.counted[key]

    def around(self, make: Callable[[float], Policy], tau: float, low: float, high: float) -> list[Counted]:
        """Counts of `make(x)` for x between `low` and `high`, closing in on the x that yields `tau` by bisection, with
        an end only if `tau` is between it and the others. tau is taken to rise with x."""
        ends, found = (low, high), []
        for _ in range(STEPS):
            middle = (low + high) / 2
            found.append(self.count(make(middle)))
            low, high = (middle, high) if found[-1].tau < tau else (low, middle)
        return found + [self.count(make(end)) for end in ends if end in (low, high)]

    def c2t_around(self, classifier: TreeClassifier, goal: Counted, **trees: Any) -> list[Counted]:
        """C2T with thresholds that close in on the tau of `goal`."""
        return self.around(lambda x: C2T(classifier, beta_of(x), **trees), goal.tau, -9, 6)

    def eagle2_around(self, goal: Counted) -> list[Counted]:
        """EAGLE-2 with K = 15, 10 levels (the paper's rival) and sizes that close in on the tau of `goal`."""
        return self.around(lambda x: Eagle2(K=15, levels=10, N=round(math.exp(x))), goal.tau, *map(math.log, SIZES))

    def harvest(self, **trees: int) -> Harvest:
        """Full EAGLE-2 trees (K = 10, 11 levels, or as `trees` says) along texts of the harvest's prompts; one that was
        stopped is finished. The folder's name has a hash of all that the rows depend on."""
        s = self.settings
        prompts = spread(_read(s.harvest_prompts or default(s.pair, "harvest")), s.harvest_limit)
        wanted = harvesting.HarvestSettings(
            max_new_tokens=s.harvest_tokens, temperature=s.temperature, seed=s.seed, **trees
        )
        rows_of = _hash(harvesting.provenance(self.pair, prompts, wanted))
        name = f"{s.pair}-{Path(s.draft or 'eagle').name}-T{s.temperature:g}-{rows_of}"
        with terminal.progress("harvest", "{task.fields[rows]:,} rows") as bar:
            task = bar.add_task("", total=sum(len(prompt.turns) for prompt in prompts), rows=0)
            return harvesting.harvest(
                self.pair,
                prompts,
                checkpoints.harvest_of(name),
                wanted,
                resume=True,
                progress=lambda texts, rows: bar.update(task, completed=texts, rows=rows),
            )

    def classifier(self, features: Sequence[str] = (P, H, D), training: str | None = None, **changes: Any):
        """A classifier trained on the harvest, or the one trained before with the same settings on the same rows.
        training: one of TRAINING; changes: of its settings."""
        base = TRAINING[training or self.settings.training]
        return self._trained(replace(base, features=tuple(features), **changes), None)

    def finetuned(self, source: TreeClassifier, fraction: float = 0.1) -> TreeClassifier:
        """A trained classifier, fine-tuned on a share of this pair's harvest."""
        return self._trained(replace(FINETUNE, fraction=fraction), source)

    def _trained(self, settings: TrainSettings, source: TreeClassifier | None) -> TreeClassifier:
        rows = self.harvest()
        start = [value.tolist() for value in source.state_dict().values()] if source else None
        key = _hash(rows.provenance, asdict(settings), start)
        if key not in self._classifiers:
            place = checkpoints.root() / "checkpoints" / "local" / "papers" / f"{rows.folder.name}-{key}"
            if not place.is_dir() and source is None:
                train([rows.folder], place, settings)
            elif not place.is_dir():
                finetune([rows.folder], source, place, settings)
            self._classifiers[key] = TreeClassifier.from_pretrained(place, device=self.pair.target.device)
        return self._classifiers[key]


def study(device: str | None = None, dtype: str | None = None, **settings: Any) -> Study:
    """A study of a pair by name; `settings` as in Settings."""
    transformers_logging.disable_progress_bar()
    chosen = Settings(**settings)
    return Study(shared.load(chosen.pair, None, chosen.draft, device, dtype, None), chosen)


def nearest(found: Sequence[Counted], goal: Counted) -> Counted:
    """The one of these counts whose tau is closest to the goal's."""
    return min(found, key=lambda one: abs(one.tau - goal.tau))


def beta_of(x: float) -> float:
    """A threshold in (0, 1) that falls with x, as tau rises; x above -9."""
    return float(f"{1 / (1 + math.exp(x)):.4g}")


def default(pair: str, purpose: Literal["harvest", "bench"]) -> list[Path]:
    """Prompt files of a pair; the pairs made of the embedded one's corpus share its prompts."""
    return default_prompts("tiny" if pair in PAIRS else pair, purpose)


def _hash(provenance: dict[str, Any], *further: Any) -> str:
    """Of what rows depend on, and of `further` values."""
    fixed = {name: value for name, value in provenance.items() if name != "environment"}
    return hashlib.sha256(json.dumps([fixed, *further], sort_keys=True).encode()).hexdigest()[:8]


def _read(files: Sequence[Path]) -> list[Prompt]:
    return [prompt for path in files for prompt in read_prompts(path)]


def _point(pair: Pair, policy: Policy, statistics: Sequence[Statistics]) -> Point:
    return Point(
        family=pair.name,
        policy=describe(policy),
        label=describe(policy, brief=True),
        classifier=None,
        rounds=tuple(s.rounds for s in statistics),
        accepted=tuple(sum(s.accepted) for s in statistics),
        verified=tuple(s.verified_tokens for s in statistics),
        passes=tuple(sum(s.passes) for s in statistics),
    )
