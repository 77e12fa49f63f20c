"""Progress of long work on stderr: a bar on a terminal, elsewhere a line per minute. Both show what is done, the rate,
and the time left."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from c2t.errors import plain

MINUTE = 60.0  # seconds between the lines that stand for a bar in a log

ProgressCallback = Callable[[int, int, str], None]  # takes the amount done, the total, and the current item


class _Log:
    """Time of the last line of this process, for all its bars: many short tasks count as one long one."""

    last = time.monotonic()


@contextmanager
def progress_bar(what: str, unit: str) -> Iterator[ProgressCallback]:
    """Yield a function to call with (done, of, doing) as the work goes on; `unit` names what is counted.

    The rate is the mean since the first call, so that work done before a resumed run does not count. The bar disappears
    at the end, and a command that ends within a minute leaves no line in a log.
    """
    console = Console(stderr=True)
    # Names from files, such as policies, are no markup.
    columns = [TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    columns += [TextColumn("{task.fields[pace]}", markup=False), TextColumn("{task.fields[doing]}", markup=False)]
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=None, pace="", doing="")
        first: tuple[float, int] | None = None

        def report(done: int, of: int, doing: str) -> None:
            nonlocal first
            now, doing = time.monotonic(), plain(doing)
            first = first or (now, done)
            left = pace(done, of, unit, now - first[0], first[1])
            if not bar.disable:
                bar.update(task, completed=done, total=of, pace=left, doing=doing)
            elif now - _Log.last >= MINUTE:
                _Log.last = now
                typer.echo(", ".join(filter(None, (f"{what}: {done:,} of {of:,} {unit}", left, doing))), err=True)

        yield report


def pace(done: int, of: int, unit: str, seconds: float, before: int = 0) -> str:
    """Return rate and time left in words; "" before the first progress. before: the amount done at the first call."""
    if done <= before or seconds <= 0:
        return ""
    rate = (done - before) / seconds
    speed = f"{rate:.3g} {unit}/s" if rate >= 1 else f"{rate * 60:.2g} {unit}/min"
    return f"{speed}, {duration((of - done) / rate)} left"


def duration(seconds: float) -> str:
    """Return a time in its two largest units."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
