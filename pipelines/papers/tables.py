"""What the scripts that reproduce the papers' tables share: rows with the paper's figures beside ours, the identities
that hold of every run, and the command line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import typer

from c2t.cli import terminal
from c2t.errors import InputError
from c2t.storage.provenance import hardware
from pipelines.papers import command
from pipelines.papers import study as paper
from pipelines.papers.study import Counted, Study
from pipelines.papers.verdicts import Conclusion


class Quoted(NamedTuple):
    """What a paper prints: tau, and gamma where it has it."""

    tau: float
    verified_tokens: float | None = None


class Row(NamedTuple):
    """One line of a table. counted: None for what only the paper has; further: columns of its own."""

    method: str
    setting: str
    counted: Counted | None
    paper: Quoted | None = None
    further: Mapping[str, Any] = MappingProxyType({})


class Report(NamedTuple):
    """A table, ours beside the paper's. bonus: the paper's tau counts the bonus token, and so does the table."""

    title: str
    rows: list[Row]
    conclusions: list[Conclusion]
    notes: Sequence[str] = ()
    bonus: bool = False


def identities(rows: Sequence[Row]) -> list[str]:
    """What must hold of any run, one sentence each.

    New tokens = 1 per text + accepted and bonus tokens - cut; rounds (tau + 1) = accepted and bonus tokens; and all
    runs that replay the same texts have as many new tokens.
    """
    counted = [row.counted for row in rows if row.counted]
    counts = [one.total for one in counted]
    emitted = [sum(one.accepted) + one.rounds for one in counts]
    replayed = {(one.point.family, one.total.new_tokens) for one in counted if one.lossless}
    checks = {
        "new tokens = 1 x texts + sum(accepted + 1) - cut": all(
            one.prompts + new - one.cut == one.new_tokens for one, new in zip(counts, emitted, strict=True)
        ),
        "rounds x (tau + 1) = accepted and bonus tokens": all(
            round(one.rounds * one.tau_with_bonus) == new for one, new in zip(counts, emitted, strict=True)
        ),
        "the same new tokens under every policy that was replayed": len(replayed)
        == len({name for name, _ in replayed}),
    }
    return [f"{name}: {'holds' if true else 'FAILS'} in all {len(counts)} rows" for name, true in checks.items()]


def show(report: Report, study: Study) -> None:
    """Print a report."""
    further = list(dict.fromkeys(name for row in report.rows for name in row.further))
    columns = ["method", "setting", "tau + 1" if report.bonus else "tau", "verified tokens", "gamma", "passes/round"]
    columns += [*further, *(["paper: tau", "paper: verified tokens"] if any(row.paper for row in report.rows) else [])]
    terminal.table(
        f"{report.title}\n{study.title}",
        columns,
        [_line(row, further, report.bonus)[: len(columns)] for row in report.rows],
    )
    for note in [*report.notes, *identities(report.rows)]:
        terminal.say(note)
    terminal.say("")
    for conclusion in report.conclusions:
        terminal.say(f"{conclusion.statement}: {conclusion.verdict.upper()} on this pair\n    {conclusion.comparison}")
    terminal.say(f"({hardware()})")


def _line(row: Row, further: Sequence[str], bonus: bool) -> list[Any]:
    line: list[Any] = [row.method, row.setting, None, None, None, None]
    if row.counted:
        total = row.counted.total
        tau = total.tau_with_bonus if bonus else total.tau
        line[2:] = [f"{tau:.2f}", total.verified_tokens, f"{total.gamma:.1f}", f"{total.draft_passes:.1f}"]
    quoted = (
        [f"{row.paper.tau:.2f}", row.paper.verified_tokens and round(row.paper.verified_tokens)]
        if row.paper
        else [None, None]
    )
    return [*line, *(row.further.get(name) for name in further), *quoted]


def figures(report: Report) -> dict[str, Any]:
    """A report as JSON."""
    rows = [
        {
            "method": row.method,
            "setting": row.setting,
            "policy": row.counted.point.policy,
            "tau": row.counted.tau,
            "verified_tokens": row.counted.verified_tokens,
            "rounds": row.counted.total.rounds,
            "draft_passes": row.counted.total.draft_passes,
            "new_tokens": row.counted.total.new_tokens,
            "paper": row.paper and row.paper._asdict(),
            **row.further,
        }
        for row in report.rows
        if row.counted
    ]
    conclusions = [conclusion._asdict() for conclusion in report.conclusions]
    return {"rows": rows, "conclusions": conclusions, "identities": identities(report.rows), "notes": report.notes}


def script(name: str, build: Callable[[Study], Report], **defaults: Any) -> None:
    """Run a table's script: the common options on the command line, with `defaults` where the table has its own."""
    command.run(partial(run, name, build), build.__doc__, **defaults)


def run(
    name: str,
    build: Callable[[Study], Report],
    json: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    **chosen: Any,
) -> Report:
    """Make a report, print it, and write its line of results; wrong input ends with one line and exit code 2."""
    try:
        study = paper.study(device, dtype, **chosen)
        report = build(study)
        show(report, study)
        terminal.result(json, name, figures(report), asdict(study.settings) | {"sources": study.pair.sources})
    except InputError as error:
        terminal.say(f"{name}: {error}", error=True)
        raise typer.Exit(2) from error
    return report
