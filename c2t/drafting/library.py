"""Texts in a folder: a shard for each batch of them, and which are for validation."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from c2t.drafting.texts import Texts
from c2t.errors import InputError, one_line
from c2t.storage.atomic import new_file
from c2t.storage.checksum import unit_hash

VALIDATION = 1 / 16  # share of the questions, each with every answer to it


@runtime_checkable
class Text(Protocol):
    """One text of the target: ids; how many of them are the question; the target's most probable token at every
    generated position; states at all m positions except the last one, after the final norm and as the head reads them.

    turn: the question in words. learned: False if it is for validation. answer: the generated tokens.
    """

    @property
    def ids(self) -> Int[Tensor, " n"]: ...
    @property
    def question(self) -> int: ...
    @property
    def best(self) -> Int[Tensor, " g"]: ...
    @property
    def features(self) -> Float[Tensor, "m H"]: ...
    @property
    def inputs(self) -> Float[Tensor, "m D"]: ...
    @property
    def turn(self) -> str: ...
    @property
    def temperature(self) -> float: ...
    @property
    def learned(self) -> bool: ...
    @property
    def answer(self) -> Int[Tensor, " g"]: ...


class WrittenText(NamedTuple):
    """A text that the target has written here, and the source of its question."""

    ids: Int[Tensor, " n"]
    question: int
    best: Int[Tensor, " g"]
    features: Float[Tensor, "n-1 H"]
    inputs: Float[Tensor, "n-1 D"]
    turn: str
    source: str
    temperature: float
    learned: bool

    @property
    def answer(self) -> Int[Tensor, " g"]:
        return self.ids[self.question :]


def held_out(questions: Iterable[str]) -> set[str]:
    """Return the questions for validation: at least one, and not all. A hash of each decides: where there are enough,
    none is judged by after it was learned from, whatever shards and rows come and go."""
    hashes = {question: unit_hash(question) for question in questions}
    ranked = sorted(hashes, key=hashes.__getitem__)
    below = sum(value < VALIDATION for value in hashes.values())
    return {*ranked[: min(max(below, 1), len(ranked) - 1)]}


class Corpus:
    """Texts to learn from and to judge by.

    origin: folder of rows that they are read from, "" for texts of the target's own. written: tokens of their answers.
    shared: number of tokens that all texts begin with: those of the chat template.
    """

    def __init__(self, texts: Sequence[Text] = (), origin: str = ""):
        self.texts, self.origin = list(texts), origin

    @property
    def written(self) -> int:
        return sum(len(text.answer) for text in self.texts)

    @property
    def learned(self) -> list[Text]:
        """The texts that heads learn from."""
        return [text for text in self.texts if text.learned]

    @property
    def validation(self) -> list[Text]:
        return [text for text in self.texts if not text.learned]

    @property
    def shared(self) -> int:
        first = self.texts[0].ids
        same = [int((text.ids[: len(first)] == first[: len(text.ids)]).cumprod(0).sum()) for text in self.texts]
        return min(*same, *(text.question - 1 for text in self.texts))


class Library(Corpus):
    """The texts of a folder; their states stay on disk until they are used. taps: states of tapped layers are stored,
    too, and shards without them are left out.

    bytes: of the shards. asked: questions of a source at a temperature.
    """

    def __init__(self, folder: Path, taps: bool):
        super().__init__()
        self.folder, self.taps = folder, taps
        self.asked: Counter[tuple[str, float]] = Counter()
        self.number = self.bytes = 0
        self._turns: set[str] = set()
        self._written: list[WrittenText] = []  # whatever they are for
        for path in sorted(folder.glob("*.safetensors")):
            self._read(path)
        self._split()

    def add(self, texts: Texts, turns: list[str], source: str, temperature: float) -> None:
        """Store a batch of texts as the next shard."""
        # 32 bits: vocabularies have more than 65,536 tokens.
        tensors = {name: getattr(texts, name).int() for name in ("ids", "lengths", "questions", "best")}
        tensors["features"] = texts.features.bfloat16()
        if self.taps:
            tensors["taps"] = texts.taps.bfloat16()
        about = {"turns": json.dumps(turns), "source": source, "temperature": str(temperature)}
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self.number:05d}.safetensors"
        with new_file(path) as new:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, new, about)
        self._read(path)
        self._split()

    def _read(self, path: Path) -> None:
        """Take a shard in. InputError for a damaged one."""
        try:
            with safe_open(path, "pt") as file:
                about, stored = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            turns, source, temperature = json.loads(about["turns"]), about["source"], float(about["temperature"])
            lengths, questions = stored["lengths"].tolist(), stored["questions"].tolist()
            ids, features = stored["ids"].split(lengths), stored["features"].split(lengths)
            best = stored["best"].split([n - q for n, q in zip(lengths, questions, strict=True)])
            inputs = stored["taps"].split(lengths) if self.taps and "taps" in stored else features
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"{path}: not a shard of texts ({one_line(error)}); delete the file") from error
        self.number = int(path.stem) + 1
        self.bytes += path.stat().st_size
        self._turns.update(turns)  # of shards without taps, too: one kind of head begins from another's
        if not self.taps or "taps" in stored:
            self.asked[source, temperature] += len(turns)
            for turn, text, count, tops, after, read in zip(turns, ids, questions, best, features, inputs, strict=True):
                self._written.append(
                    WrittenText(text, count, tops, after[:-1], read[:-1], turn, source, temperature, learned=True)
                )

    def _split(self) -> None:
        """Say of each text what it is for. Questions of shards that are left out have been learned from, too, and are
        split with the others where that leaves texts for both."""
        here = {text.turn for text in self._written}
        out = held_out(self._turns)
        if not 0 < len(here & out) < len(here):
            out = held_out(here)
        self.texts = [text._replace(learned=text.turn not in out) for text in self._written]
