"""One study of a pair, which all reproductions share: harvest, classifiers, and counts of policies.

A study loads the pair once, makes the harvest it needs (or finds it in data/harvest), trains classifiers on it, and
counts policies by exact replay on prompts that no classifier has learned from. `papers.verdicts` turns the counts into
conclusions.
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from filelock import FileLock

from c2t.classifier import TreeClassifier
from c2t.costs.statistics import Statistics, total
from c2t.harvest import harvest as harvesting
from c2t.models.loading.fingerprint import hash_of
from c2t.models.loading.load import Pair, load_pair
from c2t.output.progress import progress_bar
from c2t.policies import C2T, Eagle2
from c2t.policies.spec import describe
from c2t.protocols import Policy
from c2t.records.reader import Harvest
from c2t.replay.lockstep import Continuation
from c2t.replay.prompts import Encoded, Prompt, default_prompts, read_prompts, spread
from c2t.sampling import Sampling
from c2t.storage import paths as checkpoints
from c2t.storage.checksum import checksum, file_checksum
from c2t.study.evaluate import continuations, encode, evaluate
from c2t.study.points import Point
from c2t.training.data import TrainSettings
from c2t.training.fit import FINETUNE, finetune, train
from pipelines.pair.recipes import PAIRS

P, H, D = "joint_prob", "entropy", "depth"
# Settings of classifiers: the paper's, or the committed one's (see pipelines.pair.classifier).
TRAINING = {"paper": TrainSettings(), "committed": TrainSettings(negatives=20, lr=1e-2)}
SIZES = (10, 640)  # smallest and largest tree of EAGLE-2 in the search for a tau
STEPS = 5  # bisections in the search for a tau
LEVELS = 11  # texts are written for trees of so many levels, unless a policy has more


@dataclass(frozen=True)
class Settings:
    """Settings of a study.

    limit: prompts that policies are counted on. harvest_*: settings of the harvest that classifiers learn from.
    prompts, harvest_prompts: files, none for those that come with the pair. same, same_draft, other: pairs of the same
    family and of another one, for reports on transfer.
    """

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
    same: str = "tiny-small"
    same_draft: str | None = None
    other: str = "tiny-qwen"


class Counted(NamedTuple):
    """Counts of one policy: of every prompt, and of all prompts together. plain: tokens of plain decoding's text to
    each prompt with the same seed."""

    point: Point
    total: Statistics
    prompts: Sequence[Statistics]
    plain: Sequence[int]

    def ends_with_plain_text(self) -> bool:
        """Return True if each prompt's rounds reach the end of plain decoding's text in the last round and not before.

        The tokens counted are the prefill's one, then each round's accepted ones and the bonus.
        """
        for counts, length in zip(self.prompts, self.plain, strict=True):
            won = [1, *(accepted + 1 for accepted in counts.accepted)]
            if not sum(won[:-1]) < length <= sum(won):
                return False
        return True

    @property
    def tau(self) -> float:
        """See `Counts.tau`."""
        return self.total.tau

    @property
    def verified_tokens(self) -> int:
        """Tokens of all verification forwards, roots included."""
        return self.total.verified_tokens

    @property
    def label(self) -> str:
        """Settings that shape the trees."""
        return self.point.label.partition(":")[2]


class Study:
    """Pair under one set of settings; each count and each classifier is made only once."""

    def __init__(self, pair: Pair, settings: Settings):
        self.pair, self.settings = pair, settings
        self.sampling = Sampling(settings.temperature, seed=settings.seed)
        self.counted: dict[Policy, Counted] = {}
        self._texts: dict[int, list[Continuation]] = {}
        self._classifiers: dict[tuple, TreeClassifier] = {}

    @cached_property
    def encoded(self) -> Encoded:
        """Prompts that policies are counted on."""
        prompts = evenly(self.settings.prompts or default(self.settings.pair, "bench"), self.settings.limit)
        return encode(self.pair, prompts, self.settings.max_new_tokens, self.sampling)

    @property
    def title(self) -> str:
        """Pair and prompts, in a few words."""
        s = self.settings
        draft = Path(s.draft or "eagle").name
        return f"{s.pair}, draft {draft}, T = {s.temperature:g}, {len(self.encoded.ids)} texts of {s.max_new_tokens}"

    def texts(self, levels: int) -> list[Continuation]:
        """Return the target's texts, written once for trees of up to `levels` levels."""
        levels = max(LEVELS, levels)
        if levels not in self._texts:
            self._texts[levels] = continuations(
                self.pair, self.encoded.ids, self.settings.max_new_tokens, levels, self.sampling
            )
        return self._texts[levels]

    def count(self, policy: Policy) -> Counted:
        """Count a policy's rounds and tokens on every prompt; the policy guarantees plain decoding's text."""
        if policy not in self.counted:
            texts = self.texts(policy.levels)
            with progress_bar("count", "prompts") as report:
                statistics = evaluate(
                    self.pair,
                    policy,
                    self.encoded.ids,
                    max_new_tokens=self.settings.max_new_tokens,
                    sampling=self.sampling,
                    texts=texts,
                    progress=lambda done: report(done, len(self.encoded.ids), describe(policy, brief=True)),
                )
            plain = tuple(text.end - text.prompt for text in texts)
            self.counted[policy] = Counted(_point(self.pair, policy, statistics), total(statistics), statistics, plain)
        return self.counted[policy]

    def around(self, make: Callable[[float], Policy], tau: float, low: float, high: float) -> list[Counted]:
        """Count `make(x)` at values of x between `low` and `high` that approach, by bisection, the x with this tau.

        An end is counted only if `tau` lies between it and the other values. tau is assumed to rise with x.
        """
        ends, counts = (low, high), []
        for _ in range(STEPS):
            middle = (low + high) / 2
            counts.append(self.count(make(middle)))
            low, high = (middle, high) if counts[-1].tau < tau else (low, middle)
        return counts + [self.count(make(end)) for end in ends if end in (low, high)]

    def c2t_around(self, classifier: TreeClassifier, goal: Counted, **trees: Any) -> list[Counted]:
        """Count C2T with thresholds that close in on the tau of `goal`."""
        return self.around(lambda x: C2T(classifier, beta_of(x), **trees), goal.tau, -9, 6)

    def eagle2_around(self, goal: Counted) -> list[Counted]:
        """Count EAGLE-2 with K = 15, 10 levels (the paper's rival) and sizes that close in on the tau of `goal`."""
        return self.around(lambda x: Eagle2(K=15, levels=10, N=round(math.exp(x))), goal.tau, *map(math.log, SIZES))

    def harvest(self, **trees: Any) -> Harvest:
        """Harvest full EAGLE-2 trees (K = 10, 11 levels, or as in `trees`) along texts of the harvest's prompts, or
        finish a harvest that was stopped. The folder's name has a hash of everything that the rows depend on."""
        s = self.settings
        prompts = evenly(s.harvest_prompts or default(s.pair, "harvest"), s.harvest_limit)
        wanted = harvesting.HarvestSettings(
            max_new_tokens=s.harvest_tokens, temperature=s.temperature, seed=s.seed, **trees
        )
        rows_of = _hash(harvesting.provenance(self.pair, prompts, wanted))
        name = f"{s.pair}-{Path(s.draft or 'eagle').name}-T{s.temperature:g}-{rows_of}"
        folder = checkpoints.harvest_of(name)
        with alone(folder), progress_bar("harvest", "texts") as report:
            return harvesting.harvest(self.pair, prompts, folder, wanted, resume=True, progress=report)

    def classifier(self, features: Sequence[str] = (P, H, D), **changes: Any) -> TreeClassifier:
        """Return a classifier trained on the harvest, with `changes` to the study's settings of classifiers, or the one
        trained before in the same way."""
        base = TRAINING[self.settings.training]
        return self.trained(replace(base, features=tuple(features), **changes), self.harvest())

    def finetuned(self, source: TreeClassifier, fraction: float = 0.1) -> TreeClassifier:
        """Return a trained classifier, fine-tuned on a share of this pair's harvest."""
        return self.trained(replace(FINETUNE, fraction=fraction), self.harvest(), source)

    def trained(self, settings: TrainSettings, rows: Harvest, source: TreeClassifier | None = None) -> TreeClassifier:
        """Return a classifier trained on these rows, from `source` if it is given, or the one trained so before."""
        start = [value.tolist() for value in source.state_dict().values()] if source else None
        key = _hash(rows.provenance, asdict(settings), start)
        if key not in self._classifiers:
            folder = checkpoints.root() / "checkpoints" / "local" / "papers" / f"{rows.folder.name}-{key}"
            with alone(folder), progress_bar("train", "steps") as report:
                if folder.is_dir():
                    pass  # trained before, or by another process
                elif source is None:
                    train([rows.folder], folder, settings, progress=report)
                else:
                    finetune([rows.folder], source, folder, settings, progress=report)
            self._classifiers[key] = TreeClassifier.from_pretrained(folder, device=self.pair.target.device)
        return self._classifiers[key]


