"""Long work says what it does, its rate and the time left: a bar on a terminal, a line a minute in a log."""

import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from c2t.output import progress
from c2t.output.progress import duration, pace

ROOT = Path(__file__).parents[1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A list whose number is the time in seconds, also that of the last line."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress._Log, "last", now[0])
    monkeypatch.setattr(progress, "MINUTE", 60.0)
    return now


def test_a_log_gets_a_line_a_minute(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("sweep", "bench"):  # the minute goes on from one piece of work to the next
        with progress.progress_bar(name, "prompts") as tell:
            for done in range(13):
                tell(done, 100, f"c2t:beta=0.{done}\x1b[31m")
                clock[0] += 10
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        r"sweep: 6 of 100 prompts, 6 prompts/min, 15 min 40 s left, c2t:beta=0.6\x1b[31m",
        r"sweep: 12 of 100 prompts, 6 prompts/min, 14 min 40 s left, c2t:beta=0.12\x1b[31m",
        r"bench: 5 of 100 prompts, 6 prompts/min, 15 min 50 s left, c2t:beta=0.5\x1b[31m",
        r"bench: 11 of 100 prompts, 6 prompts/min, 14 min 50 s left, c2t:beta=0.11\x1b[31m",
    ]


def test_a_short_command_leaves_no_line(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress_bar("bench", "prompts") as tell:
        tell(0, 2, "")
        clock[0] += 59
        tell(2, 2, "")
    assert capsys.readouterr() == ("", "")


def test_what_a_resumed_run_finds_done_does_not_count() -> None:
    assert pace(done=60, of=100, unit="texts", seconds=10.0, before=50) == "1 texts/s, 40 s left"
    assert pace(done=50, of=100, unit="texts", seconds=10.0, before=50) == ""
    assert pace(done=1, of=9, unit="texts", seconds=0.0) == ""
    assert pace(done=2, of=3, unit="stages", seconds=4000.0) == "0.03 stages/min, 33 min 20 s left"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "0 s"), (59.6, "1 min 0 s"), (3599.4, "59 min 59 s"), (90_000.0, "25 h 0 min")]
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.slow
def test_a_terminal_shows_a_bar_that_is_gone_at_the_end() -> None:
    code = """if True:
        import time
        from c2t.output.progress import progress_bar
        with progress_bar("sweep", "prompts") as tell:
            for done in range(4):
                tell(done, 4, "[red]c2t")
                time.sleep(0.2)"""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "PYTHONPATH": str(ROOT)}
    run = {"stderr": theirs, "stdout": subprocess.PIPE, "env": environment}
    with subprocess.Popen([sys.executable, "-c", code], **run) as running:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # as reading ends where nobody writes any more
            while part := os.read(ours, 2**16):
                shown += part
        assert running.stdout.read() == b""
    os.close(ours)
    assert running.returncode == 0
    said = shown.decode()
    assert "[red]c2t" in said
    assert "prompts/" in said
    assert " left" in said
    assert said.endswith("\x1b[2K"), "the line is deleted"
