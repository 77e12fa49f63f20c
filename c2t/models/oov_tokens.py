"""Tokens of a text that its draft's reduced vocabulary lacks: a name in a question is a likely word of the answer.

A head that drafts from the 8,192 tokens which the target writes most often cannot guess any other. But it borrows the
target's LM head, which has a row for every token; so those that stand in the text join the vocabulary of that text, at
the cost of one product each.
"""

import copy

import torch
from jaxtyping import Int
from torch import Tensor

MOST = 256  # own tokens of a text; later ones are left out, so that a long text costs no more than that


class OutOfVocabulary:
    """Tokens that a draft lacks, for each of B texts in the order in which they came up, and where they first did.

    known: the draft's tokens. ids: (B, E), filled up with -1.
    """

    def __init__(self, known: frozenset[int], device: torch.device):
        self.known, self.device = known, device
        self._first: list[dict[int, int]] = []  # of each text: token -> its first place
        self._lengths: list[int] = []
        self._collect()

    def observe(self, tokens: Int[Tensor, "B n"], count: Int[Tensor, " B"]) -> None:
        """Read committed text; see `c2t.models.draft.DraftSession.observe`."""
        if not self._lengths:
            self._first, self._lengths = [{} for _ in tokens], [0] * len(tokens)
        found = False
        for row, (new, many) in enumerate(zip(tokens.tolist(), count.tolist(), strict=True)):
            first, begin = self._first[row], max(self._lengths[row] - 1, 0)  # the previous root comes again
            for place, token in enumerate(new[: many + 1], begin):
                if token not in self.known and token not in first and len(first) < MOST:
                    first[token], found = place, True
            self._lengths[row] = begin + many + 1
        if found:
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
        self._keep([pair for each in both for pair in zip(each._first, each._lengths, strict=True)])

    def fork(self, back: Int[Tensor, " B"]) -> "OutOfVocabulary":
        """Return those of the only text without its last back[r] tokens, for each r."""
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
    """Return the tokens that came up before this place."""
    return {token: at for token, at in first.items() if at < end}
