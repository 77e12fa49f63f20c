"""Exact replay of every position of a text: each one is the root of a round that some live run could visit.

Drafts read a text causally, so one pass over its true features gives the keys and values of all positions. Their trees
are drafted as rows of one batch over that shared prefix.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from c2t.decoding import DraftModel, Step, speculate
from c2t.models.drafts.session import DraftSession
from c2t.protocols import Policy
from c2t.replay.lockstep import Continuation, TextVerifier
from c2t.sessions.coupled import coupled

CHUNK = 32  # positions at a time: more cost memory and were measured to be no faster on two CPU cores


def replay_all(
    drafter: DraftModel,
    policy: Policy,
    texts: Sequence[Continuation],
    *,
    seed: int = 0,
    sequences: Sequence[int] | None = None,
    temperature: float = 0.0,
    record: Sequence[str] = (),
) -> Iterator[Step]:
    """Yield the rounds of all positions from the first new token to the last but one, the last place where a round may
    start.

    Arguments and Steps are those of `replay`, with the prefill first. After it the rows of a Step are successive
    positions of one text: `rows` repeats its number, and `tokens` are the tokens that a round there would add.
    """
    sampled: dict[str, Any] = {"seed": seed, "temperature": temperature}
    verifier = TextVerifier(texts, sequences=sequences, **sampled)
    with torch.inference_mode():  # never around a yield: what the caller does between two rounds is its own
        step, _ = verifier.prefill()
    yield step
    for row, (text, sequence) in enumerate(zip(texts, verifier.sequence.tolist(), strict=True)):
        for position, draft in forks(drafter, text):
            with torch.inference_mode():
                here = TextVerifier.at(text, row, position, sequence, **sampled)
                step, _ = speculate(coupled(draft, policy, here), policy, here, record)
            yield step


def forks(drafter: DraftModel, text: Continuation) -> Iterator[tuple[Int[Tensor, " B"], DraftSession]]:
    """Yield the positions of a text where a round may start, some at a time, with a draft session for each as a row."""
    last = text.end - 2
    if last < text.prompt:
        return
    observed = text.tokens[None, : last + 1], text.features[None, :last], text.tokens.new_tensor([last])
    with torch.inference_mode():
        draft: Any = drafter.session()
        draft.observe(*observed)
    for position in torch.arange(text.prompt, last + 1, device=text.tokens.device).split(CHUNK):
        with torch.inference_mode():
            fork = draft.fork(last - position + 1)
            tokens, features = text.tokens.unfold(0, 2, 1)[position - 1], text.features[position - 1, None]
            fork.observe(tokens, features, torch.ones_like(position))
        yield position, fork
