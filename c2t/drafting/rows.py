"""Texts as training rows, in batches of similar length."""

import random
from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from c2t.drafting.library import Text


class Rows(NamedTuple):
    """Texts padded on the right. inputs[:, j] and ids[:, j + 1] make slot j, which predicts features[:, j + 1].

    inputs: what the head reads. judged: slots whose prediction is compared with the truth; one run of them in each
    text.
    """

    ids: Int[Tensor, "B n"]
    inputs: Float[Tensor, "B n-1 D"]
    features: Float[Tensor, "B n-1 H"]
    judged: Bool[Tensor, "B n-2"]

    def to(self, device: torch.device) -> "Rows":
        """Return the rows on this device."""
        return Rows(*(part.to(device) for part in self))


def rows_of(texts: list[Text], begin: int | None = None) -> Rows:
    """Return texts as rows. Judged are the answers' positions, from the state that the first token is sampled from on;
    with `begin` also those of the questions after so many tokens, which all texts share."""
    lengths = torch.tensor([len(text.ids) for text in texts])
    ids = nn.utils.rnn.pad_sequence([text.ids for text in texts], batch_first=True).long()
    predicted = torch.arange(1, ids.shape[1] - 1)  # the position of slot j's prediction
    first = torch.tensor([text.question - 1 if begin is None else min(begin, text.question - 1) for text in texts])
    judged = (predicted >= first[:, None]) & (predicted < (lengths - 1)[:, None])
    return Rows(ids, padded(text.inputs for text in texts), padded(text.features for text in texts), judged)


def best_of(texts: list[Text], judged: Bool[Tensor, "B n"]) -> Int[Tensor, " m"]:
    """Return the target's most probable token after the prediction of each of these slots, which are of answers."""
    best = torch.zeros_like(judged, dtype=torch.long)
    for row, text in enumerate(texts):
        start = text.question - 2  # the slot before the first answer's token; of a question of one token there is none
        best[row, max(0, start) : len(text.ids) - 2] = text.best[max(0, -start) :]
    return best[judged]


def thinned(rows: Rows, every: int) -> Rows:
    """Return rows of which one in so many judged slots is judged, the first one of each text among them."""
    return rows._replace(judged=rows.judged & ((rows.judged.cumsum(1) - 1) % every == 0))


def padded(states: Iterable[Float[Tensor, "_ D"]]) -> Float[Tensor, "B n D"]:
    """Return states of texts side by side, in float32."""
    return nn.utils.rnn.pad_sequence(list(states), batch_first=True).float()


def epoch(texts: list[Text], rows: int, seed: int) -> list[list[Text]]:
    """Return the texts in batches of similar length, in an order of the epoch's own."""
    rng = random.Random(seed)  # noqa: S311 - an order is no secret
    ordered = sorted(texts, key=lambda text: len(text.ids) + rng.random() * 30)
    batches = [ordered[start : start + rows] for start in range(0, len(ordered), rows)]
    rng.shuffle(batches)
    return batches
