"""c2t view: one file or a page on this machine, and one line for what cannot be."""

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from c2t.cli.app import app
from tests.viewer.documents import document

PROMPT = "def add(a, b):"


def view(*options: str) -> Result:
    return CliRunner().invoke(app, ["view", PROMPT, "--pair", "tiny", "--max-new-tokens", "8", *options])


@pytest.fixture(autouse=True)
def here(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_writes_a_page_and_says_where(here: Path) -> None:
    done = view("--policy", "eagle2:N=8,levels=2,K=3", "--compare", "chain:length=3")
    assert (done.exit_code, done.stdout) == (0, "tree.html\n")
    shown = document((here / "tree.html").read_text(encoding="utf-8"))
    assert shown["prompt"] == PROMPT
    assert [one["name"].partition(":")[0] for one in shown["policies"]] == ["eagle2", "chain"]
    again = view("--policy", "chain")
    assert (again.exit_code, again.stdout) == (2, "")
    assert "tree.html exists: add --overwrite" in again.stderr
    assert view("--policy", "chain", "--overwrite").exit_code == 0
    assert document((here / "tree.html").read_text(encoding="utf-8")) != shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--policy", "tree"], "no policy is called 'tree'"),
        (["--compare", "eagle2:n=3", "--policy", "chain"], "eagle2 has no setting 'n'"),
        (["--compare", " "], "empty"),
        (["--out", "."], "is no plain file"),
        (["--out", "/dev/null", "--overwrite"], "is no plain file"),
        (["--out", "/proc/tree.html"], "cannot write results to /proc/tree.html"),
        (["--serve", "--port", "65536"], "65535"),
        (["--port", "8123"], "--port is that of --serve"),
        (["--policy", "chain", "--temperature", "-1"], "temperature"),
        (["--policy", "chain", "--max-new-tokens", "5000"], "exceed the target's"),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_nothing(here: Path, options: list[str], said: str) -> None:
    done = view(*options)
    assert done.exit_code == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(here.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("heard")
def test_serve_shows_the_page_until_it_is_interrupted(here: Path) -> None:
    options = ["--pair", "tiny", "--policy", "chain", "--max-new-tokens", "8", "--serve", "--out", "kept.html"]
    with subprocess.Popen(
        [sys.executable, "-m", "c2t", "view", PROMPT, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as running:
        try:
            address = running.stdout.readline().split()[0]
            connection = http.client.HTTPConnection(address.removeprefix("http://").strip("/"), timeout=60)
            connection.request("GET", "/rounds")
            assert connection.getresponse().read().decode().endswith("event: end\ndata:\n\n")
            assert running.stdout.readline() == "kept.html\n"
            running.send_signal(signal.SIGINT)
            assert running.wait(30) == 128 + signal.SIGINT
            assert running.stderr.read() == "c2t: stopped by SIGINT: the page is served no longer; kept.html holds it\n"
        finally:
            running.kill()  # or a test that fails would wait for it
    assert len(document((here / "kept.html").read_text(encoding="utf-8"))["policies"][0]["rounds"])


@pytest.mark.parametrize("named", [None, "chain:length=3"])
def test_the_policy_is_that_of_generate_where_nobody_says(here: Path, home: Path, named: str | None) -> None:
    if named:
        (home / "checkpoints" / "tiny" / "provenance.json").write_text(json.dumps({"policy": named}))
    line = CliRunner().invoke(app, ["generate", PROMPT, "--pair", "tiny", "--max-new-tokens", "4", "--json", "-"])
    assert view().exit_code == line.exit_code == 0
    shown = document((here / "tree.html").read_text(encoding="utf-8"))["policies"][0]["name"]
    generated = json.loads(line.stdout.splitlines()[-1])["configuration"]["policy"]
    kinds = [policy.partition(":")[0] for policy in (shown, generated)]
    assert kinds == [(named or "threshold").partition(":")[0]] * 2
