"""The result of a reproduction, and its display: a table with the paper's figures next to ours, and conclusions."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from c2t.errors import InputError
from c2t.records.reader import Harvest
from c2t.storage.provenance import hardware
from c2t.storage.results import append_line, result_line
from pipelines import terminal
from pipelines.papers import study
from pipelines.papers.study import Counted, Study, data_set, mark_of_prompts, mark_of_weights
from pipelines.papers.verdicts import Conclusion


class Report(NamedTuple):
    """Table or figure of a paper, made again.

    columns, rows: the numbers, also those of a figure. numbers: further ones, for the result line only.
    """

    title: str
    columns: Sequence[str]
    rows: list[list[Any]]
    conclusions: list[Conclusion]
    notes: Sequence[str] = ()
    numbers: Mapping[str, Any] = MappingProxyType({})


class Made(NamedTuple):
    """A report, with the title of the study that it was made of, and everything that its numbers depend on."""

    report: Report
    study: str
    configuration: dict[str, Any]


class Reproduction(NamedTuple):
    """Recipe of a report. build: function that makes it. defaults: settings that differ from those of
    `study.Settings`."""

    build: Callable[[Study], Report]
    defaults: Mapping[str, Any] = MappingProxyType({})

    def make(self, given: Mapping[str, Any], done: Sequence[Mapping[str, Any]] = ()) -> Made | None:
        """Make the report with its own defaults, changed by `given`; None if its configuration is one of `done`."""
        of = study.study(**{**self.defaults, **given})
        chosen = configuration(of)
        return None if chosen in done else Made(self.build(of), of.title, chosen)

    @property
    def about(self) -> str:
        """One line for the list of reports."""
        return self.build.__doc__.partition("\n")[0].removesuffix(".")


METHOD, COUNTS = ("method", "setting"), ("verified tokens", "gamma", "passes/round")


class Quoted(NamedTuple):
    """Numbers that a paper prints: tau, and verified tokens where it has them."""

    tau: float
    verified_tokens: float | None = None


class Row(NamedTuple):
    """One line of a table of policies. counted: None for a line that only the paper has. further: columns of its
    own."""

    method: str
    setting: str
    counted: Counted | None
    paper: Quoted | None = None
    further: Mapping[str, Any] = MappingProxyType({})


def of_policies(
    title: str, rows: Sequence[Row], conclusions: list[Conclusion], notes: Sequence[str] = (), bonus: bool = False
) -> Report:
    """Return the report of a table of policies. bonus: tau counts the bonus token, as the paper's does."""
    further = list(dict.fromkeys(name for row in rows for name in row.further))
    quoted = ["paper: tau", "paper: verified tokens"] if any(row.paper for row in rows) else []
    return Report(
        title,
        [*METHOD, "tau + 1" if bonus else "tau", *COUNTS, *further, *quoted],
        [_line(row, further, bool(quoted), bonus) for row in rows],
        conclusions,
        [*notes, *ends_where_plain_decoding_does(rows)],
        {"policies": [row.counted and row.counted.point.policy for row in rows]},
    )


def _line(row: Row, further: Sequence[str], quoted: bool, bonus: bool) -> list[Any]:
    line: list[Any] = [row.method, row.setting, None, None, None, None]
    if row.counted:
        total = row.counted.total
        tau = total.tau_with_bonus if bonus else total.tau
        line[2:] = [tau, total.verified_tokens, total.gamma, total.draft_passes]
    return [*line, *(row.further.get(name) for name in further), *((row.paper or (None, None)) if quoted else ())]


def ends_where_plain_decoding_does(rows: Sequence[Row]) -> list[str]:
    """Check each policy's rounds against the lengths of plain decoding's texts, which were counted without it: they
    must reach a text's end in the last round and not before."""
    counted = [row.counted for row in rows if row.counted]
    wrong = [count.point.label for count in counted if not count.ends_with_plain_text()]
    verdict = f"FAILS for {', '.join(wrong)}" if wrong else f"holds in all {len(counted)} rows"
    return [f"rounds end where plain decoding's texts end: {verdict}"]


def rounds_of(harvest: Harvest) -> str:
    """Return a note on the origin of a figure's rows."""
    return f"{harvest.trees:,} rounds of {len(harvest.prompts)} harvested texts, {harvest.rows:,} nodes"


def show(name: str, made: Made, out: Path | None) -> None:
    """Print a report; append its result line to the file `out`."""
    report = made.report
    terminal.table(f"{report.title}\n{made.study}", report.columns, _without_nan(report.rows))
    for note in report.notes:
        terminal.say(note)
    terminal.say("")
    for conclusion in report.conclusions:
        needed = "" if conclusion.more is None else f" ({conclusion.more:.3g} times as many prompts would decide it)"
        terminal.say(f"{conclusion.statement}: {conclusion.verdict.upper()} on this pair{needed}")
        terminal.say(f"    {conclusion.comparison}")
    terminal.say(f"({hardware()})")
    if out:
        append_line(out, result_line(name, numbers_of(report), made.configuration))


def numbers_of(report: Report) -> dict[str, Any]:
    """Return a report's content for JSON."""
    conclusions = [conclusion._asdict() for conclusion in report.conclusions]
    numbers = {"columns": report.columns, "rows": _without_nan(report.rows), "conclusions": conclusions}
    return {**numbers, "notes": report.notes, **report.numbers}


def configuration(study: Study) -> dict[str, Any]:
    """Return everything that a report's numbers depend on, as JSON gives it back."""
    settings, pair = asdict(study.settings), study.pair
    named = {name: [data_set(path) for path in settings[name]] for name in ("prompts", "harvest_prompts")}
    return {
        **settings,
        **named,
        "sources": {part: weights for part, (_, weights) in pair.sources.items()},
        "dtype": pair.arithmetic,
        "device": pair.target.device.type,
        "weights": {name: mark_of_weights(settings[name]) for name in ("same", "other")},
        "prompt_files": mark_of_prompts(study.settings),
    }


def made_before(out: Path) -> dict[str, list[dict[str, Any]]]:
    """Return name -> the configurations of that report in a file of result lines; a line without its end is none.
    InputError for lines of another kind."""
    configurations: dict[str, list[dict[str, Any]]] = {}
    for number, line in enumerate(_text(out).split("\n"), 1):  # a text may hold other ends of lines
        with contextlib.suppress(json.JSONDecodeError):
            result = json.loads(line)
            if not isinstance(result, dict) or not {"command", "configuration"} <= result.keys():
                raise InputError(f"{out}, line {number}: no result line of c2t; choose another file with --out")
            configurations.setdefault(str(result["command"]), []).append(result["configuration"])
    return configurations


def _text(out: Path) -> str:
    try:
        return out.read_text(encoding="utf-8") if out.is_file() else ""
    except UnicodeDecodeError as error:
        raise InputError(f"{out} is no UTF-8 text; choose another file with --out") from error


def _without_nan(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [[None if value != value else value for value in row] for row in rows]  # NaN stands for an empty cell
