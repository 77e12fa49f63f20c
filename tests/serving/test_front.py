"""The asynchronous front: tokens reach those who wait, who goes away frees the row, and an error ends nothing silently.

The decoder is a script here, which adds a token to every request a step, so that a test can say when.
"""

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from c2t.batching import BatchDecoder, Request, Update
from c2t.grammars.constraint import Constraint
from c2t.sampling import Sampling
from c2t.serving import front
from c2t.serving.front import Answer, AsyncFront, Failed, ServerStopping, Watch


class Script(BatchDecoder):
    """A decoder of two rows whose texts count from 1; a prompt of 13 fails once it runs, one of 14 makes all fail."""

    def __init__(self):
        self.last = self.failure = None
        self.requests: list[Request] = []
        self.gate = threading.Semaphore(0)  # steps that may be played
        self.steps = 0

    def submit(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        sampling: Sampling,
        sequence: int,
        eos: frozenset[int] | None,
        constraint: Constraint | None,
        logprobs: int | None,
        prompt_logprobs: int | None,
    ) -> Request:
        request = Request(list(prompt), max_new_tokens, sampling, sequence, eos or frozenset())
        self.requests.append(request)
        return request

    def cancel(self, request: Request) -> None:
        request.finish = request.finish or "cancelled"
        self.requests = [other for other in self.requests if other is not request]

    @property
    def running(self) -> int:
        return min(2, len(self.requests))

    @property
    def waiting(self) -> int:
        return len(self.requests) - self.running

    def step(self) -> list[Update]:
        self.gate.acquire()
        self.steps += 1
        news = []
        if any(request.prompt == [14] for request in self.requests):
            raise MemoryError
        self.failure = None
        for request in self.requests[:2]:
            if request.prompt == [13]:
                request.finish, request.error = "failed", RuntimeError("no luck\nwith 13")
                self.failure = request.error
                news.append(Update(request, [], request.finish))
                continue
            request.tokens.append(len(request.tokens) + 1)
            request.finish = "length" if len(request.tokens) == request.max_new_tokens else None
            news.append(Update(request, request.tokens[-1:], request.finish))
        self.requests = [request for request in self.requests if not request.finish]
        return news


class Heard(Watch):
    """What a front told."""

    def __init__(self):
        self.outcomes: list[str] = []
        self.began_after: list[float] = []

    def ended(self, outcome: str) -> None:
        self.outcomes.append(outcome)

    def began(self, seconds: float) -> None:
        self.began_after.append(seconds)


class Stage:
    """A front and its script."""

    def __init__(self):
        self.script, self.heard = Script(), Heard()
        self.front = AsyncFront(self.script, self.heard)

    def play(self, steps: int) -> None:
        self.script.gate.release(steps)

    def submit(self, prompt: int, new: int) -> Answer:
        return self.front.generate([prompt], new)


