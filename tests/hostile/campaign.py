"""Run commands on damaged files, stop them at random times, and let their disk be full, thousands of times, and report
every one that does not end as it should:

    python -m tests.hostile.campaign --minutes 20       # or: make hostile
    python -m tests.hostile.campaign --case 1234        # one of them again, with its output

A case is a number: it decides the command and what happens to it, if not to the moment. A command may succeed or end
with exit code 2 (after a signal 128 and its number) and one line that begins with "c2t: ". All else is a finding: a
traceback, another exit code, a signal, more than SECONDS or MEMORY, a file outside of its folder, success on bytes that
have a checksum, something half-written, or a stop that the same command does not get over.
"""

import contextlib
import fcntl
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer

import c2t.training.fit
from c2t.__main__ import main as c2t
from c2t.classifier import TreeClassifier
from c2t.errors import InputError
from c2t.output.signals import Stopping
from c2t.records.reader import read_columns
from c2t.records.schema import COLUMNS
from c2t.storage.atomic import NEW, OLD, TEMPORARY, TRASH
from tests.hostile.forgeries import forge_file
from tests.hostile.mutations import damage_file
from tests.hostile.starved import disk_of
from tests.small_pair import TURNS, write_pair, write_prompts

SECONDS, MEMORY = 60, 12 * 2**30  # a case takes one second or two, and torch's address space is large
FEW = ["--limit", "2", "--max-new-tokens", "6"]
TREES = ["--k", "3", "--levels", "3"]


class Subject(NamedTuple):
    """Files that are damaged, below the home, and the commands that read them. sealed: every change must be noticed."""

    files: str
    commands: tuple[tuple[str, ...], ...]
    sealed: bool = False


PAIR, HARVEST = "checkpoints/tiny", "data/harvest/tiny"
SUBJECTS = (
    Subject(
        "data/prompts/tiny/code.jsonl",
        (("bench", *FEW, "--policies", "plain,eagle2:N=6,levels=2"), ("harvest", *FEW, *TREES, "--out", "rows")),
    ),
    Subject(f"{PAIR}/target/*.json", (("generate", "--policy", "threshold"), ("info", "tiny"))),
    Subject(f"{PAIR}/target/*.safetensors", (("generate", "--policy", "threshold"),)),
    Subject(f"{PAIR}/draft/*.json", (("generate", "--policy", "threshold"), ("info", "tiny"))),
    Subject(f"{PAIR}/draft/*.safetensors", (("generate", "--policy", "threshold"),)),
    Subject("checkpoints/local/tiny/classifier/config.json", (("generate",), ("info", "tiny"), ("finetune", *FEW[:0]))),
    Subject("checkpoints/local/tiny/classifier/model.safetensors", (("generate",), ("info", "tiny")), sealed=True),
    Subject(f"{HARVEST}/manifest.json", (("train", "--epochs", "1", "--out", "new"), ("info", "tiny")), sealed=True),
    Subject(f"{HARVEST}/*.parquet", (("train", "--epochs", "1", "--out", "new"),), sealed=True),
    Subject(f"{HARVEST}/*.parquet", (("info", "tiny"),)),
    Subject("data/sweep/tiny.jsonl", (("plot", "data/sweep/tiny.jsonl", "--out", "front.png"),)),
    Subject("cache/texts/*", (("bench", *FEW, "--policies", "eagle2:N=6,levels=2"),)),
)
ON_TINY = {name: ["--pair", "tiny"] for name in ("harvest", "generate", "bench")} | {"finetune": ["--from", "tiny"]}
ON_TINY |= {"train": ["tiny"], **{name: ["--pair", "tiny"] for name in ("sweep", "tune", "export-hub", "view")}}
CLASSIFIER, ROWS = "checkpoints/local/tiny/classifier", ["--limit", "12", "--max-new-tokens", "12", *TREES]
# Commands that write: what was there before stands or is replaced whole.
WRITING = (
    ("harvest", *ROWS, "--overwrite"),
    ("harvest", *ROWS, "--out", "rows"),
    ("train", "--epochs", "2", "--out", CLASSIFIER, "--overwrite"),
    ("train", "--epochs", "2", "--out", "new"),
    ("finetune", "--epochs", "2", "--out", "new"),
    ("sweep", *FEW, "--grid", "eagle2:N=4|8,levels=3", "--out", "points.jsonl"),
    ("tune", *FEW, "--json", "tuned.jsonl"),
    ("bench", *FEW, "--policies", "eagle2:N=6,levels=2", "--json", "bench.jsonl"),
    ("export-hub", "--draft", "somebody/head", "--out", "hub"),
    ("view", "def", "--max-new-tokens", "6", "--out", "page.html"),
)
REPLACING = ("harvest", "train", "finetune", "export-hub", "view")  # those that know --overwrite
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
PIPE = 2**20  # bytes of output


