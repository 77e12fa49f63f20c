"""A constraint that is a table of which token may follow which: the law of the text under it is known exactly."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from c2t.errors import InputError
from c2t.grammars.constraint import Vocabulary
from c2t.grammars.row_constraint import RowConstraint
from c2t.kernels.masks import Mask


@cache
def followers(vocabulary: int, seed: int) -> Tensor:
    """(V + 1, V): which tokens may follow each token; the last row is of the text's beginning. A third of the tokens
    have one follower, the others have half of all."""
    random = torch.Generator().manual_seed(seed)
    allowed = torch.rand(vocabulary + 1, vocabulary, generator=random) < 0.5
    single = torch.rand(vocabulary + 1, generator=random) < 1 / 3
    one = torch.nn.functional.one_hot(torch.randint(vocabulary, (vocabulary + 1,), generator=random), vocabulary)
    allowed = torch.where(single[:, None], one.bool(), allowed)
    allowed[:, 0] |= ~allowed.any(1)
    return allowed


@dataclass(frozen=True)
class TableConstraint:
    """dead_end: a token after which nothing may follow; -1 for the text's beginning."""

    seed: int = 0
    dead_end: int | None = None

    def matcher(self, vocabulary: Vocabulary) -> "TableMatcher":
        return TableMatcher(followers(vocabulary.size, self.seed), vocabulary.eos, self.dead_end)


class TableMatcher:
    """Refuses loudly what no matcher may be asked: a forbidden token, one that ends the text, too long a rollback."""

    def __init__(self, allowed: Tensor, eos: frozenset[int], dead_end: int | None):
        self.allowed, self.eos, self.dead_end, self.text = allowed, eos, dead_end, []

    def consume(self, tokens: Sequence[int]) -> None:
        assert tokens
        for token in tokens:
            assert self._following()[token], f"{token} may not follow {self.text}"
            assert token not in self.eos, "the end of the text"
            self.text.append(token)

    def rollback(self, count: int) -> None:
        assert 0 < count <= len(self.text)
        del self.text[-count:]

    def fill(self, mask: Mask) -> None:
        self._before_an_answer()
        bits = np.zeros(32 * len(mask.words), np.uint8)
        bits[: self.allowed.shape[1]] = self._following().numpy()
        mask.words[:] = np.packbits(bits, bitorder="little").view(np.uint32)

    def allows(self, tokens: Sequence[int]) -> list[bool] | None:
        self._before_an_answer()
        assert not TableMatcher.forced(self), "asked where one token must follow"
        return [bool(self._following()[token]) for token in tokens]

    def forced_text(self) -> bytes:
        return str(self.forced()).encode() if self.forced() else b""

    def forced(self) -> list[int]:
        self._before_an_answer()
        tokens: list[int] = []
        for _ in range(6):
            following = self._following(*tokens[-1:])
            token = int(following.int().argmax())
            if int(following.sum()) != 1 or token in self.eos:
                break
            tokens.append(token)
        return tokens

    def _before_an_answer(self) -> None:
        """Raise InputError to give up."""

    def _following(self, *last: int) -> Tensor:
        token = last[0] if last else self.text[-1] if self.text else -1
        if self.dead_end is not None and token == self.dead_end:
            return torch.zeros_like(self.allowed[token])
        return self.allowed[token]


def give_up_after(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """Let every text's constraint give up after so many tokens."""
    advance = RowConstraint.advance

    def limited(self: RowConstraint, new: Sequence[int]) -> None:
        if self.committed >= tokens:
            raise InputError("the constraint is too complex to go on: a test")
        advance(self, new)

    monkeypatch.setattr(RowConstraint, "advance", limited)


class GivesUp(TableMatcher):
    """Fails for good once it has stood at `dead_end`, as a library does that ran out of its budget."""

    broken = False

    def _before_an_answer(self) -> None:
        self.broken = self.broken or self.text[-1:] == [self.dead_end]
        if self.broken:
            raise InputError("the constraint is too complex to go on")


class SameText(TableMatcher):
    """Says of all tokens that must follow that they spell the same text."""

    def forced_text(self) -> bytes:
        return b"same" if self.forced() else b""


class WearsOut(TableMatcher):
    """Fails for good after so many questions, as a library does that counts its states."""

    left = 10

    def _before_an_answer(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise InputError("the constraint is too complex to go on")


class Limited(TableMatcher):
    """Refuses most tokens after some answer, and then reads none and fills no mask, as a library does at its limits."""

    def __init__(self, allowed: Tensor, chance: random.Random, often: float):
        super().__init__(allowed, frozenset(), None)
        self.chance, self.often, self.full = chance, often, False

    def _refuse(self) -> None:
        if self.full:
            raise InputError("the constraint is too complex to go on")

    def consume(self, tokens: Sequence[int]) -> None:
        self._refuse()
        super().consume(tokens)

    def fill(self, mask: Mask) -> None:
        self._refuse()
        super().fill(mask)

    def allows(self, tokens: Sequence[int]) -> list[bool]:
        self.full |= self.chance.random() < self.often
        answers = super().allows(tokens)
        return [may and self.chance.random() < 0.3 for may in answers] if self.full else answers


class Cycle(TableMatcher):
    """Allows one token after each, the next one, without end; counts how often it is asked for them."""

    def __init__(self, vocabulary: int):
        super().__init__(
            torch.eye(vocabulary, dtype=torch.bool).roll(1, 1)[[*range(vocabulary), -1]], frozenset(), None
        )
        self.asked = 0

    def forced(self) -> list[int]:
        self.asked += 1
        before = self.text[-1] if self.text else -1
        return [(before + 1 + step) % self.allowed.shape[1] for step in range(100_000)]

    def forced_text(self) -> bytes:
        return b"%d" % len(self.text)


def rows_of(count: int, vocabulary: int, seed: int = 0, eos: frozenset[int] = frozenset()) -> list[RowConstraint]:
    """Constraints at the beginnings of so many texts."""
    return [RowConstraint.of(TableConstraint(seed), Vocabulary(None, vocabulary, eos)) for _ in range(count)]


def follows(tokens: list[int], vocabulary: int, seed: int = 0) -> bool:
    """Whether a text follows `TableConstraint(seed)`."""
    return all(followers(vocabulary, seed)[before, token] for before, token in zip([-1, *tokens], tokens, strict=False))
