"""Points of a sweep: cost and yield of one policy on every prompt of one condition, as lines of a file."""

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from c2t.costs.statistics import Totals
from c2t.errors import InputError
from c2t.storage.atomic import new_file
from c2t.storage.checked import CLOSED, OPEN, from_json, read_file
from c2t.storage.results import append_line, result_line

KIND = "points of a sweep"
COMMAND = "sweep point"  # `command` of result lines of this kind


@dataclass(frozen=True)
class Condition:
    """Facts that all points of a comparison share.

    target, draft: fingerprints. draft_name: name of the draft's folder. texts: hash of the prompts' token ids. prompts:
    their number, each with all of its turns. `draws`: version of the random numbers of sampled texts
    (`c2t.sampling.VERSION`).
    """

    __pydantic_config__ = CLOSED
    pair: str
    target: str
    draft: str
    draft_name: str
    dtype: str
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    seed: int
    max_new_tokens: int
    rule: str | None
    files: tuple[str, ...]
    prompts: int
    texts: str
    draws: int = 1

    @property
    def title(self) -> str:
        """The condition in a few words."""
        return f"{self.pair}, {self.draft_name}, T = {self.temperature:g}, {self.prompts} prompts"


class Point(NamedTuple):
    """Counts of one policy.

    policy: all of its settings. label: those that matter. classifier: fingerprint, None without one. rounds, accepted,
    verified, passes: counts of each prompt, in the same order for all points of a condition.
    """

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
        """Sums over all prompts."""
        return Totals(*map(sum, (self.rounds, self.accepted, self.verified, self.passes)))

    @property
    def tau(self) -> float:
        """See `Counts.tau`."""
        return self.total.tau

    @property
    def gamma(self) -> float:
        """See `Counts.gamma`."""
        return self.total.gamma


Count = Annotated[int, Field(ge=0, lt=2**53)]  # exact in a float, as figures are computed from counts
OfPrompts = Annotated[tuple[Count, ...], Field(min_length=1)]
MOST_BYTES = 256 * 2**20  # of a file of points; a point on 480 prompts has some 10 KB


@dataclass(frozen=True)
class _Figures:
    """Point as it is stored in a line, which also holds the figures computed from its counts."""

    __pydantic_config__ = OPEN
    family: str
    policy: str
    label: str
    classifier: str | None
    rounds: OfPrompts
    accepted: OfPrompts
    verified: OfPrompts
    passes: OfPrompts

    def __post_init__(self):
        if len({len(self.rounds), len(self.accepted), len(self.verified), len(self.passes)}) != 1:
            raise ValueError("the counts are of different numbers of prompts")
        if not sum(self.rounds) or not sum(self.verified):
            raise ValueError("rounds and verified must not be 0 on all prompts")


@dataclass(frozen=True)
class _PointLine:
    __pydantic_config__ = OPEN
    command: Literal["sweep point"]
    figures: _Figures
    configuration: Condition


def append_point(path: Path, condition: Condition, point: Point) -> None:
    """Append a line to the file: counts, and the figures computed from them."""
    total = point.total
    figures = {"tau": total.tau, "gamma": total.gamma, "draft_passes": total.draft_passes}
    append_line(path, result_line(COMMAND, point._asdict() | figures, asdict(condition)))


def read_points(path: Path) -> dict[Condition, list[Point]]:
    """Return the points of each condition in a file, in its order; of a repeated point the last one is used.

    An unfinished last line of an interrupted run is not read. Raises InputError for any other content.
    """
    points: dict[Condition, dict[tuple, Point]] = {}
    for number, line in enumerate(_lines(path), 1):
        source = f"{path}, line {number}: not a point of a sweep"
        parsed = from_json(_PointLine, line, source, "give a file that `c2t sweep --out FILE` has written")
        condition, point = parsed.configuration, Point(**vars(parsed.figures))
        points.setdefault(condition, {})[(point.family, point.policy, point.classifier)] = point
    return {condition: list(by_policy.values()) for condition, by_policy in points.items()}


def latest(points: Sequence[Point]) -> list[Point]:
    """Return the points, in their order, without those of an older network or of older costs. Where a policy was
    counted with others later, all points before it that have its old ones are left out."""
    left: list[Point] = []
    with_policy: dict[tuple[str, str], str | None] = {}
    for point in points:
        old = with_policy.get((point.family, point.policy), point.classifier)
        if old != point.classifier:
            left = [
                other
                for other in left
                if (other.family, other.classifier) != (point.family, old)
                or (old is None and other.policy != point.policy)
            ]
        with_policy[point.family, point.policy] = point.classifier
        left.append(point)
    return left


def drop_unfinished_line(path: Path) -> None:
    """Cut off a last line without its end, so that the next point starts on a new line. A complete point that lacks
    only the line's end gets it. Raises InputError if the file cannot be written."""
    if path.is_file() and not (content := read_file(path, KIND, MOST_BYTES)).endswith(b"\n"):
        lines = _lines(path)
        ended = lines and not lines[-1].endswith("\n")
        try:
            with new_file(path) as new:
                new.write_bytes(content + b"\n" if ended else content[: content.rfind(b"\n") + 1])
        except OSError as error:
            raise InputError(f"cannot write points to {path}: {error.strerror}") from error


def _lines(path: Path) -> list[str]:
    try:
        text = read_file(path, KIND, MOST_BYTES).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read as {KIND} (not UTF-8)") from error
    lines = [*io.StringIO(text)]  # not splitlines: a name may contain U+2028 and other line ends of Unicode
    if lines and not lines[-1].endswith("\n") and not _is_json(lines[-1]):
        lines.pop()
    return lines


def _is_json(line: str) -> bool:
    try:
        from_json(Any, line, KIND)
    except InputError:
        return False
    return True
