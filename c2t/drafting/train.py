"""Train a draft head for a target: rounds of generating texts and learning from them, each of which ends with a usable
head in its folder; resumable."""

import copy
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from c2t.drafting.kinds import KINDS, Given, widened
from c2t.drafting.learner import RATE, Learner, frequent
from c2t.drafting.library import Corpus, Library
from c2t.drafting.ngram_weights import learn_weights
from c2t.drafting.questions import TEMPERATURES, Source, encoded
from c2t.drafting.texts import write
from c2t.errors import InputError, one_line
from c2t.models.drafts.block import BlockHead
from c2t.models.drafts.eagle import Head
from c2t.models.drafts.eagle3 import default_taps
from c2t.models.drafts.heads import embedding_of
from c2t.models.drafts.medusa import MedusaHead
from c2t.models.loading.eagle_checkpoint import load_head, save_head
from c2t.models.loading.fingerprint import weights_fingerprint
from c2t.models.loading.hub import fetch
from c2t.models.loading.load import Pair
from c2t.models.loading.names import parse, place_of
from c2t.models.loading.trained import FOLDER, in_cache, trained_for, update_provenance
from c2t.models.target.target import Target
from c2t.output.progress import ProgressCallback
from c2t.output.signals import Stopped
from c2t.storage import paths
from c2t.storage.atomic import check_writable_name
from c2t.storage.checked import CLOSED, check_fields, from_json, read_file
from c2t.storage.checksum import checksum
from c2t.storage.lock import locked

TRAINING, TEXTS = "training", "training/texts"  # folders of what is needed to go on: weights, texts
WEIGHTS, PROGRESS = "weights.safetensors", "progress.json"
QUESTION_TOKENS, ANSWER_TOKENS = 512, 160  # at most; longer answers are cut
FIRST_BATCH, LARGEST_BATCH = 16, {"cpu": 64, "cuda": 256}  # texts generated together
MOST_BYTES = 8 * 2**30  # of texts
LAST_STEPS = 1 / 6  # share of the time for what comes after learning: n-grams, a classifier, tuning
ROUNDS, SHORTEST, LONGEST = 12, 15.0, 120.0  # number of rounds; seconds of one
GENERATING, UNTIL = 0.5, 0.75  # share of a round for new texts, up to this share of the time
MOST_NGRAMS = 1 / 4  # share of the last minutes for evidence on n-grams
JUDGED = 48  # texts for validation, at most
BEGUN_RATE = 1e-3  # of a head that goes on from another one


@dataclass(frozen=True, kw_only=True)
class DraftSettings:
    """Settings of a training. kind: of the head. minutes: of the whole training, earlier runs in this folder
    included."""

    kind: str = "eagle"
    minutes: Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False)] = 30.0

    def __post_init__(self):
        check_fields(self)
        if self.kind not in KINDS:
            raise InputError(f"no kind of head is called {self.kind!r}; known: {', '.join(KINDS)}")

    @property
    def seconds(self) -> float:
        """Time for texts and learning."""
        return self.minutes * 60 * (1 - LAST_STEPS)

    @property
    def last_minutes(self) -> float:
        """Time for what comes after."""
        return self.minutes * LAST_STEPS


@dataclass(frozen=True)
class Progress:
    """Figures of a training: seconds, steps and positions learned from; the agreement of the best head so far, the
    number of texts that it was judged on, and a hash of their questions (asked). data: folder of the rows that it
    learns from, "" for texts. begun: hash of the weights that it began from, "" for none, None in older files."""

    __pydantic_config__ = CLOSED
    seconds: float = 0.0
    steps: int = 0
    positions: int = 0
    agreement: float = 0.0
    judged: int = 0
    data: str = ""
    begun: str | None = None
    asked: str = ""


class DraftTraining(NamedTuple):
    """Result of a training. head: its folder. written: tokens of the texts. validation: questions that the head has not
    learned from. end: of the last minutes, by `time.monotonic`."""

    head: Path
    progress: Progress
    written: int
    validation: list[str]
    end: float


def check_out(out: Path, mark: str) -> None:
    """Raise InputError unless `out` is absent, empty, or holds heads for the target of this fingerprint."""
    check_writable_name(out)
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give a folder")
    if not out.is_dir() or not any(out.iterdir()):
        return
    weights = trained_for(out)
    if weights is None:
        raise InputError(f"{out} holds something else than trained heads: choose another folder with --out")
    if weights != mark:
        raise InputError(f"{out} holds a head for other weights than the target's: choose another folder with --out")


