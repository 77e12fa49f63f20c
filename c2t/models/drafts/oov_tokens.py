"""Tokens of a text outside of its draft's reduced vocabulary: a name in a question is a likely word of the answer.

A head whose vocabulary is the target's 8,192 most frequent tokens cannot guess any other. But it borrows the
target's LM head, which has a row for every token; so those that stand in the text join the vocabulary of that text, at
the cost of one product each.
"""

import copy

import torch
from jaxtyping import Int
from torch import Tensor

MOST = 256  # largest number of such tokens of a text; later ones are left out


class OutOfVocabulary:
    """Tokens that a draft lacks, for each of B texts in the order in which they came up, and where they first did.

    vocabulary: the draft's tokens. ids: (B, E), padded with -1.
    """

    def __init__(self, vocabulary: frozenset[int], device: torch.device):
        self.vocabulary, self.device = vocabulary, device
        self._first: list[dict[int, int]] = []  # of each text: token -> its first position
        self._lengths: list[int] = []
        self._collect()

    def observe(self, tokens: Int[Tensor, "B n"], count: Int[Tensor, " B"]) -> None:
        """Read committed text; see `c2t.models.drafts.session.DraftSession.observe`."""
        if not self._lengths:
            self._first, self._lengths = [{} for _ in tokens], [0] * len(tokens)
        changed = False
        for row, (new, many) in enumerate(zip(tokens.tolist(), count.tolist(), strict=True)):
            first, begin = self._first[row], max(self._lengths[row] - 1, 0)  # the previous root comes again
            for position, token in enumerate(new[: many + 1], begin):
                if token not in self.vocabulary and token not in first and len(first) < MOST:
                    first[token], changed = position, True
            self._lengths[row] = begin + many + 1
        if changed:
            self._collect()

    def rewind(self, back: Int[Tensor, " B"]) -> None:
        """Forget the last back[r] tokens of text r."""
        ends = [length - less for length, less in zip(self._lengths, back.tolist(), strict=True)]
        self._keep([(before(first, end), end) for first, end in zip(self._first, ends, strict=True)])

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these texts, in this order."""
        if not self._lengths:  # a row may end with its first token, before anything is observed
            return
        self._keep([(self._first[row], self._lengths[row]) for row in rows.tolist()])

    def join(self, other: "OutOfVocabulary") -> None:
        """Append the texts of another one."""
        both = (self, other)
        self._keep([pair for texts in both for pair in zip(texts._first, texts._lengths, strict=True)])

    def fork(self, back: Int[Tensor, " B"]) -> "OutOfVocabulary":
        """Return the tokens of the only text without its last back[r] tokens, for each r."""
        fork, lengths = copy.copy(self), [self._lengths[0] - less for less in back.tolist()]
        fork._keep([(before(self._first[0], end), end) for end in lengths])
        return fork

    def _keep(self, texts: list[tuple[dict[int, int], int]]) -> None:
        self._first, self._lengths = map(list, zip(*texts, strict=True)) if texts else ([], [])
        self._collect()

    def _collect(self) -> None:
        wide = max(map(len, self._first), default=0)
        rows = [[*first, *[-1] * (wide - len(first))] for first in self._first]
        self.ids: Int[Tensor, "B E"] = torch.tensor(rows, dtype=torch.long, device=self.device).view(len(rows), wide)


def before(first: dict[int, int], end: int) -> dict[int, int]:
    """Return the tokens that came up before this position."""
    return {token: position for token, position in first.items() if position < end}
