"""A text as it is generated: which of its characters may be shown, and where it ends."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from c2t.errors import InputError, check_kind, short_repr
from c2t.output.detokenizer import IncrementalDetokenizer

MOST, LONGEST = 64, 1024  # stop strings of a text, and characters of one: each token is compared with all of them


class StoppableText:
    """One text in the making, which ends before the first of its stop strings.

    What may be the beginning of a stop string waits for the tokens after it. tokens: number of the text's tokens, with
    those of the stop string up to the one that completed it. stopped: True after a stop string. hidden: see
    `IncrementalDetokenizer`. The text depends on its tokens alone, not on how they are split between calls.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str] = (), hidden: frozenset[int] | None = None
    ):
        self.pieces, self.stop = IncrementalDetokenizer(tokenizer, hidden), tuple(stop)
        self.held = ""
        self.tokens, self.stopped = 0, False

    def add(self, tokens: list[int]) -> str:
        """Return the characters that may be shown with these next tokens."""
        text = ""
        for token in tokens:
            if self.stopped:
                break
            self.tokens += 1
            text += self._show(self.pieces([token])[0])
        return text

    def end(self) -> str:
        """Return what is left at the end of the text."""
        if self.stopped:
            return ""
        text, self.held = self._show(self.pieces.rest()) + self.held, ""
        return text

    def _show(self, piece: str) -> str:
        text = self.held + piece
        ends = [start for stop in self.stop if (start := text.find(stop)) >= 0]
        if ends:
            self.stopped, self.held = True, ""
            return text[: min(ends)]
        waiting = max((overlap(text, stop) for stop in self.stop), default=0)
        self.held = text[len(text) - waiting :]
        return text[: len(text) - waiting]


def overlap(text: str, beginning: str) -> int:
    """Return the length of the longest end of a text that is a beginning of another one, such as a stop string."""
    return next((n for n in range(min(len(text), len(beginning)), 0, -1) if text.endswith(beginning[:n])), 0)


def checked_stops(stop: Any) -> tuple[str, ...]:
    """Return one stop string or several as a tuple; InputError for empty, long or too many ones."""
    if isinstance(stop, str):
        stop = (stop,)
    check_kind("stop", stop, list | tuple, "a text or a list of texts")
    if len(stop) > MOST:
        raise InputError(f"stop: {len(stop):,} stop strings: give at most {MOST}")
    for text in stop:
        check_kind("stop: a stop string", text, str, "a text")
        if not text:
            raise InputError("stop: an empty stop string would stop every text: leave it out")
        if len(text) > LONGEST:
            raise InputError(f"stop = {short_repr(text)}: {len(text):,} characters; give at most {LONGEST:,}")
    return tuple(stop)