def train(
    pair: Pair,
    out: Path,
    sources: Mapping[str, Source],
    settings: DraftSettings = DraftSettings(),
    begin: str | Path | None = None,
    progress: ProgressCallback = lambda done, of, doing: None,
    data: Path | None = None,
) -> DraftTraining:
    """Train a head for the pair's target in the folder `out`, and the weights of its n-grams; go on from what is
    there. sources: of questions, asked in turn. begin: a head to begin from. data: a folder of speculators' rows, in
    place of texts (`c2t.drafting.speculators_rows`).

    InputError for settings, a folder, rows or a head that do not fit, before anything is written.
    """
    folder = fetch(pair.sources["target"][0])
    mark = weights_fingerprint(folder)
    check_out(out, mark)
    kind = KINDS[settings.kind]
    pair.target.tap(default_taps(pair.target.num_layers) if kind.taps else ())
    begun = None if begin is None else read_begun(begin, settings.kind, pair)
    origin = "" if begin is None else weights_fingerprint(fetch(place_of(parse(begin))))
    rows: Corpus | None = None
    if data is not None:
        from c2t.drafting.speculators_rows import SpeculatorsRows  # noqa: PLC0415 - only rows need pyarrow

        sources, rows = {}, SpeculatorsRows(data, pair, settings.kind)
    with locked(out), noted(out / kind.part):
        run = TrainingRun(pair, out, sources, settings, begun, origin, progress, rows)
        run.until_the_end()
        link_from_cache(folder, out)
        texts, last = run.corpus.validation, settings.last_minutes * 60
        end = time.monotonic() + last
        learn_weights(out / kind.part, pair.target, texts, end - (1 - MOST_NGRAMS) * last)
        asked = list(dict.fromkeys(text.turn for text in texts))
        return DraftTraining(out / kind.part, run.done, run.corpus.written, asked, end)


@contextmanager
def noted(head: Path) -> Iterator[None]:
    """Context in which a signal's line says what is on disk."""
    try:
        yield
    except Stopped as stopped:
        there = "texts, and no head yet" if (head.parent / TEXTS).exists() else "no head yet"
        there = "the best head so far" if (head / "config.json").exists() else there
        stopped.add_note(f"{head} has {there}; the same command goes on")
        raise


def read_begun(begin: str | Path, kind: str, pair: Pair) -> Head:
    """Return the head to begin from. InputError for another kind or form than is trained here, and for one of another
    shape of target; a warning for one that was trained for other weights."""
    named = parse(begin)
    if str(named.name) != str(begin):
        raise InputError(f"{begin}: a head begins from weights alone: leave what follows after {named.name} out")
    folder = fetch(place_of(named))
    head = loaded(folder, pair.target)
    if type(head) is not KINDS[kind].type:
        raise InputError(f"{folder}: a head of another kind than {kind}: give --kind, or another head")
    if not KINDS[kind].trainable(head):
        raise InputError(f"{folder}: heads of this form cannot be trained further: leave --begin out for a new one")
    head.taps(pair.target.num_layers)  # InputError for a target of another depth
    if isinstance(head, MedusaHead):
        head.layer_of = None  # its layer is stored with it: next to it may be another one, or none
    if trained_for(folder.parent) not in (None, weights_fingerprint(fetch(pair.sources["target"][0]))):
        warnings.warn(
            f"{folder} was trained for other weights than those of {pair.name}: it begins there", stacklevel=3
        )
    return head


def loaded(folder: Path, target: Target) -> Head:
    """Return a head in float32, to learn further. Its embedding becomes the target's, as it is stored without one.
    InputError for a head of another width."""
    embedding = embedding_of(target)
    head = load_head(folder, embedding, target.lm_head)
    if head.embed_tokens.weight.shape != embedding.weight.shape:
        raise InputError(f"{folder}: its embedding is not as wide as the target's: such a head cannot learn further")
    head.embed_tokens = None
    head = head.float()
    if isinstance(head, BlockHead):
        head = widened(head)
    head.embed_tokens = embedding
    return head


def link_from_cache(target: Path, out: Path) -> None:
    """Let commands find a folder of heads that is neither the target's own nor in the cache, by a link there."""
    link = in_cache(target)
    if out.resolve() in ((target / FOLDER).resolve(), link.resolve()) or (link.exists() and not link.is_symlink()):
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(out.resolve(), target_is_directory=True)


