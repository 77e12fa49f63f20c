"""The result lines of data/results, and how tables and notes are written from them."""

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from c2t.study.interval import Interval

RESULTS = Path(__file__).parents[2] / "data" / "results"
LENGTHS = ("tau", "acceptance length")  # the columns of `lengths`


@cache
def lines(name: str) -> list[dict[str, Any]]:
    """Return the result lines of a file in data/results."""
    return [json.loads(line) for line in (RESULTS / name).read_text(encoding="utf-8").splitlines()]


def lengths(tau: float, form: str = ".2f") -> tuple[str, str]:
    """Return tau and the acceptance length that papers and engines print, which counts the bonus token: tau + 1."""
    return f"{tau:{form}}", f"{tau + 1:{form}}"


def interval(ratio: Interval) -> str:
    """Return "1.05 (1.01-1.07)", without the interval where too few resamples reached the tau."""
    if ratio.estimate is None:
        return ""
    between = "" if ratio.low is None else f" ({ratio.low:.2f}-{ratio.high:.2f})"
    return f"{ratio.estimate:.2f}{between}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "", figures: str = "---:|") -> str:
    """Return a Markdown table without its empty columns, the first one to the left, and a note below it."""
    shown = [column for column in zip(columns, *rows, strict=True) if any(column[1:])]
    head, *body = (f"| {' | '.join(row)} |" for row in zip(*shown, strict=True))
    return "\n".join(["", head, f"|---|{figures * (len(shown) - 1)}", *body, *(["", note] if note else []), ""])


def computed(run: dict[str, Any]) -> str:
    """Return how a measurement was computed: with how many threads, and in which dtype if the line says so."""
    return f"{run['threads']} threads" + (f", {run['dtype']}" if "dtype" in run else "")


def source(line: dict[str, Any], *settings: str) -> str:
    """Return where and when a line was measured, in small print."""
    where = (f"commit {line['commit']}", line["time"][:10], line["hardware"])
    return f"<sub>{'; '.join((*settings, *where))}</sub>"
