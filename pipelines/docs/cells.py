"""Cells of tables, and tables of cells."""

from collections.abc import Iterable, Sequence
from math import isclose

LENGTH = "acceptance length"  # the column of `length`
LENGTHS = (LENGTH, "tau")  # the columns of `lengths`


def length(tau: float) -> str:
    """Return the acceptance length alone; see `lengths`."""
    return lengths(tau)[0]


def lengths(tau: float, form: str = ".2f") -> tuple[str, str]:
    """Return the acceptance length that papers and engines print, which counts the bonus token, and tau, one less."""
    return f"{tau + 1:{form}}", f"{tau:{form}}"


def interval(ratio: Iterable[float | None] | None) -> str:
    """Return "1.05 (1.01-1.07)" of a ratio and the ends of its interval, which may be None; "1.00" for
    what is compared with itself, "" for no ratio."""
    estimate, low, high = ratio or (None, None, None)
    exact = low is None or (isclose(low, 1) and isclose(high, 1))
    return number(estimate, ".2f") + ("" if exact else f" ({low:.2f}-{high:.2f})")


def number(value: float | None, form: str = ".1f") -> str:
    """Return a number, "" for None."""
    return "" if value is None else f"{value:{form}}"


def extent(ratios: Iterable[float | None]) -> str:
    """Return the lowest and the highest of the ratios that are not None."""
    measured = [ratio for ratio in ratios if ratio is not None]
    return f"{min(measured):.2f} to {max(measured):.2f}"


def grouped(rows: Iterable[tuple[str, ...]], columns: int = 1) -> list[tuple[str, ...]]:
    """Return rows of which the first columns are blank where they repeat the row above."""
    shown: list[tuple[str, ...]] = []
    above: tuple[str, ...] = ()
    for row in rows:
        same = next((at for at in range(columns) if row[: at + 1] != above[: at + 1]), columns)
        shown.append(("",) * same + row[same:])
        above = row
    return shown


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "", figures: str = "---:|") -> str:
    """Return a Markdown table without its empty columns, the first one to the left, and a note below it."""
    shown = [column for column in zip(columns, *rows, strict=True) if any(column[1:])]
    head, *body = (f"| {' | '.join(row)} |" for row in zip(*shown, strict=True))
    return "\n".join(["", head, f"|---|{figures * (len(shown) - 1)}", *body, *(["", note] if note else []), ""])