class TrainingRun:
    """One call of `train`: rounds of generating and learning, from what is in the folder. rows: to learn from, in place
    of texts that are generated.

    done: what was learned here, earlier calls included.
    """

    def __init__(
        self,
        pair: Pair,
        out: Path,
        sources: Mapping[str, Source],
        settings: DraftSettings,
        begun: Head | None,
        origin: str,
        progress: ProgressCallback,
        rows: Corpus | None,
    ):
        self.mark = weights_fingerprint(fetch(pair.sources["target"][0]))
        self.pair, self.out, self.settings, self.progress = pair, out, settings, progress
        self.kind, self.sources, self.begun, self.origin = KINDS[settings.kind], dict(sources), begun, origin
        self.folder = out / TRAINING / settings.kind
        if settings.kind == "medusa" and begun is None and not self._stored("eagle"):
            raise InputError(f"{out}: a Medusa-style head has the layer of an EAGLE-1 head: train that first")
        self.library = Library(out / TEXTS, self.kind.taps)
        self.corpus = rows or self.library
        self.done = self._read_progress()
        self.learner: Learner | None = None
        self.batch = FIRST_BATCH

    def until_the_end(self) -> None:
        """Run rounds until the time is used up; each leaves the best head so far in its folder."""
        length = min(max(self.settings.seconds / ROUNDS, SHORTEST), LONGEST)
        while self.done.seconds < self.settings.seconds:
            start, before = time.monotonic(), self.done.seconds
            left = min(length, self.settings.seconds - before)

            def elapsed(start: float = start, before: float = before) -> float:
                return before + time.monotonic() - start

            enough = self.corpus.learned and self.corpus.validation
            if not enough or (self.sources and elapsed() < UNTIL * self.settings.seconds):
                self._generate(start + GENERATING * left, elapsed)
                left *= 1 - GENERATING
            self._learn(time.monotonic() + left, elapsed)
            self._keep(elapsed())

    def _generate(self, until: float, elapsed: Callable[[], float]) -> None:
        """Generate texts until `time.monotonic` says so, and at least one batch. InputError if no source has a question
        that fits, or all are one."""
        largest = LARGEST_BATCH.get(self.pair.target.device.type, LARGEST_BATCH["cpu"])
        while self.sources and self.library.bytes < MOST_BYTES:
            if time.monotonic() >= until and self.library.texts:
                break
            start = time.monotonic()
            names, number = list(self.sources), self.library.number
            source, temperature = names[number % len(names)], TEMPERATURES[number // len(names) % len(TEMPERATURES)]
            before = self.library.asked[source, temperature]
            turns = self.sources[source](self.batch, before, temperature)
            longest = min(QUESTION_TOKENS, self.pair.target.max_positions - ANSWER_TOKENS)
            asked = [(turn, ids) for turn in turns if 1 < len(ids := encoded(self.pair, turn)) <= longest]
            if asked:
                deadline = max(until, start + SHORTEST)
                prompts, ends = [ids for _, ids in asked], self.pair.target.eos
                texts = write(self.pair.target, prompts, temperature, ANSWER_TOKENS, len(asked) // 6, ends, deadline)
                update_provenance(self.out, {"target_weights": self.mark})  # first: without it nobody goes on there
                self.library.add(texts, [turn for turn, _ in asked], source, temperature)
                quick = time.monotonic() - start < LONGEST / 2
                self.batch = min(2 * self.batch, largest) if quick else max(1, self.batch // 2)
            elif temperature == 0 and any(self.library.asked[source, other] for other in TEMPERATURES[1:]):
                self.library.number += 1  # all greedy answers are there; others differ every time
            else:
                del self.sources[source]
            self._report(elapsed(), "generates texts")
        if not (self.library.learned and self.library.validation):
            raise InputError("fewer than two questions gave texts, to learn from and to judge by: give more: --prompts")

    def _learn(self, end: float, elapsed: Callable[[], float]) -> None:
        learner = self._learner()
        learner.learn(
            self.corpus.learned,
            self.tokens,
            self.corpus.shared,
            end,
            lambda: elapsed() / self.settings.seconds,
            lambda: self._report(elapsed(), "learns"),
        )

    def _learner(self) -> Learner:
        """Return the learner, which the first round makes once there are texts."""
        target, vocabulary = self.pair.target, len(self.pair.target.lm_head.weight)
        if self.learner is None:
            texts, head = self.corpus.learned, self.begun
            self.tokens = frequent(texts, vocabulary)
            if (self.folder / WEIGHTS).is_file():
                head = self._stored(self.settings.kind)
            if head is None:
                eagle: Any = self._stored("eagle")
                head = self.kind.make(Given(target, embedding_of(target), self.tokens, texts, eagle))
            rate = RATE if self.begun is None else BEGUN_RATE
            self.learner = Learner(head.to(target.device), self.kind, target.lm_head, rate)
            self._read_weights(self.learner)
        if not self.kind.own_tokens:
            self.tokens = frequent(self.corpus.learned, vocabulary)
        elif self.learner.head.tokens is not None:  # they stay the same
            self.tokens = self.learner.head.tokens.cpu()
        return self.learner

    def _stored(self, kind: str) -> Head | None:
        """Return the head of this kind that the folder has already; None if it has none."""
        folder = self.out / KINDS[kind].part
        return loaded(folder, self.pair.target) if (folder / "config.json").exists() else None

    def _keep(self, seconds: float) -> None:
        """Judge the round's head, store it if it is the best so far, and store what is needed to go on."""
        learner, validation = self.learner, self.corpus.validation[:JUDGED]
        agreement = learner.agreement(validation, self.tokens)
        # Agreements on different texts do not compare; and the head that learned longest is the better guess then.
        asked = checksum([text.turn for text in validation])[:16]
        best = asked != self.done.asked or agreement >= self.done.agreement
        self.done = Progress(
            seconds,
            learner.steps,
            learner.positions,
            agreement if best else self.done.agreement,
            len(validation),
            self.corpus.origin,
            self.origin,
            asked,
        )
        update_provenance(self.out, {"target_weights": self.mark})
        if best:  # first: a signal between the two would leave figures of a head that is nowhere
            with learner.averaged() as head, paths.replacing(self.out / self.kind.part) as folder:
                save_head(self._as_stored(head), folder)
        with paths.replacing(self.folder) as folder:
            save_file({name: tensor.contiguous() for name, tensor in learner.state().items()}, folder / WEIGHTS)
            (folder / PROGRESS).write_text(json.dumps(asdict(self.done)))
        self._report(seconds, "keeps the best head")

    def _as_stored(self, head: Head) -> Head:
        """Return a copy in bf16, with the tokens that it is to draft from."""
        shared, head.embed_tokens = head.embed_tokens, None
        stored = copy.deepcopy(head).bfloat16()
        head.embed_tokens = shared
        if not self.kind.own_tokens and len(self.tokens) < len(self.pair.target.lm_head.weight):
            stored.restrict(self.tokens)
        return stored

    def _report(self, seconds: float, doing: str) -> None:
        agreement = f"agreement {self.done.agreement:.2f}; " * (self.done.judged > 0)
        self.progress(
            min(round(seconds), round(self.settings.seconds)), round(self.settings.seconds), f"{agreement}{doing}"
        )

    def _read_progress(self) -> Progress:
        """Return the figures of earlier calls. InputError if they learned from other rows than this one, or from texts
        and this one does not, and if they began from another head."""
        file, origin = self.folder / PROGRESS, self.corpus.origin
        if not file.is_file():
            return Progress()
        done = from_json(Progress, read_file(file), file)
        if done.data != origin:
            before = f"the rows in {done.data}" if done.data else "texts that the target generated"
            raise InputError(f"{self.out} has a head that learned from {before}: go on so, or choose another --out")
        if done.begun not in (None, self.origin):  # it would go on from its own weights, at the other one's rate
            before = "another head: give that one with --begin" if done.begun else "nothing: leave --begin out"
            raise InputError(f"{self.out} has a head that began from {before}, or choose another --out")
        return done

    def _read_weights(self, learner: Learner) -> None:
        """Give the learner what an earlier call has learned here. InputError for a damaged file."""
        file = self.folder / WEIGHTS
        if not file.is_file():
            return
        try:
            learner.take(load_file(file), self.done.steps, self.done.positions)
        except (SafetensorError, OSError, KeyError, RuntimeError) as error:
            raise InputError(f"{file} is damaged ({one_line(error)}): delete {self.folder} to begin again") from error
