"""Beginnings of prompts, kept for those that begin alike: a system prompt, the turns of a conversation so far."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


class Beginning(NamedTuple):
    """Keys and values of each layer, and the features that a draft reads, of the first t tokens of a text."""

    caches: Sequence[Float[Tensor, "2 H t D"]]
    features: Float[Tensor, "t F"]

    def first(self, count: int) -> "Beginning":
        """Return the same of the first `count` tokens."""
        return Beginning([cache[:, :, :count] for cache in self.caches], self.features[:count])

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(part.numel() * part.element_size() for part in (*self.caches, self.features))


class Kept(NamedTuple):
    """A prompt and what was computed of it."""

    ids: Int[np.ndarray, " t"]
    computed: Beginning


LIMIT = 256 * 2**20  # bytes, of a conversation or a server of which nobody says more


class Prefixes:
    """The prompts that were read last, up to `limit` bytes of what was computed of them.

    A token's keys, values and features depend on the tokens before it alone, so a prompt that begins like another one
    takes them from there. reused: tokens that were, in all. For one thread.
    """

    def __init__(self, limit: int = LIMIT):
        self.limit, self.reused = limit, 0
        self._kept: list[Kept] = []  # the one that was used last is the last

    def longest(self, prompt: Sequence[int]) -> Beginning | None:
        """Return the longest known beginning of a prompt, without its last token, whose logits are wanted; None where
        nothing is known."""
        prompt = np.asarray(prompt)
        shared = [common(kept.ids, prompt[:-1]) for kept in self._kept]
        if not max(shared, default=0):
            return None
        best = int(np.argmax(shared))
        kept = self._kept.pop(best)
        self._kept.append(kept)
        self.reused += shared[best]
        return kept.computed.first(shared[best])

    def keep(self, prompt: Sequence[int], computed: Beginning) -> None:
        """Keep a prompt, in the place of those that it begins with, unless another one begins with it; those that were
        not used for longest go."""
        ids = np.asarray(prompt)
        if computed.size > self.limit or any(common(kept.ids, ids) == len(ids) for kept in self._kept):
            return
        self._kept = [kept for kept in self._kept if common(kept.ids, ids) < len(kept.ids)]
        self._kept.append(Kept(ids, Beginning([part.clone() for part in computed.caches], computed.features.clone())))
        while self.size > self.limit:
            del self._kept[0]

    def clear(self) -> None:
        """Forget all prompts."""
        self._kept.clear()

    @property
    def size(self) -> int:
        """Bytes that are in use."""
        return sum(kept.computed.size for kept in self._kept)


def common(one: Int[np.ndarray, " m"], other: Int[np.ndarray, " n"]) -> int:
    """Return how many first tokens two texts have in common."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length


def unpadded(tokens: Int[Tensor, "B P"], lengths: Int[Tensor, " B"]) -> list[list[int]]:
    """Return the prompts as lists."""
    return [row[:length] for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]


def behind(
    known: Sequence[Beginning | None], tokens: Int[Tensor, "B P"], lengths: Int[Tensor, " B"]
) -> tuple[Int[Tensor, "B p"], Int[Tensor, " B"]]:
    """Return each prompt's tokens that are not known, padded on the right again, and how many they are. known: empty
    where nothing is."""
    if not any(known):
        return tokens, lengths
    first = [0 if each is None else len(each.features) for each in known]
    rest = pad_sequence([row[start:] for row, start in zip(tokens, first, strict=True)], batch_first=True)
    return rest, lengths - torch.tensor(first, device=lengths.device)


def joined(
    known: Sequence[Beginning | None], new: Float[Tensor, "B p D"], count: Int[Tensor, " B"]
) -> Float[Tensor, "B P D"]:
    """Return the features of whole prompts: the known ones, then count[r] new ones."""
    if not any(known):
        return new
    rows = zip(known, new, count.tolist(), strict=True)
    return pad_sequence(
        [row[:n] if each is None else torch.cat([each.features, row[:n]]) for each, row, n in rows], batch_first=True
    )
