"""Largest size of a policy's trees, so that what cannot fit is refused before it starts."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from c2t.errors import InputError, counted

# A forward over a tree has the square of its tokens in its mask, and a whole row of logits for each of them.
MOST_TOKENS, MOST_CANDIDATES, MOST_LEVELS = 2**13, 2**23, 256
SHAPING = ("N", "K", "W", "D", "levels", "length", "config", "passes", "max_width", "max_nodes", "acceptance", "rounds")


class Size(NamedTuple):
    """Largest size of a policy's trees. tokens: of a finished tree, root included. candidates: drafted tokens in memory
    together while the tree grows."""

    tokens: int
    candidates: int


def check_size(policy: Any) -> None:
    """Raise InputError for a policy whose trees would have more levels, tokens or candidates than can fit; it has
    `levels` and `size`."""
    size: Size = policy.size
    for what, number, most in (
        ("levels", policy.levels, MOST_LEVELS),
        ("tokens", size.tokens, MOST_TOKENS),
        ("candidates", size.candidates, MOST_CANDIDATES),
    ):
        if number > most:
            names = [field.name for field in fields(policy) if field.name in SHAPING and getattr(policy, field.name)]
            raise InputError(
                f"{type(policy).__name__}: trees of up to {counted(number)} {what}; at most {most:,} fit: lower "
                f"{' or '.join(names)}"
            )


def expanded(K: int, levels: int) -> int:
    """Return the candidates of a tree that expands K nodes on every level but the first, with K children each."""
    return K + (levels - 1) * K * K


def grown(K: int, width: int, levels: int, max_nodes: int) -> Size:
    """Return the size of trees that grow by the `width` best of each level, which has K candidates a node."""
    tokens, level, candidates = 1, 1, 0
    for _ in range(min(levels, MOST_LEVELS)):
        candidates = max(candidates, level * K)
        level = min(level * K, width)
        tokens += level
    return Size(min(tokens, max_nodes), candidates)


def product_tree(config: Sequence[int]) -> int:
    """Return the tokens of a tree in which every node of level i - 1 has config[i] children, root included; more than
    MOST_TOKENS is not counted further."""
    tokens, width = 1, 1
    for k in config:
        width *= k
        tokens += width
        if tokens > MOST_TOKENS:
            break
    return tokens
