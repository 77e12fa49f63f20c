"""Continuous batching: requests that come and go while others are being decoded.

Rows of a batch do not see each other, and random numbers belong to (seed, sequence, position). So a request's text is
what it would be alone, whatever was decoded beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from c2t.decoding import Policy
from c2t.errors import InputError
from c2t.models.pairs import Pair
from c2t.sampling import Sampling


class Refused(InputError):
    """A request that could never be decoded within the limits of this decoder."""


class Full(InputError):
    """A request that came while as many as allowed were waiting: it may come again later."""


@dataclass(eq=False)  # two requests with the same prompt are two requests
class Request:
    """One prompt to continue, and what has been written of it so far.

    tokens: the new tokens, cut where the text ends. finish: None while it waits or runs, then "stop" (an EOS token),
    "length" (max_new_tokens) or "cancelled".
    """

    prompt: list[int]
    max_new_tokens: int
    sampling: Sampling
    sequence: int
    eos: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None


class News(NamedTuple):
    """The tokens that one step has added to a request, at least one; finish: as in `Request`, never "cancelled"."""

    request: Request
    tokens: list[int]
    finish: str | None


class BatchDecoder:
    """Decodes requests that may be submitted and cancelled at any time, in rounds over all that run.

    max_rows: requests that run at once. max_tokens: bound on the sum of prompt + max_new_tokens + policy.levels over
    them, so that memory has a bound too. max_waiting: requests that may wait for either.

    The order is first come, first served: a request that does not fit yet holds back all that came after it, so that
    none waits for ever. `step` must be called by one thread at a time; `submit` and `cancel` may be called by any
    thread, also during a step.
    """

    def __init__(
        self, pair: Pair, policy: Policy, *, max_rows: int = 16, max_tokens: int = 16384, max_waiting: int = 1024
    ): ...

    def submit(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        sampling: Sampling = Sampling(),
        sequence: int = 0,
        eos: frozenset[int] | None = None,
    ) -> Request:
        """Put a request in the queue and return it; the next step admits it, if there is room.

        prompt: token ids. sequence: number of its random stream. eos: tokens that end the text, the target's by
        default. Raises InputError for an empty prompt, ids outside the vocabulary, or a max_new_tokens below 1;
        Refused for a request that exceeds max_tokens or the target's positions; Full where too many wait.
        """
        ...

    def cancel(self, request: Request) -> None:
        """End a request, whose row is free before the next round; its tokens so far stay. One that has ended stays as
        it is."""
        ...

    def step(self) -> list[News]:
        """Admit waiting requests, play one round, and return what it has added, one News for each request; an empty
        list if there is nothing to do."""
        ...

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        ...

    @property
    def running(self) -> int:
        """Number of requests that run."""
        ...

    @property
    def tokens_in_use(self) -> int:
        """Part of max_tokens that the running requests have set aside."""
        ...
