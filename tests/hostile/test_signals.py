"""Signals at every moment: one line that says what is safe and how to go on, and exit code 128 + the number.

One handler hears all of them, so each moment needs only those that Python, Lightning or a shell treat by themselves."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from c2t import __version__
from c2t.classifier import TreeClassifier
from c2t.cli.app import app
from c2t.output import signals
from c2t.output.signals import SIGNALS, Stopped, Stopping
from c2t.records.reader import describe, read_columns, read_shards
from c2t.records.schema import COLUMNS
from tests.harvests import make_harvest

ROOT = Path(__file__).parents[2]
HANGS = 900  # seconds after which a command hangs, even on a busy machine
# The command line, which sends itself a signal when a function is called the n-th time: no sleep decides.
DRIVER = """if True:
    import importlib, os, sys, threading
    module, name, calls, signals = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].split(",")
    del sys.argv[1:5]
    def strike():
        for number in map(int, signals):
            os.kill(os.getpid(), number)
    from c2t.__main__ import main
    if module == "import":  # while the package `name` is being imported
        class Finder:
            def find_spec(self, wanted, path, target=None):
                if wanted == name:
                    strike()
        sys.meta_path.insert(0, Finder())
    else:
        import c2t.output.signals
        import c2t.output.progress
        c2t.output.progress.MINUTE = float("inf")  # on a slow machine, too, a signal's line is the only one
        place = importlib.import_module(module)
        for part in name.split(".")[:-1]:
            place = getattr(place, part)
        whole, count = getattr(place, name.split(".")[-1]), []
        def replaced(*arguments, **named):
            count.append(None)
            if len(count) == calls:
                strike()
            return whole(*arguments, **named)
        setattr(place, name.split(".")[-1], replaced)
    main()
"""
SMALL = ["--pair", "tiny", "--k", "2", "--levels", "2", "--max-new-tokens", "4", "--limit", "4", "--batch", "2"]


def stopped(home: Path, place: str, calls: int, numbers: list[int], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that gets these signals at a call of MODULE:FUNCTION."""
    environment = {**os.environ, "C2T_HOME": str(home), "PYTHONPATH": str(ROOT)}
    signals = ",".join(str(int(number)) for number in numbers)
    command = [sys.executable, "-c", DRIVER, *place.split(":"), str(calls), signals, *map(str, arguments)]
    run = {"env": environment, "cwd": home, "capture_output": True, "text": True, "check": False, "timeout": HANGS}
    done = subprocess.run(command, preexec_fn=_hear, **run)
    return done.returncode, done.stdout, done.stderr


def _hear() -> None:
    """Take signals as a shell's foreground does: whoever runs the tests may ignore some, as nohup does."""
    for name in SIGNALS:
        signal.signal(getattr(signal, name), signal.SIG_DFL)


