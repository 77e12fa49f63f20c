"""Contenders that run in a process of their own, in an environment in build/: requests and answers are lines of JSON on
its pipes."""

import json
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from c2t.errors import InputError
from c2t.storage.paths import checkout, replacing
from pipelines.bench.contenders import Ids, Task, Written
from pipelines.bench.sizes import Size


@dataclass(frozen=True)
class Program:
    """A process that continues one prompt at a time, on a clock of its own. extra: further entries of each request.
    size: see `Contender`."""

    name: str
    setting: str
    process: subprocess.Popen
    extra: dict[str, Any] = field(default_factory=dict)
    size: Size | None = None

    def write(self, prompts: Ids, numbers: Sequence[int], task: Task) -> Written:
        """See `Contender.write`. Takes one prompt."""
        limit, sampling, eos = task
        [prompt], [number] = prompts, numbers
        request = {"prompt": list(prompt), "limit": limit, "eos": sorted(eos)}
        request |= {"temperature": sampling.temperature, "seed": number, **self.extra}
        answer = ask(self.process, self.name, request)
        return Written([answer["tokens"]], answer["first"], answer["seconds"], rounds=answer.get("rounds"))


def python_of(environment: str) -> Path:
    """Return the interpreter of an environment in build/, which may not be there."""
    return checkout() / "build" / environment / "bin" / "python"


def not_there(python: Path, how_to_get: str) -> str | None:
    """Say that an environment is not there, and how to get it; None if it is."""
    return None if python.is_file() else f"{python.parents[1]} is not there; get it with: {how_to_get}"


def not_alone(batch: int, temperature: float) -> str | None:
    """Say why a program of one greedy text at a time is not compared; None if it is."""
    if batch > 1:
        return "it is measured on one text at a time"
    return "it is measured on greedy texts" if temperature else None


def uneven(inputs: Iterable[int], group: int) -> str | None:
    """Say which number of a matrix's inputs is not of whole groups of weights that share a scale; None if each is."""
    return next((f"{size} inputs are no multiple of {group}" for size in inputs if size % group), None)


def not_one_file(source: str) -> str | None:
    """Say that a target's folder has not the one file of weights that other programs convert; None if it has."""
    whole = (Path(source) / "model.safetensors").is_file()
    return None if whole else "a target is exported from a folder with one file of weights"


def made(folder: Path, command: Sequence[str]) -> Path:
    """Return the folder, which a command makes if it is not there: its last argument is an empty folder. Raises
    InputError if the folder cannot be written, or if the command fails."""
    if not folder.is_dir():
        with replacing(folder) as new:
            run([*command, str(new)])
    return folder


def run(command: Sequence[str]) -> str:
    """Run a command and return its output. Raises InputError with its last line about errors if the command fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise InputError(f"{' '.join(command)} ended with code {done.returncode}: {last}")
    return done.stdout


def ask(process: subprocess.Popen, name: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send a request and return the answer; without one, return the next line that the process writes."""
    try:
        if request is not None:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = ""
        with suppress(BrokenPipeError):  # nobody reads what is left in it
            process.stdin.close()
    if not line:
        raise InputError(f"{name} ended with code {process.wait()}; run it to see why: {' '.join(process.args)}")
    return json.loads(line)


@contextmanager
def started(name: str, command: Sequence[str]) -> Iterator[subprocess.Popen]:
    """Start a process, which writes a line when it is ready; it ends with the block."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:
        ask(process, name)
        yield process


class Way(NamedTuple):
    """A way to decode, as a contender: its process's command, and the `options` of a request by its settings' names."""

    name: str
    command: Sequence[str]
    settings: dict[str, dict[str, Any]]
    size: Size


@contextmanager
def all_started(ways: Iterable[Way]) -> Iterator[dict[str, list[Program]]]:
    """Start a process for each way to decode, and yield its settings by its name."""
    with ExitStack() as running:
        programs: dict[str, list[Program]] = {}
        for name, command, settings, size in ways:
            process = running.enter_context(started(name, command))
            programs[name] = [
                Program(name, setting, process, {"options": options}, size) for setting, options in settings.items()
            ]
        yield programs
