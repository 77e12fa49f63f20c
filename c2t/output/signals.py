"""Signals that end the command line, as one exception. The running code leaves its files whole, and one line says how
to go on."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
# Seconds: a second signal after them ends the process immediately, an earlier one is taken as a repetition.
PATIENCE = 5.0
BEGINNING = "nothing has begun; run the command again"
ENDED = "the command had ended before, and what it writes is written"


class Stopped(BaseException):
    """A signal has arrived. It is no KeyboardInterrupt, which Lightning and Typer handle themselves.

    Code that writes a file adds a note that says what is on disk and how to go on.
    """

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        notes = getattr(self, "__notes__", ["no file is half-written; run the command again"])
        return f"stopped by {signal.Signals(self.number).name}: {'; '.join(notes)}"


class Stopping:
    """Handler of the signals. While a command runs it raises Stopped in the main thread; otherwise it ends the process.

    note: the note of the line that it then prints; None while a command runs.
    """

    def __init__(self):
        self.note: str | None = BEGINNING
        self.since: float | None = None
        for name in SIGNALS:
            number = getattr(signal, name, None)  # Windows lacks one
            if number is not None and signal.getsignal(number) != signal.SIG_IGN:  # which nohup wants
                signal.signal(number, self)

    def __call__(self, number: int, _: FrameType | None) -> None:
        if self.since is not None:
            if time.monotonic() - self.since > PATIENCE:
                end(128 + number, f"c2t: {Stopped(number)}")
        elif self.note is not None:
            stopped = Stopped(number)
            stopped.add_note(self.note)
            end(128 + number, f"c2t: {stopped}")
        else:
            self.since = time.monotonic()
            raise Stopped(number)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Let a signal end the process, as before a command runs: an import may turn Stopped into an error of its own."""
    handlers = {signal.getsignal(getattr(signal, name)) for name in SIGNALS if hasattr(signal, name)}
    handlers = [handler for handler in handlers if isinstance(handler, Stopping)]
    for handler in handlers:
        handler.note = BEGINNING
    try:
        yield
    finally:
        for handler in handlers:
            handler.note = None


@contextmanager
def held_back() -> Iterator[threading.Event]:
    """Yield an Event that Ctrl-C sets instead of ending the command; the caller stops where it can."""
    event = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if before != signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: event.set())
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def end(code: int, line: str = "") -> NoReturn:
    """End the process with a line on stderr, without Python's own shutdown, which a signal could interrupt.

    The exit code is not 0 if output was lost.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, RuntimeError):  # a full disk, a closed pipe, or a write that was interrupted
            code = code or 1
    if line:
        with suppress(OSError):  # a terminal that is closed
            os.write(2, f"{line}\n".encode(errors="replace"))
    os._exit(code)