def study(device: str | None = None, dtype: str | None = None, **settings: Any) -> Study:
    """Return a study of a pair by name; `settings` as in Settings. On a CPU in float32 unless `dtype` says otherwise:
    studies of several drafts read the same texts."""
    chosen = Settings(**settings)
    target_device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    default_dtype = torch.float32 if target_device.type == "cpu" else None
    kind = getattr(torch, dtype) if dtype else default_dtype
    return Study(load_pair(chosen.pair, draft=chosen.draft, device=target_device, dtype=kind), chosen)


def relative(study: Study, name: str, draft: str | None = None) -> Study:
    """Return the same study of another pair, or of the same one with another draft. A pair that comes with other
    prompts is studied on its own ones."""
    target = study.pair.target
    loaded = load_pair(name, draft=draft, device=target.device, dtype=getattr(torch, study.pair.dtype))
    changed = replace(study.settings, pair=name, draft=draft)
    prompts, others = (
        checkpoints.prompts_of(_source_of_prompts(pair), "bench") for pair in (name, study.settings.pair)
    )
    if prompts and prompts != others:
        changed = replace(changed, prompts=(), harvest_prompts=())
    return Study(loaded, changed)


def available(name: str) -> str | None:
    """Return `name` if such a pair can be loaded, else None."""
    return name if name in checkpoints.names_with("target") else None


