"""An asynchronous front of a `BatchDecoder`: one thread runs the rounds, and any number of clients wait for tokens."""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence

from c2t.batching import BatchDecoder, Request, Update
from c2t.costs.statistics import Statistics
from c2t.decoding import Step
from c2t.errors import InputError, one_line, plain
from c2t.grammars.constraint import Constraint
from c2t.sampling import Sampling
from c2t.verification.logprobs import TokenLogprob

LOG = logging.getLogger("c2t.serving")


class Failed(Exception):
    """A request that was lost because decoding failed. lasting: it would fail again; else it may be sent again. param:
    the field at fault."""

    def __init__(self, message: str, lasting: bool = False, param: str | None = None):
        super().__init__(message)
        self.lasting, self.param = lasting, param


class ServerStopping(Exception):
    """A request that came when the front was closing, or that had not ended by then."""


class Watch:
    """Observer of a front, called by the thread of the rounds; this one ignores everything."""

    def stepped(self, updates: Sequence[Update], step: Step | None, seconds: float) -> None:
        """Note a step of the decoder, and the round in it."""

    def began(self, seconds: float) -> None:
        """Note a request's first tokens, so many seconds after it came."""

    def ended(self, outcome: str) -> None:
        """Note a request's end: "stop", "length", "cancelled" or "failed"."""


class AsyncFront:
    """Decodes requests of any number of asyncio tasks as they come and go, on a thread of its own.

    An error in a round fails only the request whose round alone raises it; its client gets the error.
    """

    def __init__(self, decoder: BatchDecoder, watch: Watch = Watch()):
        self.decoder, self.watch = decoder, watch
        self.clients: dict[Request, _Client] = {}
        self.changed = threading.Condition()  # guards `clients` and `deadline`
        self.left: deque[tuple[Request, str]] = deque()  # requests whose clients are gone, with their outcomes
        self.deadline: float | None = None
        self.thread = threading.Thread(target=self._run, name="rounds", daemon=True)
        self.thread.start()

    def generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        sampling: Sampling = Sampling(),
        sequence: int = 0,
        eos: frozenset[int] | None = None,
        constraint: Constraint | None = None,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
    ) -> "Answer":
        """Submit a request and return its tokens to come; arguments and errors as of `BatchDecoder.submit`.

        To be called where an event loop runs. Raises ServerStopping once the front is being closed.
        """
        with self.changed:
            if self.deadline is not None:
                raise ServerStopping("the server takes no more requests: send this one elsewhere or later")
            settings = sampling, sequence, eos, constraint, logprobs, prompt_logprobs
            request = self.decoder.submit(prompt, max_new_tokens, *settings)
            client = self.clients[request] = _Client()
            self.changed.notify()
        return Answer(self, request, client)

    def close(self, seconds: float = 0.0) -> None:
        """Take no more requests, and give those that are there so many seconds to end. Does not wait for that."""
        with self.changed:
            self.deadline = min(time.monotonic() + seconds, math.inf if self.deadline is None else self.deadline)
            self.changed.notify()

    @property
    def alive(self) -> bool:
        """True as long as requests are taken."""
        return self.thread.is_alive() and self.deadline is None

    def forget(self, request: Request, outcome: str) -> None:
        """End a request before the next round. From any thread, also while Python collects garbage: so no lock."""
        self.left.append((request, outcome))

    def _run(self) -> None:
        """Run rounds until the front closes."""
        try:
            while self._wait():
                self._cancel()
                start = time.perf_counter()
                try:
                    updates = self.decoder.step()
                except Exception as error:  # noqa: BLE001 - clients get any error, and the server goes on
                    self._lose(error)
                    continue
                if self.decoder.failure:
                    LOG.error("a round failed", exc_info=self.decoder.failure)
                self.watch.stepped(updates, self.decoder.last, time.perf_counter() - start)
                for update in updates:
                    self._deliver(update)
        finally:
            self._cancel()
            with self.changed:
                self.deadline = self.deadline or 0.0  # a request that came now would wait for ever
                self._give_up(list(self.clients), ServerStopping("the server was stopped before the text had ended"))

    def _wait(self) -> bool:
        """Wait until there is something to do; return False when nothing will come."""
        with self.changed:
            self.changed.wait_for(lambda: self.clients or self._busy or self.deadline is not None)
            if self.deadline is None:
                return True
            return bool(self.clients) and time.monotonic() < self.deadline

    @property
    def _busy(self) -> bool:
        return self.decoder.running + self.decoder.waiting > 0

    def _cancel(self) -> None:
        """Free the rows of clients that are gone."""
        while self.left:
            request, outcome = self.left.popleft()
            with self.changed:
                client = self.clients.pop(request, None)
            if client:
                self.decoder.cancel(request)
                self.watch.ended(outcome)

    def _deliver(self, update: Update) -> None:
        """Hand new tokens to the client, if it is still there."""
        with self.changed:
            client = self.clients.get(update.request)
            if client and update.finish:
                del self.clients[update.request]
        if client is None:
            return
        if update.tokens and not client.begun:
            client.begun = True
            self.watch.began(time.monotonic() - client.since)
        if update.finish:
            self.watch.ended(update.finish)
        client.put(failed(update.request.error) if update.finish == "failed" else update)

    def _lose(self, error: Exception) -> None:
        """Fail every request by an error that is no single request's: the next step would fail as well."""
        LOG.error("decoding failed", exc_info=error)
        if not self.clients:  # a step without requests fails: so would every other one
            raise error
        with self.changed:
            self._give_up(list(self.clients), failed(error))

    def _give_up(self, requests: Sequence[Request], reason: Exception) -> None:
        for request in requests:
            self.decoder.cancel(request)
            self.watch.ended("failed")
            self.clients.pop(request).put(reason)


