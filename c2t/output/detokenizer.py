"""A text that is written token by token, in parts that can be shown as they come."""

import re

from transformers import PreTrainedTokenizerBase

INCOMPLETE = "\ufffd"  # what a tokenizer writes for bytes that are no whole character, or not yet
BYTE = re.compile("<0x[0-9A-F]{2}>")  # tokens of SentencePiece, whose bytes are characters only if all in a row are
WINDOW = 8  # tokens that wait, before those that no further byte can change are put aside


class IncrementalDetokenizer:
    """Splitter of a text into its tokens' parts, which joined with the rest are the text: bytes wait for the token that
    makes them a character."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer, self.special = tokenizer, frozenset(tokenizer.all_special_ids)
        self._begin([], [], 0)

    def __call__(self, tokens: list[int]) -> list[str]:
        """Return the part of the text that each of the next tokens adds."""
        return [self._next(token) for token in tokens]

    def rest(self) -> str:
        """Return the text of the tokens that still wait, at the end of the text."""
        left = self._behind()[self.out :]
        self._begin([], [], 0)
        return left

    def _begin(self, context: list[int], waiting: list[int], out: int) -> None:
        """Go on behind `context`, whose text is out; some tokenizers write a first token without its space. Of the text
        of `waiting` so many characters are out."""
        self.context, self.waiting, self.out = context, waiting, out
        self.before = len(self._decode(context))

    def _next(self, token: int) -> str:
        if token in self.special and not self._decode([token]):
            return ""
        self.waiting.append(token)
        if BYTE.fullmatch(str(self.tokenizer.convert_ids_to_tokens(token))):
            return ""
        text = self._behind()
        whole = not text.endswith(INCOMPLETE)
        piece = text[self.out :] if whole else text[self.out : -1]  # at most the last one can become a character
        self.out += len(piece)
        if whole and text:  # behind a token without text it still begins
            self._begin(self.waiting, [], 0)
        elif len(self.waiting) >= WINDOW:
            self._put_aside(text)
        return piece

    def _put_aside(self, text: str) -> None:
        """Move to the context what later tokens cannot change: a character has at most four bytes, so the boundary is
        near the end."""
        whole = self._decode(self.waiting)
        for place in range(len(self.waiting) - 1, len(self.waiting) - 5, -1):
            context, waiting = self.waiting[:place], self.waiting[place:]
            left, right = self._decode(context), self._decode(waiting)
            if left and right and left + right == whole:
                self._begin(context, waiting, self.out - len(text) + len(right))
                return

    def _behind(self) -> str:
        """Return the text of the waiting tokens."""
        return self._decode(self.context + self.waiting)[self.before :]

    def _decode(self, tokens: list[int]) -> str:
        return self.tokenizer.batch_decode([tokens], skip_special_tokens=True)[0]