def nearest(counts: Sequence[Counted], goal: Counted) -> Counted:
    """Return the count whose tau is closest to the goal's."""
    return min(counts, key=lambda counted: abs(counted.tau - goal.tau))


def beta_of(x: float) -> float:
    """Return a threshold in (0, 1) that falls with x, as tau rises; x above -9."""
    return float(f"{1 / (1 + math.exp(x)):.4g}")


def default(pair: str, purpose: Literal["harvest", "bench"]) -> list[Path]:
    """Return prompt files of a pair; the pairs made of the embedded one's corpus share its prompts."""
    return default_prompts(_source_of_prompts(pair), purpose)


def mark_of_prompts(settings: Settings) -> str:
    """Return a hash of the prompt files that a study and those of its relatives may read."""
    files = [*settings.prompts, *settings.harvest_prompts]
    for pair in map(_source_of_prompts, (settings.pair, settings.same, settings.other)):
        files += [*checkpoints.prompts_of(pair, "bench"), *checkpoints.prompts_of(pair, "harvest")]
    return checksum([file_checksum(path) for path in files])[:16]


def mark_of_weights(pair: str) -> str | None:
    """Return a hash of the target and of all drafts of a pair; None for one that is not on this machine."""
    if (target := checkpoints.find(pair, "target")) is None:
        return None
    drafts = checkpoints.find(pair, "draft")
    folders = [target, *(sorted(drafts.parent.glob("draft*")) if drafts else ())]
    return hash_of([path for folder in folders for path in sorted(folder.glob("*")) if path.is_file()])


def _source_of_prompts(pair: str) -> str:
    return "tiny" if pair in PAIRS else pair


def _hash(provenance: dict[str, Any], *further: Any) -> str:
    """Return a hash of everything that rows depend on, and of `further` values."""
    fixed = {name: value for name, value in provenance.items() if name != "environment"}
    return hashlib.sha256(json.dumps([fixed, *further], sort_keys=True).encode()).hexdigest()[:8]


def data_set(path: Path) -> str:
    """Return the name of the data set in a prompt file: the file's, or its folder's where that is EAGLE's
    NAME/question.jsonl."""
    return path.parent.name if path.stem == "question" else path.stem


def evenly(files: Sequence[Path], limit: int | None) -> list[Prompt]:
    """Return at most `limit` prompts (None: all), one of each file in turn, and of each file one of each category in
    turn. `spread` would give a file with eight categories eight times the prompts of one that has one."""
    share = None if limit is None else -(-limit // len(files))
    ranked = [
        (index, number, prompt._replace(file=f"{data_set(path)}.jsonl"))
        for number, path in enumerate(files)
        for index, prompt in enumerate(spread(read_prompts(path), share))
    ]
    return [prompt for _, _, prompt in sorted(ranked, key=lambda item: item[:2])][:limit]


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


def alone(path: Path) -> FileLock:
    """Return the lock under which one process makes what is to lie at `place`; others wait for it, and find it made."""
    locks = checkpoints.cache() / "papers"
    locks.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    return FileLock(locks / f"{name}.lock")
