"""The texts as training rows: which are for validation, and batches of similar length."""

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from safetensors import safe_open
from torch import Tensor, nn

from c2t.models.target.gguf_target import END

TEMPLATE = 24  # tokens that all texts begin with: the system's turn, and the beginning of the user's
HELD = 24  # one question in so many is for validation, with every answer to it


class Text(NamedTuple):
    """ids; how many of them are the question; features and taps of all positions but the last (see `texts.Texts`)."""

    ids: Int[Tensor, " n"]
    question: int
    features: Float[Tensor, "n-1 H"]
    taps: Float[Tensor, "n-1 D"]
    source: str
    temperature: float

    @property
    def held(self) -> bool:
        """True if no head may learn from it: by the question alone, so at every temperature alike."""
        question = self.ids[: self.question].to(torch.int32).numpy().tobytes()
        return int.from_bytes(hashlib.sha256(question).digest()[:4], "little") % HELD == 0


class Rows(NamedTuple):
    """Texts padded on the right. inputs[:, j] and ids[:, j + 1] make slot j, which predicts features[:, j + 1].

    inputs: what the head reads, features or taps. judged: slots whose prediction is compared with the truth; one run of
    them in each text.
    """

    ids: Int[Tensor, "B n"]
    inputs: Float[Tensor, "B n-1 D"]
    features: Float[Tensor, "B n-1 H"]
    judged: Bool[Tensor, "B n-2"]

    def to(self, device: torch.device) -> "Rows":
        """Return the rows on this device."""
        return Rows(*(part.to(device) for part in self))


def read_texts(folder: Path) -> Iterator[Text]:
    """Yield the texts of all shards of a folder; their states stay on disk until they are used."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            about = file.metadata()
            lengths, questions = file.get_tensor("lengths").tolist(), file.get_tensor("questions").tolist()
            ids = file.get_tensor("ids").int().split(lengths)
            features, taps = (file.get_tensor(name).split(lengths) for name in ("features", "taps"))
        for text, question, after, before in zip(ids, questions, features, taps, strict=True):
            yield Text(text, question, after[:-1], before[:-1], about["source"], float(about["temperature"]))


def rows_of(texts: list[Text], inputs: str, questions: bool) -> Rows:
    """Return texts as rows whose inputs are their "features" or "taps". Judged are the answers' positions, from the
    state that the first token is sampled from on; with `questions` also those of the questions."""
    lengths = torch.tensor([len(text.ids) for text in texts])
    ids = nn.utils.rnn.pad_sequence([text.ids for text in texts], batch_first=True, padding_value=END).long()
    predicted = torch.arange(1, ids.shape[1] - 1)  # the position of slot j's prediction
    begin = torch.tensor([min(TEMPLATE, text.question - 1) if questions else text.question - 1 for text in texts])
    judged = (predicted >= begin[:, None]) & (predicted < (lengths - 1)[:, None])
    features = padded([text.features for text in texts])
    read = padded([text.taps for text in texts]) if inputs == "taps" else features
    return Rows(ids, read, features, judged)


def padded(states: list[Float[Tensor, "_ D"]]) -> Float[Tensor, "B n D"]:
    return nn.utils.rnn.pad_sequence(states, batch_first=True).float()


def epoch(texts: list[Text], rows: int, seed: int) -> list[list[Text]]:
    """Return the texts in batches of similar length, in an order of the epoch's own."""
    rng = random.Random(seed)
    ordered = sorted(texts, key=lambda text: len(text.ids) + rng.random() * 30)
    batches = [ordered[start : start + rows] for start in range(0, len(ordered), rows)]
    rng.shuffle(batches)
    return batches
