"""Log-probabilities of tokens by the target itself: before bias, penalties, temperature and filters.

Bits of logits are those of plain decoding where a tree's are (`c2t.models.target.target.TargetSession`), so these are
too.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.caches.ragged import SlotLogits
from c2t.errors import check_whole
from c2t.kernels.rows import rank
from c2t.models.target.target import TargetSession, check_finite

MOST = 20  # most probable tokens at most, as in OpenAI's API
AT_ONCE = 64  # tokens of a prompt whose logits are in memory together


class TokenLogprob(NamedTuple):
    """Log-probability of a token after the text before it, in nats; None for a text's first token.

    top: the most probable tokens there with theirs, in descending order, as many as were asked for.
    """

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]


def check_logprobs(name: str, count: int | None) -> None:
    """Raise InputError unless this is None or a number of most probable tokens, 0 to MOST."""
    if count is not None:
        check_whole(name, count, least=0, most=MOST)


def scored(logits: Float[Tensor, "n V"], tokens: Int[Tensor, " n"], counts: Sequence[int]) -> list[TokenLogprob]:
    """Return the log-probabilities of these tokens, each with counts[i] most probable ones."""
    top = rank(logits, min(max(counts, default=0), logits.shape[1]), 0)
    check_finite(top.log_norm.tolist(), "target")
    chosen = logits.gather(1, tokens[:, None])[:, 0].to(top.log_norm.dtype) - top.log_norm
    columns = (column.tolist() for column in (tokens, chosen, top.token, top.log_prob))
    return [
        TokenLogprob(token, logprob, tuple(zip(ids[:count], values[:count], strict=True)))
        for token, logprob, ids, values, count in zip(*columns, counts, strict=True)
    ]


def of_path(
    logits: SlotLogits, slots: Int[Tensor, "B m"], tokens: Int[Tensor, "B m"], counts: Sequence[int | None]
) -> list[list[TokenLogprob]]:
    """Return the log-probabilities of the tokens after these slots (-1: none), with counts[r] most probable ones in row
    r; nothing for a row of None."""
    asked = torch.tensor([row for row, count in enumerate(counts) if count is not None], device=slots.device)
    index, depth = (slots[asked] >= 0).nonzero(as_tuple=True)
    rows = asked[index]
    owners = rows.tolist()
    values = scored(logits.at(rows, slots[rows, depth]), tokens[rows, depth], [counts[row] for row in owners])
    by_row: list[list[TokenLogprob]] = [[] for _ in counts]
    for row, value in zip(owners, values, strict=True):
        by_row[row].append(value)
    return by_row


def of_prompt(
    session: TargetSession, prompt: Int[Tensor, " P"], states: Float[Tensor, "P H"], count: int
) -> list[TokenLogprob]:
    """Return the log-probabilities of a prompt's tokens. states: the target's, after the final norm."""
    values = [TokenLogprob(int(prompt[0]), None, ())]
    for before, tokens in zip(states[:-1].split(AT_ONCE), prompt[1:].split(AT_ONCE), strict=True):
        values += scored(session.logits(before), tokens, [count] * len(tokens))
    return values
