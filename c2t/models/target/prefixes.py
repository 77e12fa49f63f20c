"""Beginnings of prompts, cached for those that begin alike: a system prompt, the turns of a conversation so far."""

from bisect import bisect_left, insort
from collections import OrderedDict
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
        """Return keys, values and features of the first `count` tokens."""
        return Beginning([cache[:, :, :count] for cache in self.caches], self.features[:count])

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(part.numel() * part.element_size() for part in (*self.caches, self.features))


LIMIT = 256 * 2**20  # default number of bytes


class Prefixes:
    """The prompts that were read last, up to `limit` bytes of what was computed of them.

    A token's keys, values and features depend on the tokens before it alone, so a prompt that begins like another one
    takes them from there. reused: number of tokens taken so far. For one thread.
    """

    def __init__(self, limit: int = LIMIT):
        self.limit, self.reused, self.size = limit, 0, 0  # size: bytes that are in use
        self._cached: OrderedDict[bytes, Beginning] = OrderedDict()  # by `ordered` ids; used last, last
        self._sorted: list[bytes] = []  # the same keys in order

    def longest(self, prompt: Sequence[int]) -> Beginning | None:
        """Return the longest cached beginning of a prompt, without its last token, whose logits are needed; None where
        nothing is cached."""
        wanted = ordered(prompt[:-1])
        shared, best = max(((common(key, wanted), key) for key in self._neighbours(wanted)), default=(0, b""))
        if not shared:
            return None
        self._cached.move_to_end(best)
        self.reused += shared
        return self._cached[best].first(shared)

    def keep(self, prompt: Sequence[int], computed: Beginning) -> None:
        """Cache a prompt instead of the one that it begins with, unless another one begins with it; those that were
        not used for longest go."""
        key = ordered(prompt)
        neighbours = self._neighbours(key)
        if computed.size > self.limit or any(other.startswith(key) for other in neighbours):
            return
        for other in neighbours:
            if key.startswith(other):  # at most one: no cached prompt begins with another
                self._forget(other)
        insort(self._sorted, key)
        self._cached[key] = Beginning([part.clone() for part in computed.caches], computed.features.clone())
        self.size += self._cached[key].size
        while self.size > self.limit:
            self._forget(next(iter(self._cached)))

    def clear(self) -> None:
        """Forget all prompts."""
        self._cached.clear()
        self._sorted.clear()
        self.size = 0

    def _neighbours(self, key: bytes) -> list[bytes]:
        """Return the cached prompts next to this one in the order of their ids.

        No other shares more first tokens with it: what is between two texts begins with all that they share."""
        index = bisect_left(self._sorted, key)
        return self._sorted[max(0, index - 1) : index + 1]

    def _forget(self, key: bytes) -> None:
        del self._sorted[bisect_left(self._sorted, key)]
        self.size -= self._cached.pop(key).size


def ordered(ids: Sequence[int]) -> bytes:
    """Return token ids as bytes that are ordered, and begin alike, as the ids do."""
    return np.asarray(ids, dtype=">u4").tobytes()


def common(first: bytes, second: bytes) -> int:
    """Return how many first tokens two `ordered` texts have in common."""
    length = min(len(first), len(second)) // 4
    differ = np.flatnonzero(np.frombuffer(first, ">u4", length) != np.frombuffer(second, ">u4", length))
    return int(differ[0]) if len(differ) else length


def unpadded(tokens: Int[Tensor, "B P"], lengths: Int[Tensor, " B"]) -> list[list[int]]:
    """Return the prompts as lists."""
    return [row[:length] for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]


def uncached(
    cached: Sequence[Beginning | None], tokens: Int[Tensor, "B P"], lengths: Int[Tensor, " B"]
) -> tuple[Int[Tensor, "B p"], Int[Tensor, " B"]]:
    """Return each prompt's tokens after its cached ones, padded on the right again, and how many they are. cached:
    empty where nothing is."""
    if not any(cached):
        return tokens, lengths
    first = [0 if beginning is None else len(beginning.features) for beginning in cached]
    rest = pad_sequence([row[start:] for row, start in zip(tokens, first, strict=True)], batch_first=True)
    return rest, lengths - torch.tensor(first, device=lengths.device)


def joined(
    cached: Sequence[Beginning | None], new: Float[Tensor, "B p D"], count: Int[Tensor, " B"]
) -> Float[Tensor, "B P D"]:
    """Return the features of whole prompts: the cached ones, then count[r] new ones."""
    if not any(cached):
        return new
    rows = zip(cached, new, count.tolist(), strict=True)
    return pad_sequence(
        [row[:n] if start is None else torch.cat([start.features, row[:n]]) for start, row, n in rows], batch_first=True
    )