class Ending(NamedTuple):
    """How a command ended: exit code (negative: the signal), output, seconds."""

    code: int
    stdout: str
    stderr: str
    seconds: float


def make_home(home: Path) -> None:
    """Write a small pair, its prompts, a harvest, a classifier, a sweep and texts, by the commands themselves."""
    write_pair(home / PAIR)
    write_prompts(home / "data/prompts/tiny/code.jsonl", TURNS[:4])
    write_prompts(home / "data/prompts/tiny/harvest/code.jsonl", TURNS[:12])
    for words in (
        ["harvest", "--limit", "12", "--max-new-tokens", "12", *TREES],
        ["train", "--epochs", "2", "--out", "checkpoints/local/tiny/classifier"],
        ["sweep", "--pair", "tiny", *FEW, "--grid", "eagle2:N=4|8,levels=3", "--out", "data/sweep/tiny.jsonl"],
        ["bench", *FEW, "--policies", "eagle2:N=6,levels=2"],
    ):
        ended = run(words, home)
        if ended.code:
            raise SystemExit(f"the home could not be made: {' '.join(words)}\n{ended.stdout}{ended.stderr}")


class Strike(NamedTuple):
    """A signal that a command gets after so many seconds, and the bytes at which its files end (-1: nowhere)."""

    after: float = SECONDS
    number: int = signal.SIGKILL
    room: int = -1


def run(words: list[str], home: Path, strike: Strike = Strike()) -> Ending:
    """Run a command in a forked process, in the folder `home`, which is also $C2T_HOME."""
    words = [*words, *(ON_TINY.get(words[0], []) if "tiny" not in words else [])]
    pipes = [os.pipe() for _ in range(2)]  # no files, whose size a case may limit
    since = time.monotonic()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until somebody hears them
    child = os.fork()
    if not child:
        _be_the_command(words, home, [write for _, write in pipes], strike.room)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    for _, write in pipes:
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE)
        os.close(write)
    code = _wait(child, strike)
    texts = [_text(read) for read, _ in pipes]
    return Ending(code, *texts, time.monotonic() - since)


def _text(read: int) -> str:
    os.set_blocking(read, False)  # a process that the command has left may hold the other end
    with open(read, "rb", buffering=0) as pipe:
        return (pipe.read(PIPE) or b"").decode(errors="replace")


def _be_the_command(words: list[str], home: Path, outputs: list[int], room: int) -> None:
    """Never returns."""
    code = 70
    try:
        os.setsid()
        for number, output in enumerate(outputs, start=1):
            os.dup2(output, number)
        Stopping()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(home)
        os.environ |= {"C2T_HOME": str(home), "C2T_CACHE": str(home / "cache"), "COLUMNS": "200"}
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        sys.argv = ["c2t", *words]
        c2t()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - what a user would see
        traceback.print_exc()
        code = 1
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _wait(child: int, strike: Strike) -> int:
    """Return the exit code. The process is struck in its time, and after SECONDS killed with its children."""
    since = time.monotonic()
    blows = [(strike.after, os.kill, strike.number), (SECONDS, os.killpg, signal.SIGKILL)]
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if blows and time.monotonic() - since > blows[0][0]:
            _, blow, number = blows.pop(0)
            blow(child, number)
        time.sleep(0.002)


