"""Continuous batching: requests that come and go while others are being decoded.

Rows of a batch do not see each other, and random numbers belong to (seed, sequence, position). So a request's text is
what it would be alone, whatever was decoded beside it.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from c2t.decoding import Committed, Step, cut, open_session, speculate
from c2t.errors import InputError, check_kind, check_whole, whole
from c2t.models.loading.load import Pair
from c2t.protocols import Policy, Session
from c2t.sampling import Sampling, check_sequence
from c2t.verification.compatibility import check_compatible, check_rule
from c2t.verification.prompt_ids import check_length, check_new_tokens, checked_ids
from c2t.verification.target_verifier import TargetVerifier


class Refused(InputError):
    """A request that could never be decoded within the limits of this decoder."""


class Full(InputError):
    """A request that came while as many as allowed were waiting: it may come again later."""


@dataclass(eq=False)  # two requests with the same prompt are two requests
class Request:
    """One prompt to continue, and what has been written of it so far.

    tokens: the new tokens, cut where the text ends. finish: None while it waits or runs, then "stop" (an EOS token),
    "length" (max_new_tokens), "cancelled", or "failed", by `error`.
    """

    prompt: list[int]
    max_new_tokens: int
    sampling: Sampling
    sequence: int
    eos: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    error: Exception | None = None
    reported: int = 0  # tokens that steps have returned

    def add(self, tokens: list[int]) -> None:
        """Append what a round has written, cut where the text ends, and note the end."""
        self.tokens = cut(self.tokens + tokens, self.max_new_tokens, self.eos)
        if self.tokens[-1] in self.eos:
            self.finish = "stop"
        elif len(self.tokens) == self.max_new_tokens:
            self.finish = "length"


class Update(NamedTuple):
    """The tokens that one step has added to a request, none only where it failed; finish: as in `Request`, never
    "cancelled"."""

    request: Request
    tokens: list[int]
    finish: str | None


@dataclass
class Running:
    """The requests that are decoded, one a row; committed: what the draft has not observed yet."""

    requests: list[Request]
    verifier: TargetVerifier
    draft: Session
    committed: Committed

    def observe(self) -> None:
        """Let the draft observe what is committed, so that it can be joined and expanded."""
        self.draft.observe(*self.committed)

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows, in this order."""
        self.requests = [self.requests[row] for row in rows.tolist()]
        self.committed = self.committed.select(rows)
        self.verifier.select(rows)
        self.draft.select(rows)

    def join(self, other: "Running") -> None:
        """Append the rows of another batch behind one's own. The drafts of both have just observed."""
        self.requests += other.requests
        self.verifier.join(other.verifier)
        self.draft.join(other.draft)


