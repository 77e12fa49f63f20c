"""Measurements of the GPU report: its lines, the goals, and the figure."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pipelines.papers import drawing
from pipelines.papers.tree_blocks import Timing


class Line(NamedTuple):
    """One measurement, in milliseconds. floor: time to move its bytes (None: not stated)."""

    stage: str
    what: str
    timing: Timing
    floor: float | None = None

    def __str__(self) -> str:
        t = self.timing
        text = f"{self.stage:10} {self.what:58} {t.median:9.4f} ms ({t.low:.4f}-{t.high:.4f})"
        return text + (f"  {t.median / self.floor:5.2f} x floor" if self.floor else "")


class Goal(NamedTuple):
    """Upper limit for a line divided by another one, by its own floor ("floor"), or by nothing, in milliseconds
    ("")."""

    what: str
    over: str
    at_most: float


GOALS = (
    Goal("C2T: 15 x 32000", "", 0.030),
    Goal("C2T, K=W=10: one level, prefix 512", "EAGLE-2, K=10: one level, prefix 512", 1.06),
    Goal("EAGLE-2, K=10, 6 levels: whole phase, 1 rows, prefix 512", "floor", 1.5),
    Goal("C2T, K=W=15, alive for 10 of 10 levels: whole phase, 1 rows, prefix 512", "floor", 1.5),
    Goal("1 x 1 tokens, prefix 512", "floor", 1.35),
    Goal("1 x 60 tokens, prefix 512", "floor", 1.35),
    Goal("1024 nodes, heavy-first: tree attention", "1024 nodes, heavy-first: SDPA, dense mask", 1 / 1.5),
    Goal("64 nodes, heavy-first: tree attention", "64 nodes, heavy-first: SDPA, dense mask", 1.0),
)


def verdicts(lines: Sequence[Line]) -> Iterator[str]:
    """Yield each goal with the figure that was reached."""
    by_name = {line.what: line for line in lines}
    for what, over, at_most in GOALS:
        line = by_name[what]
        divisor = {"": 1.0, "floor": line.floor}.get(over) or by_name[over].timing.median
        reached = line.timing.median / divisor
        judged = "met" if reached <= at_most else "missed"
        yield f"{'goal':10} {what}{' / ' * bool(over)}{over}: {reached:.3f}, at most {at_most:.3f}: {judged}"
    more = by_name["C2T: 15 x 32000"].timing.median - by_name["EAGLE-2: 15 x 32000"].timing.median
    judged = "met" if more <= 0.010 else "missed"
    yield f"{'goal':10} C2T's select at 15 x 32000 takes {more:.4f} ms more than EAGLE-2's, at most 0.010: {judged}"


def plot(lines: Sequence[Line], path: Path) -> None:
    """Plot the step function of verification (C2T, figure 5a)."""
    figure, [panel] = drawing.panels(1, xlabel="tokens verified a row", ylabel="milliseconds")
    curves: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        if line.stage == "verify":  # "4 x 60 tokens, prefix 512"
            rows, size, prefix = (int(word) for word in line.what.replace(",", "").split() if word.isdigit())
            curves.setdefault(f"{rows} rows, prefix {prefix}", []).append((size, line.timing.median))
    for name, points in curves.items():
        panel.plot(*zip(*sorted(points), strict=True), marker=".", label=name)
    panel.set_ylim(bottom=0)
    panel.legend(frameon=False)
    drawing.save(figure, path)