def finding(ended: Ending, sealed: bool, allowed: tuple[int, ...] = (0, 2)) -> str:
    """Say what is wrong with the way a command ended; "" if nothing is. allowed: its exit codes."""
    if "Traceback" in ended.stdout + ended.stderr:
        return "traceback"
    if ended.code == -signal.SIGKILL and ended.seconds >= SECONDS:
        return f"still running after {SECONDS} s"
    if ended.code not in allowed:
        return f"exit code {ended.code}"
    said = [line for line in ended.stderr.splitlines() if line.startswith("c2t: ")]
    if ended.code > 0 and (len(said) != 1 or not ended.stderr.rstrip("\n").splitlines()[-1].startswith("c2t: ")):
        return f"{len(said)} lines for one mistake"
    if ended.code == 0 and said:
        return "success with an error line"
    if ended.code == 0 and sealed:
        return "damage that nobody noticed"
    return ""


def harmless(before: bytes, after: bytes) -> bool:
    """Return True for JSON that still says the same, in another layout, or that has lost its checksum and so counts as
    an older file, which had none."""
    try:
        said, says = json.loads(before), json.loads(after)
    except (ValueError, RecursionError):
        return False
    return said == says or not (isinstance(says, dict) and says.get("sha256"))


def outside(folder: Path) -> list[str]:
    """Return what lies beside the home in a case's folder, where no command has to write."""
    return sorted(path.name for path in folder.iterdir() if path.name != "home")


class Case(NamedTuple):
    """A command, what happened to it, and its ending."""

    words: list[str]
    what: str
    ended: Ending
    wrong: str


def try_case(number: int, pristine: Path) -> Case:
    """Let happen to a command, in a copy of the home, what the number says."""
    random_ = random.Random(number)
    kind = random_.choice((damaged, damaged, forged, stopped, starved))
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        shutil.copytree(pristine, home)
        case = kind(random_, home, pristine)
        beside = ", ".join(f"wrote {name}" for name in outside(Path(folder)))
        return case._replace(wrong=case.wrong or beside)


def damaged(random_: random.Random, home: Path, _: Path) -> Case:
    """Damage one file, and run a command on it."""
    subject = random_.choice(SUBJECTS)
    path = random_.choice(sorted(home.glob(subject.files)))
    before = path.read_bytes()
    while path.read_bytes() == before:
        damage_file(path, random_)
    words = list(random_.choice(subject.commands))
    ended = run(words, home)
    sealed = subject.sealed and not harmless(before, path.read_bytes())
    return Case(words, str(path.relative_to(home)), ended, finding(ended, sealed))


def forged(random_: random.Random, home: Path, _: Path) -> Case:
    """Forge one file in a format that has headers or schemas, without checksums, and run a command on it."""
    files = [each for each in SUBJECTS if each.files.endswith((".parquet", ".safetensors"))]
    subject = random_.choice(files)
    path = random_.choice(sorted(home.glob(subject.files)))
    forge_file(path, random_)
    words = list(random_.choice(subject.commands))
    ended = run(words, home)
    return Case(words, f"{path.relative_to(home)}, forged", ended, finding(ended, sealed=False))


def stopped(random_: random.Random, home: Path, pristine: Path) -> Case:
    """Send a command a signal at a random time. What stood there stands, and the same command gets over it."""
    chosen, number = random_.choice(WRITING), random_.choice(SIGNALS)
    strike = Strike(random_.uniform(0, 1.1) * seconds_of(chosen, pristine), number)
    words = list(chosen)
    ended = run(words, home, strike)
    killed = number == signal.SIGKILL
    wrong = finding(ended, False, (0, -number) if killed else (0, 128 + number)) or half_written(home, killed)
    if not wrong:
        again = list(chosen)
        if words[0] == "harvest" and random_.random() < 0.5 and ended.code and "--overwrite" not in words:
            again.append("--resume")
        elif words[0] in REPLACING and "--overwrite" not in words:
            again.append("--overwrite")
        after = run(again, home)
        wrong = finding(after, False, (0,)) or half_written(home, killed=killed)
        wrong = wrong and f"{wrong}, once more: {after.stderr.strip()}"
    return Case(words, f"{signal.Signals(number).name} after {strike.after:.2f} s", ended, wrong)


