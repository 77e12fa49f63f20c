"""Display of results, and the one line that ends a pipeline which has wrong input or is stopped."""

import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging as transformers_logging

from c2t.errors import InputError
from c2t.output.signals import SIGNALS, Stopped, Stopping
from c2t.output.tables import say, table

__all__ = ["errors_in_one_line", "say", "table"]


@contextmanager
def errors_in_one_line(who: str) -> Iterator[None]:
    """Turn wrong input into one line on stderr and exit code 2, warnings into one line each, and a signal into one line
    that says what is on disk, with exit code 128 + its number."""
    transformers_logging.disable_progress_bar()
    with warnings.catch_warnings(), _signals_handled():
        warnings.showwarning = lambda message, *_args, **_kwargs: say(f"warning: {message}", error=True)
        try:
            yield
        except InputError as error:
            say(f"{who}: {error}", error=True)
            raise SystemExit(2) from error
        except Stopped as stopped:
            say(f"{who}: {stopped}", error=True)
            raise SystemExit(128 + stopped.number) from stopped


@contextmanager
def _signals_handled() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for name in SIGNALS if (number := getattr(signal, name, None))}
    Stopping().note = None
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
