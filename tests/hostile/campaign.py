"""Run commands on damaged files, thousands of them, and report every one that does not end as it should:

    python -m tests.hostile.campaign --minutes 20       # or: make hostile
    python -m tests.hostile.campaign --case 1234        # one of them again, with its output

A case is a number: it decides the command, the file and the damage. A command may succeed or end with exit code 2 and
one line that begins with "c2t: "; everything else is a finding: a traceback, another exit code, a signal, more than
SECONDS or MEMORY, a file outside of its folder, or success on bytes that have a checksum.
"""

import contextlib
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
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer

import c2t.training.fit  # noqa: F401 - commands import it late; here they share it
from c2t.cli.app import app
from tests.hostile.mutations import damage_file
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
    Subject(f"{HARVEST}/*.parquet", (("train", "--epochs", "1", "--out", "new"), ("info", "tiny"))),
    Subject("data/sweep/tiny.jsonl", (("plot", "data/sweep/tiny.jsonl", "--out", "front.png"),)),
    Subject("cache/texts/*", (("bench", *FEW, "--policies", "eagle2:N=6,levels=2"),)),
)
ON_TINY = {name: ["--pair", "tiny"] for name in ("harvest", "generate", "bench")} | {"finetune": ["--from", "tiny"]}
ON_TINY |= {"train": ["tiny"]}


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


def run(words: list[str], home: Path) -> Ending:
    """Run a command in a forked process, in the folder `home`, which is also $C2T_HOME."""
    words = [*words, *(ON_TINY.get(words[0], []) if "tiny" not in words else [])]
    out, err = home / "stdout", home / "stderr"
    since = time.monotonic()
    child = os.fork()
    if not child:
        _be_the_command(words, home, out, err)
    code = _wait(child)
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in (out, err)]
    return Ending(code, *texts, time.monotonic() - since)


def _be_the_command(words: list[str], home: Path, out: Path, err: Path) -> None:
    """Never returns."""
    code = 70
    try:
        os.setsid()
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(home)
        os.environ |= {"C2T_HOME": str(home), "C2T_CACHE": str(home / "cache"), "COLUMNS": "200"}
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        app(words, prog_name="c2t")
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


def _wait(child: int) -> int:
    """Return the exit code; after SECONDS the process and its children are killed."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def finding(ended: Ending, sealed: bool) -> str:
    """Say what is wrong with the way a command ended; "" if nothing is."""
    if "Traceback" in ended.stdout + ended.stderr:
        return "traceback"
    if ended.code == -signal.SIGKILL and ended.seconds >= SECONDS:
        return f"still running after {SECONDS} s"
    if ended.code not in (0, 2):
        return f"exit code {ended.code}"
    said = [line for line in ended.stderr.splitlines() if line.startswith("c2t: ")]
    if ended.code == 2 and (len(said) != 1 or not ended.stderr.rstrip("\n").splitlines()[-1].startswith("c2t: ")):
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
    except ValueError:
        return False
    return said == says or not (isinstance(says, dict) and says.get("sha256"))


def outside(folder: Path) -> list[str]:
    """Return what lies beside the home in a case's folder, where no command has to write."""
    return sorted(path.name for path in folder.iterdir() if path.name != "home")


class Case(NamedTuple):
    """A damaged home's command and its ending."""

    words: list[str]
    file: str
    ended: Ending
    wrong: str


def try_case(number: int, pristine: Path) -> Case:
    """Damage one file of a copy of the home as the number says, and run a command on it."""
    random_ = random.Random(number)
    subject = random_.choice(SUBJECTS)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        shutil.copytree(pristine, home)
        path = random_.choice(sorted(home.glob(subject.files)))
        before = path.read_bytes()
        while path.read_bytes() == before:
            damage_file(path, random_)
        words = list(random_.choice(subject.commands))
        ended = run(words, home)
        sealed = subject.sealed and not harmless(before, path.read_bytes())
        wrong = finding(ended, sealed) or ", ".join(f"wrote {name}" for name in outside(Path(folder)))
        return Case(words, str(path.relative_to(home)), ended, wrong)


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
            print(found.file, found.words, found.ended.stdout, found.ended.stderr, found.wrong or "fine", sep="\n")
            raise typer.Exit(bool(found.wrong))
        since, counts, number, findings = time.monotonic(), Counter(), first, 0
        while time.monotonic() - since < 60 * minutes:
            found = try_case(number, home)
            counts["refused" if found.ended.code == 2 else "done" if not found.wrong else "wrong"] += 1
            if found.wrong:
                findings += 1
                last = next(iter(found.ended.stderr.strip().splitlines()[-1:]), "")
                print(f"case {number}: {found.wrong}: {' '.join(found.words)} on {found.file}: {last}", flush=True)
            number += 1
        print(f"{number - first} cases in {(time.monotonic() - since) / 60:.0f} minutes: {dict(counts)}")
        raise typer.Exit(bool(findings))


if __name__ == "__main__":
    typer.run(main)
