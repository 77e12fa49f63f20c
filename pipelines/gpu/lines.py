"""Measurements on a GPU: their clock and their lines."""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

COLD = 200 * 2**20  # bytes of copies that a replay reads: more than the L2 cache holds, as in a round of all layers


class Timing(NamedTuple):
    """Median and quartiles in milliseconds."""

    median: float
    low: float
    high: float


class Line(NamedTuple):
    """One measurement. floor: milliseconds to move its bytes (None: not stated)."""

    stage: str
    what: str
    timing: Timing
    floor: float | None = None

    def __str__(self) -> str:
        t = self.timing
        text = f"{self.stage:10} {self.what:58} {t.median:9.4f} ms ({t.low:.4f}-{t.high:.4f})"
        return text + (f"  {t.median / self.floor:5.2f} x floor" if self.floor else "")


class Finding(NamedTuple):
    """One comparison or measurement: what was measured, what it says, and its figures for JSON. differing: how many
    results differ that must be equal."""

    stage: str
    what: str
    said: str
    figures: dict[str, Any]
    differing: int = 0

    def __str__(self) -> str:
        text = f"{self.stage:10} {self.what:58} {self.said}"
        return f"{text}  MUST BE EQUAL: {self.differing} differ" if self.differing else text


def timed(run: Callable[[], object], device: torch.device) -> Timing:
    """Time a call. On a GPU its events are read after the cache was cleared, which also hides the cost of launching."""
    for _ in range(3):
        run()
    if device.type == "cuda":
        cache = torch.empty(2**28, dtype=torch.int8, device=device)
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(30)]
        for begin, end in events:
            cache.zero_()
            begin.record()
            run()
            end.record()
        torch.cuda.synchronize()
        samples = [begin.elapsed_time(end) for begin, end in events]
    else:
        times = [time.perf_counter()]
        for _ in range(3):
            run()
            times.append(time.perf_counter())
        samples = [1000 * (end - begin) for begin, end in pairwise(times)]
    low, median, high = torch.tensor(samples).quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
    return Timing(median, low, high)


def copies_of(nbytes: int, tiny: bool) -> int:
    """Return how many copies of so many bytes a replay reads."""
    return 2 if tiny else COLD // nbytes + 1


def equal_rows(out: Float[Tensor, "m V"], expected: Float[Tensor, "n V"]) -> int:
    """Return how many rows have the bits of the same rows of `expected`."""
    return int((out == expected[: len(out)]).all(1).sum())
