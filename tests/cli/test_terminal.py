"""What tables look like in a pipe and in a terminal, whatever the names in them."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from c2t.cli import terminal

ROOT = Path(__file__).parents[2]
NAMES = ["./h[v2]", "[/x]", "[red]", r"\[bold]", ":smile:"]
TABLES = """
import os
from c2t.cli import terminal
name = "a policy with " + "many settings " * 20 + "end"
for environment in ENVIRONMENTS:
    os.environ |= environment
    terminal.table("a title of more words than the table has columns", ["policy", "tau"], [[name, 1.5], ["b", 22]])
    terminal.facts("facts", {"folder": name, "rows": 1234})
    print("==", flush=True)
"""
UNSET = ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE")


@pytest.mark.slow
def test_a_pipe_gets_whole_rows_whatever_the_environment_says_of_a_terminal() -> None:
    environments = [{}, {"COLUMNS": "30"}, {"COLUMNS": "300"}, {"FORCE_COLOR": "1"}]
    clean = {name: value for name, value in os.environ.items() if name not in UNSET} | {"TERM": "xterm"}
    command = [sys.executable, "-c", TABLES.replace("ENVIRONMENTS", repr(environments))]
    done = subprocess.run(command, env={**clean, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    unset, narrow, wide, coloured = done.stdout.split("==\n")[:4]
    assert unset == narrow == wide
    lines = unset.splitlines()
    assert lines[0] == "a title of more words than the table has columns"
    assert [line.split()[-1] for line in lines if "many settings" in line] == ["1.5", "end"]
    assert max(map(len, lines)) < 320, "as wide as it needs to be, and no wider"
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == unset


@pytest.mark.parametrize("name", NAMES)
def test_names_from_outside_are_printed_as_they_are(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    terminal.table(name, ["policy", name], [[name, name]])
    terminal.facts(name, {name: name})
    terminal.say(name)
    assert capsys.readouterr().out.count(name) == 1 + 1 + 2 + 1 + 2 + 1


BENCH = ["policy", "exact", "tau", "tau writing", "verified tokens", "passes/round", "tokens/s"]
BENCH += ["x plain", "x HF generate"]
SPECS = ["plain", "c2t:beta=0.1,K=6,W=6,levels=6", "hierarchical:rounds=4,of=threshold:threshold=0.2,K=6,W=6,levels=4"]
FIGURES = ["yes", "2.35", "1.25", 1234567, "12.5", "1234", "1.25", "1.05"]


@pytest.mark.parametrize("columns", [50, 80, 100, 200])
def test_no_number_and_no_word_of_a_table_is_broken(columns: int, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    terminal.table("title", BENCH, [[spec, *FIGURES] for spec in SPECS])
    file = "/a/folder/of/some/length/with/another/inside/of/it/and/a/file.json"
    terminal.facts("title", {"file": file, "size": 10**15})
    said = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, said.splitlines())) <= columns
    words = said.split()
    for figure in ("yes", "2.35", "1,234,567", "12.5", "1234", "1.05"):
        assert words.count(figure) == len(SPECS)
    assert words.count("1.25") == 2 * len(SPECS)
    for header in ("exact", "writing", "verified", "passes/round", "tokens/s", "generate"):
        assert words.count(header) == 1
    assert "1,000,000,000,000,000" in words
    known = {piece for spec in SPECS for piece in re.split("[:,]", spec)}
    settings = [piece for word in words if "=" in word for piece in re.split("[:,]", word) if piece]
    assert set(settings) <= known, "names are broken between their settings"


def test_the_line_of_a_disk_that_fails_says_how_to_go_on() -> None:
    app = typer.Typer(cls=terminal.Commands)
    app.callback()(lambda: None)

    @app.command()
    def work() -> None:
        error = OSError(errno.ENOSPC, "No space left on device", "texts")
        error.add_note("2 of 4 texts are safe")
        raise error

    said = CliRunner().invoke(app, ["work"])
    assert (said.exit_code, said.stderr) == (2, "c2t: texts: No space left on device; 2 of 4 texts are safe\n")
