"""Log-probabilities as OpenAI's API writes them: in two forms, one for completions and one for chats."""

import json
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from transformers import PreTrainedTokenizerBase

from c2t.output.detokenizer import BYTE, IncrementalDetokenizer
from c2t.verification.logprobs import TokenLogprob

LOWEST = -9999.0  # for a probability of 0, whose logarithm JSON cannot hold; as vLLM has it
KEPT = (*range(33, 127), *range(161, 173), *range(174, 256))  # bytes that byte-level BPE writes as their own characters
MOVED = [byte for byte in range(256) if byte not in KEPT]  # the others become characters from 256 on
BYTE_OF = {chr(byte): byte for byte in KEPT} | {chr(256 + number): byte for number, byte in enumerate(MOVED)}


@runtime_checkable
class LogprobsWriter(Protocol):
    """Writes the log-probabilities of one text, part by part."""

    def __call__(self, values: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return those of the next tokens."""
        ...


class TokenBytes:
    """The bytes of single tokens: joined, they are the bytes of the text, special tokens included."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer, self.added = tokenizer, tokenizer.added_tokens_decoder
        backend = getattr(tokenizer, "backend_tokenizer", None)
        steps = backend.decoder.__getstate__() if backend and backend.decoder else b"{}"
        decoder = json.dumps(json.loads(steps), ensure_ascii=False)
        self.byte_level, self.space = '"ByteLevel"' in decoder, "\u2581" if "\u2581" in decoder else ""

    def __call__(self, token: int) -> bytes:
        """Return the bytes of a token."""
        piece = str(self.tokenizer.convert_ids_to_tokens(token) or "")  # a padded vocabulary has ids without one
        if token in self.added:
            return piece.encode()
        if self.byte_level and all(character in BYTE_OF for character in piece):
            return bytes(BYTE_OF[character] for character in piece)
        if BYTE.fullmatch(piece):
            return bytes([int(piece[3:5], 16)])
        return (piece.replace(self.space, " ") if self.space else piece).encode("utf-8", "replace")


class ChatLogprobs:
    """The form of chats: an object for each token, with its bytes."""

    def __init__(self, bytes_of: TokenBytes):
        self.bytes_of = bytes_of

    def __call__(self, values: Sequence[TokenLogprob]) -> dict[str, Any]:
        """See `LogprobsWriter`."""
        content = [
            {**self._of(value.token, value.logprob), "top_logprobs": [self._of(*top) for top in value.top]}
            for value in values
        ]
        return {"content": content, "refusal": None}

    def _of(self, token: int, logprob: float) -> dict[str, Any]:
        written = self.bytes_of(token)
        text = written.decode("utf-8", "replace")
        return {"token": text, "logprob": max(logprob, LOWEST), "bytes": list(written)}


class CompletionLogprobs:
    """The form of completions: a list of each kind. A token that is in the middle of a character has the character's
    offset in the text."""

    def __init__(self, bytes_of: TokenBytes):
        self.bytes_of, self.pieces, self.length = bytes_of, IncrementalDetokenizer(bytes_of.tokenizer), 0

    def __call__(self, values: Sequence[TokenLogprob]) -> dict[str, Any]:
        """See `LogprobsWriter`."""
        tops = [None if value.logprob is None else self._top(value) for value in values]
        return {
            "tokens": [self._text(value.token) for value in values],
            "token_logprobs": [None if value.logprob is None else max(value.logprob, LOWEST) for value in values],
            "top_logprobs": tops,
            "text_offset": [self._offset(value.token) for value in values],
        }

    def _top(self, value: TokenLogprob) -> dict[str, float]:
        """Return the most probable tokens and the token itself; of tokens with one text, the most probable one."""
        logprobs: dict[str, float] = {}
        for token, logprob in (*value.top, (value.token, value.logprob)):
            logprobs.setdefault(self._text(token), max(logprob, LOWEST))
        return logprobs

    def _text(self, token: int) -> str:
        return self.bytes_of(token).decode("utf-8", "replace")

    def _offset(self, token: int) -> int:
        """Return where the token begins in the text, and read it."""
        before, text, piece = self.length, self._text(token), self.pieces([token])[0]
        self.length += len(piece)
        return self.length - len(text) if piece.endswith(text) else before  # the piece may have a character before it
