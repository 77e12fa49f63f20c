"""A conversation on the command line: turns from the terminal or a pipe, answers as they are generated."""

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

from c2t.cli import reports, terminal
from c2t.cli.stream import TextStream
from c2t.costs.statistics import Statistics, Trace, total
from c2t.decoder import SpeculativeDecoder
from c2t.decoding import Step
from c2t.errors import InputError
from c2t.grammars.grammar import Grammar
from c2t.models.target.prefixes import Prefixes
from c2t.output.signals import Stopped, held_back
from c2t.sampling import new_seed

MARK, EXIT = "> ", "/exit"


class Settings(NamedTuple):
    """How every answer is decoded; see `SpeculativeDecoder.generate`."""

    max_new_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    rule: str | None = None
    stop: tuple[str, ...] = ()
    constraint: Grammar | None = None

    def stream(self, decoder: SpeculativeDecoder, before: str = "") -> TextStream:
        """Return what prints one text that is decoded so, after the text before it."""
        return TextStream(decoder, self.max_new_tokens, before, self.stop, self.constraint is not None)

    def facts(self) -> dict[str, Any]:
        """Return the settings as a result line has them."""
        return self._asdict() | {"constraint": self.constraint and asdict(self.constraint)}


class Conversation(NamedTuple):
    """Turns and answers in order, the cost of the answers, and their seed."""

    turns: list[str]
    answers: list[str]
    total: Statistics
    seconds: float
    seed: int


class _Interrupted(Exception):
    """Ends an answer after the round in which Ctrl-C came."""


def converse(
    decoder: SpeculativeDecoder,
    first: str | None,
    settings: Settings,
    system: str | None = None,
    verbose: bool = False,
) -> Conversation:
    """Answer turn after turn until /exit or the end of the input, and print the answers as they are generated.

    first: the turn to begin with, before any is read. system: the system turn before it. A turn that cannot be
    answered, because the conversation gets too long for the target, is left out in a terminal and ends the command in a
    pipe (InputError).
    """
    if not decoder.pair.template:
        raise InputError(f"the pair {decoder.pair.name} has no chat template: --chat needs a pair that has one")
    decoder.pair.target.prefixes = Prefixes()  # a turn begins with all turns before it
    if settings.seed is None:
        settings = settings._replace(seed=new_seed() if settings.temperature else 0)
    seed = settings.seed if settings.temperature else None
    turns: list[str] = []
    answers: list[str] = []
    costs: list[Statistics] = []
    start, seconds = 0.0, 0.0
    for turn in _turns(first):
        try:
            ids = _encode(decoder, [*turns, turn], answers, system, settings.max_new_tokens)
            start = time.perf_counter()
            answer, cost = _answer(decoder, ids, settings)
        except InputError as error:
            if not _interactive():
                raise
            terminal.say(f"c2t: {error}", error=True)
            continue
        took = time.perf_counter() - start
        terminal.say(reports.statistics_line(cost, took, seed, verbose), error=True)
        turns.append(turn)
        answers.append(answer)
        costs.append(cost)
        seconds += took
    return Conversation(turns, answers, total(costs), seconds, settings.seed)


def _interactive() -> bool:
    """Return True if turns come from a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _turns(first: str | None) -> Iterator[str]:
    """Yield the turns: `first`, then a line each; empty lines are none."""
    if first is not None and first.strip() == EXIT:
        return
    if first is not None and first.strip():
        yield first
    if _interactive():
        with contextlib.suppress(ImportError):  # keys that edit a line, where the system has them
            import readline  # noqa: F401, PLC0415
        terminal.say(f"{EXIT} or Ctrl-D ends the conversation, Ctrl-C an answer.", error=True)
    while True:
        try:
            turn = input(MARK if _interactive() else "").strip()
        except EOFError:
            if _interactive():
                terminal.say("")  # leave the line of the mark
            return
        except UnicodeDecodeError as error:
            raise InputError("a turn is not UTF-8: give text") from error
        except Stopped as stopped:
            stopped.add_note("the conversation is over")
            raise
        if turn == EXIT:
            return
        if turn:
            yield turn


def _encode(
    decoder: SpeculativeDecoder, turns: list[str], answers: list[str], system: str | None, new: int
) -> list[int]:
    """Return the conversation as token ids; InputError if it gets too long for the target."""
    messages = [
        {"role": role, "content": text}
        for turn, answer in zip(turns, [*answers, ""], strict=True)
        for role, text in (("user", turn), ("assistant", answer))
    ]
    [ids] = decoder.encode(messages[:-1], system=system)
    room = decoder.pair.target.max_positions
    if len(ids) + new > room:
        raise InputError(
            f"the conversation has {len(ids):,} tokens with this turn, and an answer of up to {new:,} would exceed the "
            f"target's {room:,} positions: give a shorter turn or --max-new-tokens, or begin a new conversation"
        )
    return ids


def _answer(decoder: SpeculativeDecoder, ids: list[int], settings: Settings) -> tuple[str, Statistics]:
    """Print the answer and return it with its cost, both up to where Ctrl-C ended it."""
    stream, trace = settings.stream(decoder), Trace(1)
    with held_back() as interrupted:

        def watch(step: Step) -> None:
            trace.add(step)
            stream(step)
            if interrupted.is_set():
                raise _Interrupted

        try:
            with contextlib.suppress(_Interrupted):
                decoder.generate([ids], **settings._asdict(), watch=watch)
        finally:
            stream.end()
    trace.finish([len(stream.tokens)])
    return stream.shown, trace.statistics[0]
