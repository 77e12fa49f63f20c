"""Runs of a comparison as they come, in a file next to the result lines, from which it can be resumed."""

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from c2t.costs.statistics import Statistics
from c2t.errors import InputError
from c2t.storage.checked import from_json, read_file
from c2t.storage.provenance import environment
from c2t.storage.results import append_line
from pipelines.bench.contenders import Contender, Written

ENDING = ".runs.tmp"  # an ending that git ignores


class RunLine(NamedTuple):
    """A line of the file. settings: of the whole comparison, on the first line; name: of a set of prompts; winners:
    names and settings of those that were chosen for it; batch, written: texts of every contender by name."""

    settings: dict[str, Any] | None = None
    name: str = ""
    winners: list[tuple[str, str]] | None = None
    batch: int = -1
    written: dict[str, Written] | None = None


class Runs:
    """Runs of a comparison by set and batch. Without a file of results nothing is stored.

    Raises InputError where the file holds runs with other settings, or of another commit or machine.
    """

    def __init__(self, results: Path | None, settings: dict[str, Any]):
        self.file = results and results.with_name(results.name + ENDING)
        self.winners: dict[str, list[tuple[str, str]]] = {}
        self.written: dict[tuple[str, int], dict[str, Written]] = {}
        here = json.loads(json.dumps({**settings, **environment()}, default=str))
        if self.file is None or not self.file.exists():
            self._add(RunLine(settings=here))
            return
        remedy = f"delete {self.file} to start again"
        first, *others = read_file(self.file).decode(errors="replace").splitlines() or [""]
        there = from_json(RunLine, first, f"{self.file}, line 1", remedy).settings or {}
        changed = [key for key in {**there, **here} if there.get(key) != here.get(key)]
        if changed:
            raise InputError(f"a stopped run had other settings ({', '.join(changed)}): run with those, or {remedy}")
        for text in others:
            with suppress(InputError):  # of a line that a stopped run left unfinished
                self._take(from_json(RunLine, text, self.file))

    def _take(self, line: RunLine) -> None:
        if line.winners is not None:
            self.winners[line.name] = line.winners
        if line.written is not None:
            self.written[line.name, line.batch] = line.written

    def choose(self, name: str, winners: list[Contender]) -> None:
        """Store which contenders were chosen for a set."""
        self.winners[name] = [(winner.name, winner.setting) for winner in winners]
        self._add(RunLine(name=name, winners=self.winners[name]))

    def add(self, name: str, batch: int, written: dict[str, Written]) -> None:
        """Store the texts of all contenders for a batch of a set."""
        self.written[name, batch] = written
        self._add(RunLine(name=name, batch=batch, written=written))

    def _add(self, line: RunLine) -> None:
        if self.file:
            append_line(self.file, json.dumps(line, default=_as_dict))

    def forget(self) -> None:
        """Delete the file: the comparison has ended, and its result lines are written."""
        if self.file:
            self.file.unlink(missing_ok=True)


def _as_dict(value: Any) -> dict[str, Any]:
    """Return a Statistics as JSON can hold it; TypeError for anything else."""
    if isinstance(value, Statistics):
        return asdict(value)
    raise TypeError(f"{value!r} is no part of a run")