def c2t(*arguments: str | Path) -> Result:
    """Run a command to its end, in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def line(number: int, words: str) -> str:
    return rf"c2t: stopped by {signal.Signals(number).name}: {words}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "number"),
    [
        *[("torch", number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        ("transformers", signal.SIGTERM),
        ("c2t.cli.tune", signal.SIGINT),  # seconds later
    ],
)
def test_during_imports(small_home: Path, package: str, number: int) -> None:
    code, out, err = stopped(small_home, f"import:{package}", 1, [number], "info", "tiny")
    assert (code, out) == (128 + number, "")
    assert re.fullmatch(line(number, "nothing has begun; run the command again"), err)


def test_a_second_signal_ends_a_command_at_once_after_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it is the first one sent twice."""
    now, ended = [100.0], []
    monkeypatch.setattr(signals.signal, "signal", lambda *_: None)
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(signals, "end", lambda code, line: ended.append((code, line)))
    heard = Stopping()
    heard.note = None  # a command runs
    with pytest.raises(Stopped):
        heard(signal.SIGTERM, None)
    now[0] = 105.0
    heard(signal.SIGTERM, None)
    assert ended == []
    now[0] = 105.1
    heard(signal.SIGTERM, None)
    [(code, said)] = ended
    assert code == 128 + signal.SIGTERM
    assert said.startswith("c2t: stopped by SIGTERM: ")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_harvest_says_how_to_go_on(home: Path, number: int) -> None:
    rows = home / "rows"
    arguments = ["harvest", *SMALL, "--out", rows]
    place = "c2t.harvest.harvest:_rows"  # of the second batch
    code, out, err = stopped(home, place, 2, [number, number], *arguments)  # and twice, as some senders do
    safe = rf"2 of 4 texts \([\d,]+ rows\) are safe in {rows}; go on with the same command and --resume"
    assert (code, out) == (128 + number, "")
    assert re.fullmatch(line(number, safe), err), err
    assert [info["prompts"] for info in read_shards(rows).values()] == [[0, 2]]
    assert c2t(*arguments, "--resume").exit_code == 0
    whole = home / "whole"
    assert c2t(*arguments[:-1], whole).exit_code == 0
    columns = read_columns(whole, list(COLUMNS))
    assert all((column == read_columns(rows, [name])[name]).all() for name, column in columns.items())
    if number == signal.SIGTERM:
        before = describe(rows)
        code, out, err = stopped(home, place, 2, [number], *arguments, "--overwrite")
        safe = rf"2 of 4 texts .* are safe in {home}/\.rows\.new and {rows} is as it was; go on .*--resume, not --ov.*"
        assert re.fullmatch(line(number, safe), err), err
        assert describe(rows) == before
        assert c2t(*arguments, "--resume").exit_code == 0
        assert describe(rows).rows == before.rows
        assert not (home / ".rows.new").exists()


@pytest.mark.slow
def test_a_harvest_by_ray_says_how_to_go_on(home: Path) -> None:
    """Ray has a handler of SIGTERM, which would end the process with exit code 15."""
    rows, place = home / "rows", "c2t.harvest.ray_pool:_get"  # of the second batch, after three answers on the pair
    arguments = ["harvest", *SMALL, "--out", rows, "--ray", "local", "--workers", "1"]
    code, _, err = stopped(home, place, 5, [signal.SIGTERM], *arguments)
    safe = rf"2 of 4 texts .* are safe in {rows}; go on with the same command and --resume"
    assert code == 128 + signal.SIGTERM
    assert re.fullmatch(line(signal.SIGTERM, safe), err), err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_training_leaves_the_old_classifier(home: Path, number: int) -> None:
    """In the middle of Lightning, which has handlers of its own."""
    rows, out = home / "rows", home / "classifier"
    make_harvest(rows, prompts=6, trees_each=2, K=3, levels=3)
    TreeClassifier().save_pretrained(out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    place = "c2t.training.fit:TrainClassifier.training_step"
    code, _, err = stopped(home, place, 3, [number], "train", rows, "--out", out, "--overwrite")
    assert code == 128 + number, err
    assert re.fullmatch(line(number, f"{out} is as it was; run the command again"), err), err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in home.glob(".*")] == []


@pytest.mark.slow
def test_after_the_end(small_home: Path) -> None:
    """Where Python itself no longer hears signals."""
    code, out, err = stopped(small_home, "c2t.__main__:end", 1, [signal.SIGTERM], "info", "tiny")
    assert code == 128 + signal.SIGTERM
    assert "language model" in out
    assert re.fullmatch(line(signal.SIGTERM, "the command had ended before, and what it writes is written"), err), err


@pytest.mark.slow
def test_output_that_is_lost_is_no_success(small_home: Path) -> None:
    environment = {**os.environ, "C2T_HOME": str(small_home), "PYTHONPATH": str(ROOT)}
    with open("/dev/full", "w") as full:
        for arguments in (["--version"], ["info", "tiny"]):
            command = [sys.executable, "-m", "c2t", *arguments]
            assert subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE).returncode != 0


@pytest.mark.slow
def test_a_signal_that_nohup_ignores_is_ignored(small_home: Path) -> None:
    command = ["nohup", sys.executable, "-c", DRIVER, "c2t.cli.info", "folder", "1", "1", "info", "tiny"]
    environment = {**os.environ, "C2T_HOME": str(small_home), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=HANGS)
    assert done.returncode == 0, done.stderr


def test_the_version_needs_no_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "c2t", "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"c2t {__version__}\n"
    assert "torch" not in done.stderr