async def until(true: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        await asyncio.sleep(0.002)


async def all_of(answer: Answer) -> list[int]:
    return [token async for tokens in answer for token in tokens]


def run(play: Callable) -> Stage:
    """Run a play on a stage, and end the thread."""
    stage = Stage()
    asyncio.run(play(stage))
    stage.front.close()
    stage.script.gate.release(100)
    stage.front.thread.join(10)
    assert not stage.front.thread.is_alive()
    return stage


def test_tokens_reach_those_who_wait() -> None:
    async def play(stage: Stage) -> None:
        answers = [stage.submit(number, number + 1) for number in range(3)]  # the third one waits for a row
        stage.play(10)
        texts = await asyncio.gather(*map(all_of, answers))
        assert texts == [[1], [1, 2], [1, 2, 3]]
        assert [answer.finish for answer in answers] == ["length"] * 3
        assert await all_of(answers[0]) == [], "an answer that has ended stays so"

    heard = run(play).heard
    assert heard.outcomes == ["length"] * 3
    assert len(heard.began_after) == 3


@pytest.mark.parametrize("how", ["cancel", "close", "drop"])
def test_who_goes_away_frees_the_row_before_the_next_round(how: str) -> None:
    async def play(stage: Stage) -> None:
        gone, stays, waits = (stage.submit(number, 50) for number in range(3))
        stage.play(1)
        assert await anext(gone) == [1]
        reading = asyncio.create_task(all_of(gone))
        await asyncio.sleep(0)  # in which it begins to wait
        if how == "close":
            gone.close()
            assert await reading == []
        else:
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        if how == "drop":
            dropped = stage.submit(3, 50)
            del dropped
        del gone, reading
        gc.collect()
        before = list(stage.script.requests)
        stage.play(2)  # the first of them may have been under way, waiting for the gate
        await until(lambda: stage.script.steps == 3)
        left = [request.prompt for request in stage.script.requests]
        assert left == [[1], [2]], before
        assert waits.finish is None
        stays.close()

    assert run(play).heard.outcomes == ["cancelled"] * (4 if how == "drop" else 3), "the play's end drops `waits` too"


def test_an_error_costs_the_request_that_raises_it(caplog: pytest.LogCaptureFixture) -> None:
    async def play(stage: Stage) -> None:
        ran, lost, waited = stage.submit(7, 2), stage.submit(13, 5), stage.submit(8, 2)
        stage.play(4)
        with pytest.raises(Failed, match=r"^decoding failed \(RuntimeError: no luck\); the request is lost, send it"):
            await all_of(lost)
        assert await all_of(ran) == await all_of(waited) == [1, 2]
        assert stage.front.alive

    with caplog.at_level(logging.ERROR):
        assert sorted(run(play).heard.outcomes) == ["failed", "length", "length"]
    [record] = caplog.records
    assert record.exc_info, "the log has the traceback"


def test_an_error_that_would_come_again_costs_all_of_them() -> None:
    async def play(stage: Stage) -> None:
        answers = [stage.submit(number, 5) for number in (7, 8, 14)]
        stage.play(1)
        for answer in answers:
            with pytest.raises(Failed, match="MemoryError"):
                await all_of(answer)
        again = stage.submit(7, 1)
        stage.play(1)
        assert await all_of(again) == [1]

    assert run(play).heard.outcomes == ["failed"] * 3 + ["length"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_decoder_that_fails_for_nobody_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(stage: Stage) -> None:
        answer = stage.submit(7, 5)
        with monkeypatch.context() as patch:
            patch.setattr(Script, "running", 1)  # a row that no step can free
            patch.setattr(Script, "waiting", 0)
            patch.setattr(stage.script, "step", lambda: 1 // 0)
            stage.play(1)
            stage.front.thread.join(10)
        with pytest.raises(Failed, match="ZeroDivisionError"):
            await all_of(answer)
        assert not stage.front.alive
        with pytest.raises(ServerStopping):
            stage.submit(7, 1)

    assert run(play).heard.outcomes == ["failed"]


def test_requests_may_end_when_the_front_is_closed_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [time.monotonic()]
    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter)
    monkeypatch.setattr(front, "time", clock)

    async def play(stage: Stage) -> None:
        short, long = stage.submit(1, 2), stage.submit(2, 10**6)
        stage.front.close(600.0)
        assert not stage.front.alive
        with pytest.raises(ServerStopping, match="takes no more requests"):
            stage.submit(3, 1)
        stage.play(2)
        assert await all_of(short) == [1, 2]
        now[0] += 601
        stage.play(1)
        with pytest.raises(ServerStopping, match="before the text had ended"):
            await all_of(long)

    assert run(play).heard.outcomes == ["length", "failed"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_is_no_silence() -> None:
    class Deaf(Watch):
        def stepped(self, *_: object) -> None:
            raise SystemExit  # which no handler takes for an error of decoding

    async def play() -> None:
        stage = Stage()
        stage.front.watch = Deaf()
        answer = stage.submit(1, 5)
        stage.play(1)
        with pytest.raises(ServerStopping):
            await all_of(answer)
        stage.front.thread.join(10)
        assert not stage.front.alive

    asyncio.run(play())