@cache
def seconds_of(words: tuple[str, ...], pristine: Path) -> float:
    """Measure what a command takes whom nothing happens to."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        shutil.copytree(pristine, home)
        ended = run(list(words), home)
        if wrong := finding(ended, False, (0,)):
            raise SystemExit(f"{' '.join(words)}: {wrong}\n{ended.stderr}")
        return ended.seconds


def starved(random_: random.Random, home: Path, _: Path) -> Case:
    """Let files end at a size, or the disk be full that a command writes to, where this user may mount one."""
    words, room = list(random_.choice(WRITING)), int(10 ** random_.uniform(0, 5))
    place = words.index("--out" if "--out" in words else "--json") + 1 if {"--out", "--json"} & {*words} else 0
    small = bool(place) and random_.random() < 0.5
    with disk_of(max(room, 4096), home / "disk") if small else contextlib.nullcontext(False) as mounted:
        if mounted:
            words[place] = f"disk/{words[place]}"
            ended = run(words, home)
        else:
            ended = run(words, home, Strike(room=room))
        wrong = finding(ended, False) or half_written(home)
        if ended.code and words[0] != "harvest" and place and "--overwrite" not in words:
            left = home / words[place]
            whole = left.suffix == ".jsonl" and left.is_file()  # points that were finished before
            wrong = wrong or (f"left {left.name}" if left.exists() and not whole else "")
    return Case(words, f"{'a disk' if mounted else 'files'} of {room} bytes", ended, wrong)


def half_written(home: Path, killed: bool = False) -> str:
    """Say what is not whole of what commands write, or left behind; "" if nothing is. killed: what only tidying up can
    prevent is no finding."""
    try:
        for rows in (home / HARVEST, home / "rows"):
            if (rows / "manifest.json").exists():
                read_columns(rows, list(COLUMNS))
        for classifier in (home / CLASSIFIER, home / "new", home / "disk/new"):
            if classifier.exists():
                TreeClassifier.from_pretrained(classifier)
    except InputError as error:
        return str(error)
    if killed:
        return ""
    for lines in (*home.glob("*.jsonl"), *home.glob("disk/*.jsonl")):
        if not lines.read_bytes().endswith(b"\n"):
            return f"{lines.name} ends with half a line"
    left = [path for path in home.rglob("*") if path.suffix in (TEMPORARY, NEW, OLD, TRASH)]
    return ", ".join(f"left {path.relative_to(home)}" for path in left if not [*path.glob("part-*.parquet")])


@contextlib.contextmanager
def pristine_home() -> Iterator[Path]:
    """Yield a home made for a campaign."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir()
        make_home(home)
        yield home


def main(
    minutes: Annotated[float, typer.Option(help="Stop after so many minutes.")] = 20,
    first: Annotated[int, typer.Option(help="Number of the first case.")] = 0,
    case: Annotated[int | None, typer.Option(help="Run this case alone, and show its output.")] = None,
) -> None:
    """Try cases until the time is over; exit code 1 if one of them did not end as it should."""
    torch.set_num_threads(1)
    with pristine_home() as home:
        if case is not None:
            found = try_case(case, home)
            print(found.what, found.words, found.ended.stdout, found.ended.stderr, found.wrong or "fine", sep="\n")
            raise typer.Exit(bool(found.wrong))
        since, counts, number, findings = time.monotonic(), Counter(), first, 0
        while time.monotonic() - since < 60 * minutes:
            found = try_case(number, home)
            counts["wrong" if found.wrong else "refused or stopped" if found.ended.code else "done"] += 1
            if found.wrong:
                findings += 1
                last = next(iter(found.ended.stderr.strip().splitlines()[-1:]), "")
                print(f"case {number}: {found.wrong}: {' '.join(found.words)} on {found.what}: {last}", flush=True)
            number += 1
        print(f"{number - first} cases in {(time.monotonic() - since) / 60:.0f} minutes: {dict(counts)}")
        raise typer.Exit(bool(findings))


if __name__ == "__main__":
    typer.run(main)
