"""The target's own texts, written on a device by the thousand: ids alone, whose states are computed when heads learn.

A file has the texts of one batch, in the layout of `texts.Texts` without states, and each text's temperature.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

from c2t.models.gguf_target import END
from pipelines.pair.smollm2 import texts
from pipelines.pair.smollm2.device_llama import DeviceLlama
from pipelines.pair.smollm2.questions import BENCH, Left, first_turns, questions
from pipelines.pair.smollm2.shards import Text
from pipelines.pair.smollm2.texts import ANSWER_TOKENS, INVENTED_TOKENS, QUESTION_TOKENS, TEMPERATURES, encode
from pipelines.pair.smollm2.writer import Writer

ROWS = 2048  # texts that are written at once: 24 GB of keys and values; a step's kernels are long enough to fill a GPU
FEW = ROWS * texts.FEW // texts.BATCH  # texts still being written when a batch ends
# Shares of the texts. The other sources have some ten thousand questions together, and are answered again and again.
SHARES = {"invented": 0.70, "code": 0.15, "gsm8k": 0.08, "instructions": 0.07}


class Asked(NamedTuple):
    """A question, and the temperature of its answer."""

    ids: list[int]
    temperature: float


class Source(Protocol):
    """Questions without end."""

    def take(self, count: int) -> list[Asked]:
        """Return the next questions."""
        ...


class Pool:
    """A source of questions that are known: all are asked at one temperature each, then at the next one, so that a
    question's greedy answer, which would be the same, is written once."""

    def __init__(self, known: list[list[int]]):
        self.known, self.asked = known, 0

    def take(self, count: int) -> list[Asked]:
        """See `Source.take`."""
        self.asked += count
        return [self._at(number) for number in range(self.asked - count, self.asked)]

    def _at(self, number: int) -> Asked:
        turn, place = divmod(number, len(self.known))
        possible = TEMPERATURES if turn < len(TEMPERATURES) else TEMPERATURES[1:]
        return Asked(self.known[place], possible[(turn + place) % len(possible)])


class Invented:
    """Users' turns that the target writes at T = 1 from its empty template, each asked once. Which of them end, and ask
    no bench prompt, a second thread finds out while the device writes answers."""

    def __init__(self, writer: Writer, tokenizer: PreTrainedTokenizerBase, left: Left, beside: ThreadPoolExecutor):
        self.writer, self.tokenizer, self.left, self.beside = writer, tokenizer, left, beside
        self.before, self.seen = texts.empty_turn(tokenizer), set[str]()
        self.waiting: list[list[int]] = []
        self.coming = self._more()

    def take(self, count: int) -> list[Asked]:
        """See `Source.take`."""
        while len(self.waiting) < count:
            self.waiting += self.coming.result()
            self.coming = self._more()
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return [Asked(ids, TEMPERATURES[place % len(TEMPERATURES)]) for place, ids in enumerate(taken)]

    def _more(self) -> Future[list[list[int]]]:
        rows = len(self.writer.rows)
        written = self.writer.write(
            [self.before] * rows, [1.0] * rows, INVENTED_TOKENS, rows * texts.FEW // texts.BATCH
        )
        return self.beside.submit(self._good, written)

    def _good(self, written: list[list[int]]) -> list[list[int]]:
        found = []
        for ids in written:
            turn = self.tokenizer.decode(ids[len(self.before) : -1]).strip()
            if ids[-1] == END and turn in self.left and turn not in self.seen:
                self.seen.add(turn)
                found.append(encode(self.tokenizer, turn))
        return found


def write_texts(
    seconds: float, llama: DeviceLlama, tokenizer: PreTrainedTokenizerBase, data: Path, folder: Path, seed: int
) -> None:
    """Write files of texts until so many seconds are over, of the source that lacks most of its share."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    known, _, left = questions(data)
    sources: dict[str, Source] = {name: pool(turns, tokenizer, seed) for name, turns in known.items()}
    writer, count = Writer(llama, ROWS, QUESTION_TOKENS + ANSWER_TOKENS), Counter[str]()
    begin = time.monotonic()
    with ThreadPoolExecutor(1) as beside:
        sources["invented"] = Invented(writer, tokenizer, left, beside)
        while (spent := time.monotonic() - begin) < seconds:
            name = min(SHARES, key=lambda source: count[source] / SHARES[source])
            asked = sources[name].take(ROWS)
            written = writer.write(*zip(*asked, strict=True), ANSWER_TOKENS, FEW)
            save_ids(written, asked, name, folder / f"{name}_{seed}_{count[name]:03d}.safetensors")
            count[name] += 1
            new, took = sum(map(len, written)) - sum(len(each.ids) for each in asked), time.monotonic() - begin - spent
            print(f"{spent:.0f} s: {name}, {new} tokens in {took:.1f} s, {new / took:.0f} a second", flush=True)


def pool(turns: list[str], tokenizer: PreTrainedTokenizerBase, seed: int) -> Pool:
    """Return the questions that are not too long, in an order of the seed's own."""
    known = [ids for turn in turns if len(ids := encode(tokenizer, turn)) <= QUESTION_TOKENS]
    random.Random(seed).shuffle(known)
    return Pool(known)


def write_bench(llama: DeviceLlama, tokenizer: PreTrainedTokenizerBase, data: Path, folder: Path) -> None:
    """Write the greedy answers to the first turns of the bench prompts, a file a set: for judging only."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in BENCH:
        asked = [Asked(encode(tokenizer, turn), 0.0) for turn in first_turns(data / name / "question.jsonl")]
        longest = max(len(each.ids) for each in asked)
        writer = Writer(llama, len(asked), longest + texts.BENCH_TOKENS)
        written = writer.write(*zip(*asked, strict=True), texts.BENCH_TOKENS, 0)
        save_ids(written, asked, name, folder / f"{name}.safetensors")


def save_ids(written: list[list[int]], asked: list[Asked], source: str, path: Path) -> None:
    """Write a file of texts: two bytes a token, so a batch has less than 2 MB."""
    tensors = {
        "ids": torch.tensor([token for ids in written for token in ids]).to(torch.uint16),
        "lengths": torch.tensor([len(ids) for ids in written], dtype=torch.int32),
        "questions": torch.tensor([len(each.ids) for each in asked], dtype=torch.int32),
        "temperatures": torch.tensor([each.temperature for each in asked]),
    }
    save_file(tensors, path, {"source": source})


def read_ids(folder: Path) -> Iterator[Text]:
    """Yield the texts of all files of a folder, without states."""
    nothing = torch.empty(0, 0)
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            lengths, asked, temperatures = (
                file.get_tensor(name).tolist() for name in ("lengths", "questions", "temperatures")
            )
            ids, source = file.get_tensor("ids").int().split(lengths), file.metadata()["source"]
        for text, question, temperature in zip(ids, asked, temperatures, strict=True):
            yield Text(text, question, nothing, nothing, source, temperature)


def counted(found: list[Text]) -> dict[str, dict[str, int]]:
    """Return how many answers and written tokens there are of each source."""
    answers, tokens = Counter[str](), Counter[str]()
    for text in found:
        answers[text.source] += 1
        tokens[text.source] += len(text.ids) - text.question
    return {"answers": answers, "tokens": tokens}
