"""The result lines of data/results, and what small print says of where they come from."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

Line = dict[str, Any]

RESULTS = Path(__file__).parents[2] / "data" / "results"
BY_PROMPT = "95 % intervals by prompt"


@cache
def lines(name: str) -> list[Line]:
    """Return the result lines of a file in data/results."""
    return [json.loads(line) for line in (RESULTS / name).read_text(encoding="utf-8").split("\n") if line]


def computed(run: Line) -> str:
    """Return how a measurement was computed: with how many threads, and in which dtype if the line says so."""
    return f"{run['threads']} thread{'s' * (run['threads'] > 1)}" + (f", {run['dtype']}" if "dtype" in run else "")


def size(run: Line, prompts: int | None = None) -> str:
    """Return how many prompts were decoded, by default those of the configuration, and how long their texts are."""
    return f"{prompts or run['prompts']} prompts, {run['max_new_tokens']} new tokens"


def source(measured: Line | Sequence[Line], *settings: str) -> str:
    """Return where and when lines were measured, in small print: all their commits, the last one's time and machine."""
    measured = [measured] if isinstance(measured, dict) else measured
    commits = ", ".join(dict.fromkeys(line["commit"] for line in measured))
    where = (f"commit {commits}", measured[-1]["time"][:10], measured[-1]["hardware"])
    return f"<sub>{'; '.join((*settings, *where))}</sub>"
