"""A lower bound of a text's tokens by its characters: what cannot fit is refused before it is tokenized."""

import json
from collections.abc import Callable
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel
from transformers import BatchEncoding, PreTrainedTokenizerBase

SPLITS = ("Split", "Digits")  # steps that cut a text and keep all of it
ALPHABET = set(ByteLevel.alphabet())


class Checked:
    """A tokenizer that lets a check see each text before it reads it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, check: Callable[[str], None]):
        self._tokenizer, self._check = tokenizer, check

    def __call__(self, text: str, **more: Any) -> BatchEncoding:
        """Return what the tokenizer makes of a text, unless the check raises."""
        self._check(text)
        return self._tokenizer(text, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def characters_of_a_token(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return how many characters of a text one token stands for at most; None where that is not certain.

    Certain is byte-level BPE: each token is some of the text's bytes, all of which are in some token. A normaliser may
    make a text shorter, an added token may take the white space next to it, and bytes without a token are left out.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    made = json.loads(backend.to_str())
    steps = made["pre_tokenizer"] or {}
    steps = steps.get("pretokenizers", [steps])
    kinds = {step.get("type") for step in steps}
    if made["model"]["type"] != "BPE" or "ByteLevel" not in kinds or not kinds <= {"ByteLevel", *SPLITS}:
        return None
    if made["normalizer"] or made["truncation"] or any(step.get("behavior") == "Removed" for step in steps):
        return None
    vocabulary = tokenizer.get_vocab()
    if any(token["lstrip"] or token["rstrip"] for token in made["added_tokens"]) or ALPHABET - vocabulary.keys():
        return None
    return max(map(len, vocabulary))  # a character of such a token is a byte, of which one of a text has at least one