class BatchDecoder:
    """Decodes requests that may be submitted and cancelled at any time, in rounds over all that run.

    max_rows: requests that run at once. max_tokens: bound on the sum of prompt + max_new_tokens + policy.levels over
    them, so that memory has a bound too. max_waiting: requests that may wait for either. rule: how trees are verified,
    see `c2t.verification.compatibility.RULES`. Raises InputError for MCSD+, whose forks stay with the batch that they
    began in.

    The order is first come, first served: a request that does not fit yet holds back all that came after it, so that
    none waits for ever. `step` must be called by one thread at a time; `submit` and `cancel` may be called by any
    thread, also during a step.
    """

    def __init__(
        self,
        pair: Pair,
        policy: Policy,
        *,
        max_rows: int = 16,
        max_tokens: int = 16384,
        max_waiting: int = 1024,
        rule: str | None = None,
    ):
        check_kind("pair", pair, Pair, "a pair that load_pair has loaded")
        self.pair, self.policy, self.rule = pair, policy, check_rule(policy, rule)
        self.max_rows, self.max_tokens, self.max_waiting = max_rows, max_tokens, max_waiting
        whole(self, "max_rows", "max_tokens", "max_waiting", least=1, most=2**62)
        check_compatible(policy, pair.target)
        if policy.proposal == "target-initialised":
            raise InputError(f"{type(policy).__name__} decodes fixed batches only; use generate, or another policy")
        self.last: Step | None = None  # the round of the last step, for who counts what rounds cost and yield
        self.failure: Exception | None = None  # what the last step raised inside, if anything
        self._queue: deque[Request] = deque()
        self._suspects: deque[Request] = deque()  # of a round that failed, each of which is tried alone
        self._tried: deque[Request] = deque()  # of them, those whose round alone went well
        self._running: Running | None = None
        self._lock = threading.Lock()  # of the queue and of the requests' ends

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
        default. Raises InputError for an empty prompt, ids outside the vocabulary, a max_new_tokens below 1, or a
        request that the target has no positions for; Refused for one that exceeds max_tokens; Full where too many wait.
        """
        target = self.pair.target
        ids = checked_ids(prompt, target.config.vocab_size)
        check_new_tokens(max_new_tokens)
        check_length(len(ids), max_new_tokens, target.max_positions, "the prompt")
        check_sequence(sequence)
        check_kind("sampling", sampling, Sampling, "settings, such as Sampling(temperature=0.7)")
        if eos is not None:
            check_kind("eos", eos, Set, "a set of token ids")
            for token in eos:
                check_whole("eos: a token id", token)
        request = Request(ids, max_new_tokens, sampling, sequence, target.eos if eos is None else frozenset(eos))
        needed = self._needed(request)
        if needed > self.max_tokens:
            parts = f"{len(ids)} tokens + {max_new_tokens} new ones + {self.policy.levels} of a tree"
            limit = f"the limit is {self.max_tokens} (max_tokens); shorten the prompt or the answer"
            raise Refused(f"the request needs {needed} tokens ({parts}), {limit}")
        with self._lock:
            if len(self._queue) >= self.max_waiting:
                raise Full(f"{len(self._queue)} requests are waiting, the limit is {self.max_waiting}; try again later")
            self._queue.append(request)
        return request

    def room(self, prompt: int) -> int:
        """Return how many new tokens a prompt of so many tokens may have at most; 0 or less where it has no room."""
        return min(self.pair.target.max_positions, self.max_tokens - self.policy.levels) - prompt

    def cancel(self, request: Request) -> None:
        """End a request, whose row is free before the next round; its tokens so far stay. One that has ended stays as
        it is."""
        check_kind("request", request, Request, "what submit has returned")
        with self._lock:
            if request.finish is None:
                request.finish = "cancelled"
            for waiting in (self._queue, self._suspects, self._tried):
                if request in waiting:
                    waiting.remove(request)

    @torch.inference_mode()
    def step(self) -> list[Update]:
        """Admit waiting requests, play one round, and return what it has added, one Update for each request; an empty
        list if there is nothing to do.

        A request gets the token after its prompt and its first round in the step that admits it. If a round fails, each
        of its requests plays the next one alone, from its prompt and the tokens that it has: one that fails again has
        ended as "failed", and the others go on together with the text that they would have had. Raises what fails for
        no request in particular; those that wait can go on.
        """
        self.last = self.failure = None
        requests = [*self._requests]
        try:
            self._drop_cancelled()
            trial = bool(self._suspects)
            arrived = self._admit()
            requests = [*self._requests, *arrived]
            self._play(arrived)
            if trial:
                self._end_trial()
        except Exception as error:
            if not requests:
                raise
            self._isolate(requests, error)
        except BaseException:
            self._running = None
            for request in requests:
                self.cancel(request)
            raise
        with self._lock:
            return [*self._news(requests)]

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return len(self._queue) + len(self._suspects) + len(self._tried)

    @property
    def running(self) -> int:
        """Number of requests that run; a cancelled one is among them until the next step."""
        return len(self._requests)

    @property
    def tokens_in_use(self) -> int:
        """Part of max_tokens that the running requests have set aside."""
        return sum(map(self._needed, self._requests))

    @property
    def _requests(self) -> list[Request]:
        running = self._running  # read once: another thread may ask while a step ends
        return running.requests if running else []

    def _needed(self, request: Request) -> int:
        """Return the places of the cache that a request takes at most: the last tree may stand beyond its end."""
        return len(request.prompt) + request.max_new_tokens + self.policy.levels

    def _drop_cancelled(self) -> None:
        going = [row for row, request in enumerate(self._requests) if request.finish is None]
        if len(going) < len(self._requests):
            self._running = self._kept(self._running, going)

    def _admit(self) -> list[Request]:
        """Take requests out of the queue, in their order, as long as the next one fits; or one that is suspect."""
        admitted: list[Request] = []
        rows, tokens = self.max_rows - self.running, self.max_tokens - self.tokens_in_use
        with self._lock:
            if self._suspects:
                return [self._suspects.popleft()]
            while self._queue and len(admitted) < rows and self._needed(self._queue[0]) <= tokens:
                admitted.append(self._queue.popleft())
                tokens -= self._needed(admitted[-1])
        return admitted

    def _isolate(self, requests: list[Request], error: Exception) -> None:
        """Note the failure of a round that was one request's own; suspect each of several, if it goes on."""
        self.failure, self._running = error, None
        with self._lock:
            going = [request for request in requests if request.finish is None]
            if len(requests) > 1:
                self._suspects.extendleft(reversed(going))
                return
            for request in going:
                request.finish, request.error = "failed", error
        self._end_trial()

    def _end_trial(self) -> None:
        """Set the request that was tried aside, if it goes on, and let all go on together after the last trial."""
        with self._lock:
            self._tried.extend(request for request in self._requests if request.finish is None)
            self._running = None
            if not self._suspects:
                self._queue.extendleft(reversed(self._tried))
                self._tried.clear()

    def _news(self, requests: list[Request]) -> Iterator[Update]:
        """Yield what requests have got since they were last asked."""
        for request in requests:
            new = request.tokens[request.reported :]
            if request.finish != "cancelled" and (new or request.finish):
                request.reported = len(request.tokens)
                yield Update(request, new, request.finish)

    def _play(self, arrived: list[Request]) -> None:
        """Play one round over the running requests and those that have just arrived."""
        if self._running:
            self._running.observe()
        if arrived and (new := self._prefill(arrived)):
            new.observe()
            if self._running:
                self._running.join(new)
            else:
                self._running = new
        if running := self._running:
            step, running.committed = speculate(running.draft, self.policy, running.verifier)
            self.last, self._running = step, self._hand_out(running, step)

    def _prefill(self, arrived: list[Request]) -> Running | None:
        """Run the prompts in one batch of their own; None if all texts end with their first token."""
        verifier = TargetVerifier(
            self.pair.target,
            self.policy,
            [request.prompt + request.tokens for request in arrived],  # tokens: of one that was suspect
            max_new_tokens=[request.max_new_tokens - len(request.tokens) for request in arrived],
            sampling=[request.sampling for request in arrived],
            eos=[request.eos for request in arrived],
            sequences=[request.sequence for request in arrived],
            rule=self.rule,
        )
        step, committed = verifier.prefill()
        draft = open_session(self.pair.draft, self.policy, self.max_rows, verifier)
        return self._hand_out(Running(arrived, verifier, draft, committed), step)

    def _hand_out(self, running: Running, step: Step) -> Running | None:
        """Give each request the tokens of its row; return the rows whose texts go on."""
        with self._lock:
            for request, (_, tokens) in zip(running.requests, step.by_row(), strict=True):
                if request.finish is None:
                    request.add(tokens)
        return self._kept(running, running.verifier.unfinished(step))

    def _kept(self, running: Running, rows: list[int]) -> Running | None:
        """Return these rows only; None if there are none."""
        if not rows:
            return None
        if len(rows) < len(running.requests):
            running.select(torch.tensor(rows, device=self.pair.target.device))
        return running
