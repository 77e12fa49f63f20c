"""The tables of other programs: a run with one thread stands beside that with more, and is not mixed with it."""

import copy

import pytest

from pipelines.docs import rivals as page
from pipelines.docs.result_lines import Line


def of_one_thread(line: Line) -> Line:
    """The line of a run with one thread."""
    line = copy.deepcopy(line)
    line["configuration"]["threads"] = 1
    line["figures"]["tokens_per_second"] = 1000.0
    return line


def cells(table: str) -> list[list[str]]:
    """The rows of a table, its head first."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]


def test_a_run_with_one_thread_has_columns_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    several = page.of_run("rivals.jsonl")
    monkeypatch.setattr(page, "lines", lambda _: several)
    before, in_brief = page.rivals(), page.in_brief()
    left_out = "transformers, float32"
    single = [of_one_thread(line) for line in several if line["figures"]["contender"] != left_out]
    monkeypatch.setattr(page, "lines", lambda _: several + single)
    head, *rows = cells(page.rivals())
    assert head[-2:] == ["tokens/s by 1 thread", "/ the fastest other's by 1 thread"]
    assert [row[:-2] for row in (head, *rows)] == cells(before)
    assert {row[-2] for row in rows[1:] if row[1] != left_out} == {"1000"}
    assert [row[-2:] for row in rows if row[1] == left_out] == [["", ""]]
    assert page.in_brief() == in_brief
    assert [words in page.rivals() for words in ("2 threads, ", "1 thread, ")] == [True, True]
