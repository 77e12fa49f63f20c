"""The interface between constraints and decoding."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from c2t.kernels.masks import Mask


class Vocabulary(NamedTuple):
    """The tokens that a constraint is about: a tokenizer of transformers, the target's vocabulary size, and the tokens
    that end a text."""

    tokenizer: Any
    size: int
    eos: frozenset[int]


@runtime_checkable
class Matcher(Protocol):
    """State of a constraint along one text. It never gets a token that its mask lacks, and never one that ends a
    text."""

    def consume(self, tokens: Sequence[int]) -> None:
        """Read one token or more."""
        ...

    def rollback(self, count: int) -> None:
        """Take back the last tokens."""
        ...

    def fill(self, mask: Mask) -> None:
        """Write which tokens may follow; InputError where the constraint cannot tell."""
        ...

    def forced_text(self) -> bytes:
        """Return the text that must follow; `forced` has no tokens where it is empty."""
        ...

    def forced(self) -> list[int]:
        """Return tokens that must follow, of which the mask has the first one alone; none if several may."""
        ...

    def allows(self, tokens: Sequence[int]) -> list[bool] | None:
        """Return which of these tokens may follow, where `forced` has none: what the mask says, sooner; None where it
        takes the mask. They may end a text."""
        ...


@runtime_checkable
class Constraint(Protocol):
    """A constraint on texts: immutable, hashable, and shared by any number of them."""

    def matcher(self, vocabulary: Vocabulary) -> Matcher:
        """Return the state at a text's beginning. Raises InputError for what cannot be followed in this vocabulary."""
        ...
