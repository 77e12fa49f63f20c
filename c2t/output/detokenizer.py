"""Incremental detokenization: the text of each token as soon as its characters are complete."""

import re

from transformers import PreTrainedTokenizerBase

INCOMPLETE = "\ufffd"  # the tokenizer's text for bytes that are no complete character
# Byte tokens of SentencePiece: a run of them decodes to characters only as a whole.
BYTE = re.compile("<0x[0-9A-F]{2}>")
WINDOW = 8  # waiting tokens at most; then those that no further byte can change become context


class IncrementalDetokenizer:
    """Splits a text into the parts of its tokens; joined, with `rest` at the end, they are the text.

    Bytes wait for the token that completes their character. hidden: tokens without a text; None: the special ones.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, hidden: frozenset[int] | None = None):
        self.tokenizer, self.skips_special = tokenizer, hidden is None
        self.hidden = frozenset(tokenizer.all_special_ids) if hidden is None else hidden
        cleaned = None if self.skips_special else False  # None: as the tokenizer is set
        self.how = {"skip_special_tokens": self.skips_special, "clean_up_tokenization_spaces": cleaned}
        self._begin([], [], 0)

    def __call__(self, tokens: list[int]) -> list[str]:
        """Return the part of the text that each of the next tokens adds."""
        return [self._next(token) for token in tokens]

    def rest(self) -> str:
        """Return the text of the tokens that still wait; call it at the end of the text."""
        left = self._waiting_text()[self.out :]
        self._begin([], [], 0)
        return left

    def _begin(self, context: list[int], waiting: list[int], out: int) -> None:
        """Continue after `context`, whose text was returned; some tokenizers strip the space of a first token.

        out: number of characters of the text of `waiting` that were returned.
        """
        self.context, self.waiting, self.out = context, waiting, out
        self.before = len(self._decode(context))

    def _next(self, token: int) -> str:
        if token in self.hidden and not (self.skips_special and self._decode([token])):
            return ""
        self.waiting.append(token)
        if BYTE.fullmatch(str(self.tokenizer.convert_ids_to_tokens(token))):
            return ""
        text = self._waiting_text()
        whole = not text.endswith(INCOMPLETE)
        piece = text[self.out :] if whole else text[self.out : -1]  # at most the last character is incomplete
        self.out += len(piece)
        if whole and text:  # a token without text does not end the start of the text
            self._begin(self.waiting, [], 0)
        elif len(self.waiting) >= WINDOW:
            self._put_aside(text)
        return piece

    def _put_aside(self, text: str) -> None:
        """Move the tokens that later ones cannot change to the context. A character has at most four bytes, so the
        boundary is near the end."""
        whole = self._decode(self.waiting)
        for boundary in range(len(self.waiting) - 1, len(self.waiting) - 5, -1):
            context, waiting = self.waiting[:boundary], self.waiting[boundary:]
            left, right = self._decode(context), self._decode(waiting)
            if left and right and left + right == whole:
                self._begin(context, waiting, self.out - len(text) + len(right))
                return

    def _waiting_text(self) -> str:
        """Return the text of the waiting tokens."""
        return self._decode(self.context + self.waiting)[self.before :]

    def _decode(self, tokens: list[int]) -> str:
        return self.tokenizer.batch_decode([tokens], **self.how)[0]
