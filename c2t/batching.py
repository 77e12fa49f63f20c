"""Continuous batching: requests join and leave the batch between rounds.

Rows of a batch do not attend to each other, and random numbers depend only on (seed, sequence, position). So a
request's text does not depend on the other requests of the batch.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from c2t.costs.statistics import RoundCounts, Statistics, counts_of
from c2t.decoding import Committed, Step, cut, open_session, speculate
from c2t.errors import InputError, check_kind, check_whole, whole
from c2t.grammars.constraint import Constraint
from c2t.grammars.row_constraint import RowConstraint
from c2t.models.loading.load import Pair
from c2t.protocols import Policy, Session
from c2t.sampling import Sampling, check_sequence
from c2t.verification.compatibility import check_compatible, check_constraint, check_rule, on_device
from c2t.verification.logprobs import TokenLogprob, check_logprobs
from c2t.verification.prompt_ids import check_length, check_new_tokens, checked_ids
from c2t.verification.target_verifier import TargetVerifier


class Refused(InputError):
    """A request that exceeds the limits of this decoder."""


class Full(InputError):
    """A request for which the queue has no room; it may be submitted again later."""


@dataclass(eq=False)  # two requests with the same prompt are two requests
class Request:
    """One prompt to continue, and its new tokens so far.

    tokens: the new tokens, cut at the end of the text. finish: None while it waits or runs, then "stop" (an EOS token),
    "length" (max_new_tokens), "cancelled", or "failed" (see `error`). statistics: counts of its rounds.

    logprobs, prompt_logprobs: of each new token and of each of the prompt, where `top` and `prompt_top` say with how
    many most probable tokens; else None. cached: tokens of the prompt that were not computed again.
    """

    prompt: list[int]
    max_new_tokens: int
    sampling: Sampling
    sequence: int
    eos: frozenset[int]
    constraint: Constraint | None = None
    top: int | None = None
    prompt_top: int | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    cached: int = 0
    finish: str | None = None
    error: Exception | None = None
    reported: int = 0  # tokens that steps have returned
    statistics: Statistics = field(default_factory=partial(Statistics, prompts=1))

    def add(self, tokens: list[int], counts: RoundCounts | None = None, logprobs: Sequence[TokenLogprob] = ()) -> None:
        """Append the tokens of a round, cut at the end of the text, and set `finish` there. counts: of the round; None
        of the prefill."""
        text = cut(self.tokens + tokens, self.max_new_tokens, self.eos)
        new = len(text) - len(self.tokens)
        of_round = Statistics(new_tokens=new, cut=len(tokens) - new)
        if counts is not None:
            of_round.add(counts)
        self.statistics += of_round  # a new object: another thread may be reading the old one
        if self.top is not None:
            self.logprobs = [*(self.logprobs or []), *logprobs][: len(text)]
        self.tokens = text  # last, because another thread may read both
        if text and text[-1] in self.eos:
            self.finish = "stop"
        elif len(self.tokens) == self.max_new_tokens:
            self.finish = "length"


class Update(NamedTuple):
    """The tokens that one step has added to a request; empty only if it failed, or wants none. finish: as in `Request`,
    but never "cancelled"."""

    request: Request
    tokens: list[int]
    finish: str | None


@dataclass
class Running:
    """The requests of the batch, one per row. committed: tokens that the draft has not observed yet."""

    requests: list[Request]
    verifier: TargetVerifier
    draft: Session
    committed: Committed

    def observe(self) -> None:
        """Let the draft observe the committed tokens, so that it can be joined and expanded."""
        self.draft.observe(*self.committed)

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows, in this order."""
        self.requests = [self.requests[row] for row in rows.tolist()]
        self.committed = self.committed.select(rows)
        self.verifier.select(rows)
        self.draft.select(rows)

    def join(self, other: "Running") -> None:
        """Append the rows of another batch. The drafts of both must have just observed."""
        self.requests += other.requests
        self.verifier.join(other.verifier)
        self.draft.join(other.draft)


