"""Points of a sweep: what one policy costs and yields on every prompt of one condition, as lines of a file."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from c2t.errors import InputError
from c2t.statistics import Totals
from c2t.storage.results import append_line, result_line

COMMAND = "sweep point"  # what a result line of this kind calls itself


@dataclass(frozen=True)
class Condition:
    """What all points of a comparison share. target, draft: fingerprints; draft_name: what the draft's folder is
    called; texts: hash of the prompts' token ids; prompts: how many, each with all of its turns."""

    pair: str
    target: str
    draft: str
    draft_name: str
    dtype: str
    temperature: float
    seed: int
    max_new_tokens: int
    rule: str | None
    files: tuple[str, ...]
    prompts: int
    texts: str

    @property
    def title(self) -> str:
        """The condition in a few words."""
        return f"{self.pair}, {self.draft_name}, T = {self.temperature:g}, {self.prompts} prompts"


class Point(NamedTuple):
    """One policy. policy: all of its settings; label: those that matter; classifier: fingerprint, None without one.
    rounds, accepted, verified, passes: counts of each prompt, in the same order for all points of a condition."""

    family: str
    policy: str
    label: str
    classifier: str | None
    rounds: tuple[int, ...]
    accepted: tuple[int, ...]
    verified: tuple[int, ...]
    passes: tuple[int, ...]

    @property
    def total(self) -> Totals:
        """All prompts together."""
        return Totals(*map(sum, (self.rounds, self.accepted, self.verified, self.passes)))

    @property
    def tau(self) -> float:
        """See `Counts.tau`."""
        return self.total.tau

    @property
    def gamma(self) -> float:
        """See `Counts.gamma`."""
        return self.total.gamma


def append_point(path: Path, condition: Condition, point: Point) -> None:
    """Add a line: counts, and the figures that they amount to."""
    total = point.total
    figures = {"tau": total.tau, "gamma": total.gamma, "draft_passes": total.draft_passes}
    append_line(path, result_line(COMMAND, point._asdict() | figures, asdict(condition)))


def read_points(path: Path) -> dict[Condition, list[Point]]:
    """The points of each condition in a file, in its order; a repeated point counts as it stands last.

    A last line without its end is what a stopped writer leaves: it is not read. Raises InputError for a file that
    holds anything else.
    """
    points: dict[Condition, dict[tuple, Point]] = {}
    for number, line in enumerate(_lines(path), 1):
        try:
            values = json.loads(line)
            if values["command"] != COMMAND:
                raise ValueError("another command's line")
            condition, point = _condition(values["configuration"]), _point(values["figures"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path}, line {number}: not a point of a sweep; give a file that `c2t sweep --out FILE` has written"
            ) from error
        points.setdefault(condition, {})[(point.family, point.policy, point.classifier)] = point
    return {condition: list(found.values()) for condition, found in points.items()}


def drop_unfinished_line(path: Path) -> None:
    """Cut off a last line without its end, so that the next one starts a line of its own; a point that only lacks the
    line's end gets it."""
    if path.is_file() and not (whole := path.read_bytes()).endswith(b"\n"):
        lines = _lines(path)
        ended = lines and not lines[-1].endswith("\n")
        path.write_bytes(whole + b"\n" if ended else whole[: whole.rfind(b"\n") + 1])


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InputError(f"{path}: cannot be read as points of a sweep ({reason})") from error
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n") and not _is_json(lines[-1]):
        lines.pop()
    return lines


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _condition(values: dict[str, Any]) -> Condition:
    return Condition(**{**values, "files": tuple(values["files"])})


def _point(values: dict[str, Any]) -> Point:
    counts = {name: _counts(values[name]) for name in ("rounds", "accepted", "verified", "passes")}
    if len({len(count) for count in counts.values()}) != 1:
        raise ValueError("counts of different numbers of prompts")
    return Point(
        **{name: str(values[name]) for name in ("family", "policy", "label")}, classifier=values["classifier"], **counts
    )


def _counts(values: Sequence[int]) -> tuple[int, ...]:
    if not values or not all(isinstance(value, int) for value in values):
        raise ValueError("counts are whole numbers")
    return tuple(values)
