"""A text as it is written: which of its characters may be shown, and where it ends."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from c2t.pieces import Pieces


class Text:
    """Writer of one text, which ends before the first of its stop strings.

    What may be the beginning of a stop string waits for the tokens after it. tokens: number of the text's tokens, with
    those of the stop string up to the one that completed it. stopped: whether one was found. The text is a function of
    its tokens, however many of them come at once.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str] = ()):
        self.pieces, self.stop = Pieces(tokenizer), tuple(stop)
        self.held = ""
        self.tokens, self.stopped = 0, False

    def add(self, tokens: list[int]) -> str:
        """Return the characters that may be shown with these next tokens."""
        shown = ""
        for token in tokens:
            if self.stopped:
                break
            self.tokens += 1
            shown += self._show(self.pieces([token])[0])
        return shown

    def end(self) -> str:
        """Return what is left at the end of the text."""
        if self.stopped:
            return ""
        shown = self._show(self.pieces.rest())
        rest, self.held = self.held, ""
        return shown + rest

    def _show(self, piece: str) -> str:
        text = self.held + piece
        ends = [place for stop in self.stop if (place := text.find(stop)) >= 0]
        if ends:
            self.stopped, self.held = True, ""
            return text[: min(ends)]
        waiting = max((_overlap(text, stop) for stop in self.stop), default=0)
        self.held = text[len(text) - waiting :]
        return text[: len(text) - waiting]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of the text that is a beginning of the stop string."""
    return next((n for n in range(min(len(text), len(stop)), 0, -1) if text.endswith(stop[:n])), 0)