class BatchDecoder:
    """Decodes requests, which may be submitted and cancelled at any time, in rounds over all running ones.

    max_rows: maximum number of running requests. max_tokens: limit on the sum of their prompt + max_new_tokens +
    policy.levels, which limits memory. max_waiting: maximum length of the queue. rule: verification rule of the trees,
    see `c2t.verification.compatibility.RULES`. Raises InputError for MCSD+, whose forks cannot join a batch.

    Requests are served in their order of arrival. One that does not fit yet delays all later ones, so that none waits
    for ever. Only one thread at a time may call `step`; any thread may call `submit` and `cancel`, also during a step.
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
        self.pair, self.rule = pair, check_rule(policy, rule)
        self.max_rows, self.max_tokens, self.max_waiting = max_rows, max_tokens, max_waiting
        whole(self, "max_rows", "max_tokens", "max_waiting", least=1, most=2**62)
        check_compatible(policy, pair.target)
        self.policy = on_device(policy, pair.target.device)
        if policy.proposal == "target-initialised":
            raise InputError(f"{type(policy).__name__} decodes fixed batches only; use generate, or another policy")
        self.last: Step | None = None  # the round of the last step, for statistics
        self.failure: Exception | None = None  # the error inside the last step, if any
        self._queue: deque[Request] = deque()
        self._suspects: deque[Request] = deque()  # requests of a failed round, each of which runs one round alone
        self._tried: deque[Request] = deque()  # those of them whose round alone succeeded
        self._running: Running | None = None
        self._lock = threading.Lock()  # guards the queue and the requests' `finish`

    def submit(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        sampling: Sampling = Sampling(),
        sequence: int = 0,
        eos: frozenset[int] | None = None,
        constraint: Constraint | None = None,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
    ) -> Request:
        """Put a request in the queue and return it; the next step admits it, if there is room.

        prompt: token ids. sequence: number of its random stream. eos: tokens that end the text, by default the
        target's, which also end a text with a constraint. constraint: what the text must follow; it is compiled here.

        logprobs: with how many most probable tokens, 0 to 20, the new tokens' log-probabilities are wanted
        (`Request.logprobs`). prompt_logprobs: the same for the prompt, which needs no new tokens.

        Raises InputError for an empty prompt, ids outside the vocabulary, a max_new_tokens below 1 (0 with
        prompt_logprobs), or a request longer than the target's positions. Raises Refused for a request that exceeds
        max_tokens, and Full for a full queue.
        """
        target = self.pair.target
        ids = checked_ids(prompt, target.config.vocab_size)
        check_logprobs("logprobs", logprobs)
        check_logprobs("prompt_logprobs", prompt_logprobs)
        check_new_tokens(max_new_tokens, least=1 if prompt_logprobs is None else 0)
        check_length(len(ids), max_new_tokens, target.max_positions, "the prompt")
        check_sequence(sequence)
        check_kind("sampling", sampling, Sampling, "settings, such as Sampling(temperature=0.7)")
        sampling.check_vocabulary(target.config.vocab_size)
        if eos is not None:
            check_kind("eos", eos, Set, "a set of token ids")
            for token in eos:
                check_whole("eos: a token id", token)
        ends = target.eos if eos is None else frozenset(eos)
        if constraint is not None:
            check_constraint(self.policy, constraint)
            RowConstraint.of(constraint, self.pair.vocabulary)  # raises InputError before the request is queued
            ends |= target.eos
        request = Request(ids, max_new_tokens, sampling, sequence, ends, constraint, logprobs, prompt_logprobs)
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
        """Return the largest max_new_tokens for a prompt of this many tokens; 0 or less if the prompt does not fit."""
        return min(self.pair.target.max_positions, self.max_tokens - self.policy.levels) - prompt

    def cancel(self, request: Request) -> None:
        """End a request and free its row before the next round. Its tokens remain; a request that has ended stays as it
        is."""
        check_kind("request", request, Request, "what submit has returned")
        with self._lock:
            if request.finish is None:
                request.finish = "cancelled"
            for waiting in (self._queue, self._suspects, self._tried):
                if request in waiting:
                    waiting.remove(request)

    @torch.inference_mode()
    def step(self) -> list[Update]:
        """Admit waiting requests and run one round. Return one Update for each request that has new tokens or ends.

        The step that admits a request also runs its prompt and its first round. If a round fails, each of its requests
        runs one round alone, from its prompt and the tokens so far. A request that fails alone ends as "failed"; the
        others continue together, with unchanged texts. Raises an error that concerns no request; waiting ones remain.
        """
        self.last = self.failure = None
        requests = [*self._requests]
        try:
            self._drop_cancelled()
            trial = bool(self._suspects)
            arrived = self._admit()
            requests = [*self._requests, *arrived]
            self._run_round(arrived)
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
            return [*self._updates(requests)]

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._queue) + len(self._suspects) + len(self._tried)

    @property
    def running(self) -> int:
        """Number of running requests; a cancelled one counts until the next step."""
        return len(self._requests)

    @property
    def tokens_in_use(self) -> int:
        """Part of max_tokens that the running requests use."""
        return sum(map(self._needed, self._requests))

    @property
    def _requests(self) -> list[Request]:
        running = self._running  # read once: another thread may read it while a step ends
        return running.requests if running else []

    def _needed(self, request: Request) -> int:
        """Return the maximum number of cache slots of a request; its last tree may extend past its end."""
        return len(request.prompt) + request.max_new_tokens + self.policy.levels

    def _drop_cancelled(self) -> None:
        unfinished = [row for row, request in enumerate(self._requests) if request.finish is None]
        if len(unfinished) < len(self._requests):
            self._running = self._retain(self._running, unfinished)

    def _admit(self) -> list[Request]:
        """Take requests off the queue, in their order, as long as the next one fits; or one suspect alone."""
        admitted: list[Request] = []
        rows, tokens = self.max_rows - self.running, self.max_tokens - self.tokens_in_use
        with self._lock:
            if self._suspects:
                return [self._suspects.popleft()]
            self._queue.extendleft(reversed(self._tried))  # also where the last suspect was cancelled before its round
            self._tried.clear()
            while self._queue and len(admitted) < rows and self._needed(self._queue[0]) <= tokens:
                admitted.append(self._queue.popleft())
                tokens -= self._needed(admitted[-1])
        return admitted

    def _isolate(self, requests: list[Request], error: Exception) -> None:
        """Handle a failed round: end its request as "failed" if it was alone, else suspect each of them."""
        self.failure, self._running = error, None
        with self._lock:
            unfinished = [request for request in requests if request.finish is None]
            if len(requests) > 1:
                self._suspects.extendleft(reversed(unfinished))
                return
            for request in unfinished:
                request.finish, request.error = "failed", error
        self._end_trial()

    def _end_trial(self) -> None:
        """Set aside the request that ran alone; after the last one, the next step puts all of them back into the
        queue."""
        with self._lock:
            self._tried.extend(request for request in self._requests if request.finish is None)
            self._running = None

    def _updates(self, requests: list[Request]) -> Iterator[Update]:
        """Yield the tokens of each request since its last Update."""
        for request in requests:
            new = request.tokens[request.reported :]
            if request.finish != "cancelled" and (new or request.finish):
                request.reported = len(request.tokens)
                yield Update(request, new, request.finish)

    def _run_round(self, arrived: list[Request]) -> None:
        """Run one round over the running requests and those that have just arrived."""
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
        """Run these prompts as a separate batch; return None if all texts end with their first token."""
        verifier = TargetVerifier(
            self.pair.target,
            self.policy,
            [request.prompt + request.tokens for request in arrived],  # a suspect has tokens already
            max_new_tokens=[request.max_new_tokens - len(request.tokens) for request in arrived],
            sampling=[request.sampling for request in arrived],
            eos=[request.eos for request in arrived],
            sequences=[request.sequence for request in arrived],
            rule=self.rule,
            constraints=[self._row_constraint(request) for request in arrived],
            generated=[len(request.tokens) for request in arrived],
            logprobs=[request.top for request in arrived],
            prompt_logprobs=[None if request.prompt_logprobs else request.prompt_top for request in arrived],
        )
        step, committed = verifier.prefill()
        for request, logprobs in zip(arrived, step.extra.get("prompt_logprobs", ()), strict=False):
            request.prompt_logprobs = logprobs or request.prompt_logprobs
        for request, cached in zip(arrived, step.extra.get("cached", ()), strict=False):
            request.cached = request.cached if request.tokens else cached  # a suspect's new tokens are no prompt
        draft = open_session(self.pair.draft, self.policy, self.max_rows, verifier)
        return self._hand_out(Running(arrived, verifier, draft, committed), step)

    def _row_constraint(self, request: Request) -> RowConstraint | None:
        """Return the constraint after a request's tokens."""
        if request.constraint is None:
            return None
        row = RowConstraint.of(request.constraint, self.pair.vocabulary)
        row.advance(request.tokens)
        return row

    def _hand_out(self, running: Running, step: Step) -> Running | None:
        """Add each row's tokens to its request; return the rows whose texts have not ended."""
        rows = len(running.requests)
        counts, logprobs = counts_of(step) or [None] * rows, step.extra.get("logprobs", [()] * rows)
        with self._lock:
            for request, (_, tokens), *values in zip(running.requests, step.by_row(), counts, logprobs, strict=True):
                if request.finish is None:
                    request.add(tokens, *values)
        return self._retain(running, running.verifier.unfinished(step))

    def _retain(self, running: Running, rows: list[int]) -> Running | None:
        """Return these rows only; None if there are none."""
        if not rows:
            return None
        if len(rows) < len(running.requests):
            running.select(torch.tensor(rows, device=self.pair.target.device))
        return running
