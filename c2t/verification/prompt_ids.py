"""Checks of a prompt: its token ids are in the target's vocabulary, and its length fits the positions."""

from collections.abc import Sequence
from numbers import Integral

from c2t.errors import InputError, check_whole


def checked_ids(prompt: Sequence[int], vocabulary: int) -> list[int]:
    """Return token ids as Python ints; InputError for an empty prompt, an id outside the vocabulary, and values that
    are no whole numbers."""
    values = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    listed = isinstance(values, Sequence) and not isinstance(values, bytes)
    if not listed or not all(isinstance(v, Integral) and not isinstance(v, bool) for v in values):
        raise InputError("a prompt must be a text or a list of whole token ids")
    if not values:
        raise InputError("an empty prompt: give at least one token to continue")
    if not 0 <= min(values) <= max(values) < vocabulary:
        raise InputError(f"a prompt has token ids outside the target's vocabulary 0..{vocabulary - 1}")
    return [int(value) for value in values]


def check_new_tokens(count: int, least: int = 1) -> None:
    """Raise InputError unless max_new_tokens is a whole number that is large enough."""
    check_whole("max_new_tokens", count, least=least)


def check_length(prompt: int, new: int, limit: int, what: str) -> None:
    """Raise InputError if prompt and new tokens exceed the target's positions."""
    if prompt + new > limit:
        raise InputError(
            f"{what}: {prompt} tokens + {new} new ones exceed the target's {limit} positions; shorten either"
        )
