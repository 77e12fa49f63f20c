"""Tables of docs/speed.md and docs/results/decoding.md: tokens per second, and the milliseconds of a round."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from pipelines.docs.cells import LENGTHS, grouped, interval, lengths, number, table
from pipelines.docs.result_lines import BY_PROMPT, Line, computed, lines, source

WAYS = {"rehearsed": "hierarchical"}  # what ways of older result lines are called
SETS = {"gsm8k": "GSM8K", "humaneval": "HumanEval", "mt_bench": "MT-bench", "all": "all three"}


class Texts(NamedTuple):
    """How a run of `pipelines.bench decoding` generated its texts."""

    temperature: float
    batch: int
    new_tokens: int


class Run(NamedTuple):
    """Texts, set of prompts and contender of a line of `pipelines.bench decoding`."""

    texts: Texts
    set: str
    contender: str


def of_run(line: Line) -> Run:
    """Return what a line of `pipelines.bench decoding` is of."""
    run, figures = line["configuration"], line["figures"]
    texts = Texts(run["temperature"], run["batch"], run["max_new_tokens"])
    return Run(texts, figures["set"], current(figures["contender"]))


def current(way: str) -> str:
    """Return a way's name, or a policy with its settings, as it is called today."""
    for old, new in WAYS.items():
        way = way.replace(old, new)
    return way


def runs() -> dict[Run, Line]:
    """Return the lines of `pipelines.bench decoding` by texts and set; a later run stands for an earlier one, and runs
    with fewer threads are left out."""
    most = max(line["configuration"]["threads"] for line in lines("decoding.jsonl"))
    latest = {of_run(line): line for line in lines("decoding.jsonl") if line["configuration"]["threads"] == most}
    return {run: latest[run] for run in sorted(latest, key=lambda run: (run.texts, list(SETS).index(run.set)))}


def kind(texts: Texts) -> str:
    """Return how texts were decoded, as text."""
    sampled = "greedy" if texts.temperature == 0 else f"T = {texts.temperature:g}"
    return sampled + f", batch {texts.batch}" * (texts.batch > 1) + f", up to {texts.new_tokens} tokens"


def origins(measured: Iterable[Line]) -> str:
    """Return where lines of `pipelines.bench decoding` were measured, a line for each commit and machine, and how large
    the runs were."""
    by_machine: dict[str, tuple[Line, dict[str, list[str]]]] = {}
    for line in measured:
        run, sort = line["configuration"], kind(of_run(line).texts)
        size = f"{run['prompts']} prompts a set, {computed(run)}"
        kinds = by_machine.setdefault(source(line), (line, {}))[1].setdefault(size, [])
        kinds.extend([sort] * (sort not in kinds))
    several, notes = sum(len(sizes) for _, sizes in by_machine.values()) > 1, []
    for line, sizes in by_machine.values():
        how = "; ".join(f"{' and '.join(kinds)}: " * several + size for size, kinds in sizes.items())
        notes.append(source(line, how, BY_PROMPT))
    return "\n".join(notes)


def decoding() -> str:
    """Return the speeds of every way to decode, all sets together."""
    measured = {run: line for run, line in runs().items() if run.set == "all"}
    rows = []
    for run, line in measured.items():
        figures = line["figures"]
        counts = (f"{1 + figures['tau']:.2f}", f"{figures['gamma']:.1f}") if "tau" in figures else ("", "")
        read = (number(figures.get(name)) for name in ("bits_per_weight", "gb_per_second"))
        rows.append(
            (
                kind(run.texts),
                run.contender,
                f"{figures['tokens_per_second']:.0f}",
                interval(figures["against_plain"]),
                *counts,
                *read,
            )
        )
    columns = ("texts", "way", "tokens/s", "/ plain", "acceptance length", "gamma")
    return table((*columns, "bits a weight", "GB/s"), grouped(rows), origins(measured.values()))


def settings() -> str:
    """Return the settings of the ways in `decoding`, as they were found on other prompts."""
    rows: dict[tuple[str, str], None] = {}
    for run, line in runs().items():
        setting = current(line["figures"]["setting"])
        if setting and run.contender.startswith("c2t"):
            rows[f"{run.contender}, {kind(run.texts)}", f"`{re.sub(' (?=[+])', '`, `', setting)}`"] = None
    return table(("way", "setting"), rows, figures="---|")


def breakdown() -> str:
    """Return the milliseconds of a round by part."""
    measured = lines("breakdown.jsonl")
    rounds = [line["figures"] for line in measured]
    rows = [
        (
            part,
            *(f"{row['parts'][part]:.2f} ({row['parts'][part] / row['watched']:.0%})" for row in rounds),
        )
        for part in rounds[0]["parts"]
        if any(round(row["parts"][part], 2) for row in rounds)
    ]
    rows.append(("a round, with clocks", *(f"{row['watched']:.2f}" for row in rounds)))
    rows.append(("a round, without", *(f"{row['unwatched']:.2f}" for row in rounds)))
    rows += zip(LENGTHS, *(lengths(row["tau"]) for row in rounds), strict=True)
    run = measured[-1]["configuration"]
    how = f"{run['prompts']} prompts, T = {run['temperature']:g}, {computed(run)}"
    return table(("milliseconds", *(f"`{row['policy']}`" for row in rounds)), rows, source(measured[-1], how))