def failed(error: Exception) -> Failed:
    """Return the error that a client gets when decoding fails."""
    if isinstance(error, InputError):
        return Failed(f"the text cannot go on: {error}", lasting=True)
    what = plain(f"{type(error).__name__}: {one_line(error)}")
    return Failed(f"decoding failed ({what}); the request is lost, send it again")


class _Client:
    """The queue of one request's updates."""

    def __init__(self):
        self.loop, self.inbox = asyncio.get_running_loop(), asyncio.Queue()
        self.since, self.begun = time.monotonic(), False

    def put(self, update: Update | Exception | None) -> None:
        """Add an update, from any thread."""
        try:
            self.loop.call_soon_threadsafe(self.inbox.put_nowait, update)
        except RuntimeError:  # its event loop is closed: no client waits
            return


class Answer:
    """The tokens of one request: `async for tokens in answer` yields what each round adds.

    finish: None until the text has ended, then "stop", "length" or "cancelled". `close` ends it and frees its row
    before the next round; so does cancelling the task that waits for tokens, or dropping the answer. Raises Failed and
    ServerStopping where the text cannot go on.
    """

    def __init__(self, front: AsyncFront, request: Request, client: _Client):
        self._front, self._request, self._client = front, request, client
        self.finish: str | None = None

    def __aiter__(self) -> "Answer":
        return self

    async def __anext__(self) -> list[int]:
        if self.finish:
            raise StopAsyncIteration
        try:
            update = await self._client.inbox.get()
        except asyncio.CancelledError:
            self.close()
            raise
        if isinstance(update, Exception):
            self.finish = "cancelled"
            raise update
        if update is None:  # `close` was called
            raise StopAsyncIteration
        self.finish = self.finish or update.finish  # `close` may have come before it
        return update.tokens

    @property
    def statistics(self) -> Statistics:
        """Counts of the rounds so far."""
        return self._request.statistics

    @property
    def cached(self) -> int:
        """Tokens of the prompt that were not computed again, once something was yielded."""
        return self._request.cached

    @property
    def logprobs(self) -> list[TokenLogprob] | None:
        """Log-probabilities of the new tokens, of all that were yielded at least; None if nobody asked for them."""
        return self._request.logprobs

    @property
    def prompt_logprobs(self) -> list[TokenLogprob] | None:
        """Those of the prompt, once something was yielded; None if nobody asked for them."""
        return self._request.prompt_logprobs

    def close(self, outcome: str = "cancelled") -> None:
        """End the request; outcome: "stop" for a text that the caller has ended, say at a stop string."""
        if self.finish is None:
            self.finish = outcome
            self._front.forget(self._request, outcome)
            self._client.put(None)

    def __del__(self) -> None:
        if self.finish is None:
            self._front.forget(self._request, "cancelled")
