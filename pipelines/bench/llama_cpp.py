"""llama.cpp beside c2t: a process of Node continues the same token ids from the GGUF that the pair's target came from.

node-llama-cpp is taken because its package holds builds of llama.cpp for each kind of processor, and chooses among them
as it starts; wheels on PyPI hold one for all, which is half as fast on a processor with AVX-512.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from c2t.errors import InputError
from c2t.models import gguf_target
from c2t.models.pairs import Pair
from c2t.storage.paths import checkout
from pipelines.bench.contenders import LOOKED_UP, Contender, Ids, Task, Written

LLAMA_CPP, LLAMA_CPP_LOOKUP = "llama.cpp", "llama.cpp, prompt lookup"
VERSION = "3.22.1"
# Its optional dependencies are builds for graphics cards and other machines, 600 MB of them.
HOW_TO_GET = (
    "npm install --prefix build/llama.cpp --omit=optional --ignore-scripts "
    f"node-llama-cpp@{VERSION} @node-llama-cpp/linux-x64@{VERSION}"
)
SCRIPT = Path(__file__).with_suffix(".mjs")


def library() -> Path:
    """Return the module that Node imports, where `HOW_TO_GET` puts it."""
    return checkout() / "build" / "llama.cpp" / "node_modules" / "node-llama-cpp" / "dist" / "index.js"


def missing(pair: Pair, batch: int) -> str | None:
    """Say why llama.cpp cannot be compared, in a line; None if it can."""
    if batch > 1:
        return "it is measured on one text at a time"
    if pair.name != gguf_target.PAIR:
        return f"it reads GGUF, and the target of {pair.name} is none"
    if shutil.which("node") is None:
        return "Node is not installed"
    if not library().is_file():
        return f"{library().parents[1]} is not there; get it with: {HOW_TO_GET}"
    try:
        gguf_target.check_file(gguf_target.installed())
    except InputError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class LlamaCpp:
    """llama.cpp, as node-llama-cpp runs it. lookup: tokens that its prompt lookup guesses at once, 0 for none."""

    name: str
    setting: str
    program: subprocess.Popen
    lookup: int = 0

    def write(self, prompts: Ids, numbers: Sequence[int], task: Task) -> Written:
        """See `Contender.write`. Takes one prompt; the clock is the process's own."""
        limit, sampling, eos = task
        [prompt], [number] = prompts, numbers
        told = {"prompt": list(prompt), "limit": limit, "eos": sorted(eos)}
        told |= {"temperature": sampling.temperature, "seed": number, "lookup": self.lookup}
        found = ask(self.program, told)
        return Written([found["tokens"]], found["first"], found["seconds"])


def ask(program: subprocess.Popen, request: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send a request and return the answer; without one, return the next line that the process writes."""
    try:
        if request is not None:
            program.stdin.write(json.dumps(request) + "\n")
            program.stdin.flush()
        line = program.stdout.readline()
    except BrokenPipeError:
        line = ""
        with suppress(BrokenPipeError):  # nobody reads what is left in it
            program.stdin.close()
    if not line:
        raise InputError(f"llama.cpp ended with code {program.wait()}; run it to see why: {' '.join(program.args)}")
    return json.loads(line)


@contextmanager
def llama_cpp(pair: Pair) -> Iterator[dict[str, list[Contender]]]:
    """Start llama.cpp with as many threads as torch has; yield it without and with its prompt lookup."""
    about = [library(), gguf_target.installed(), torch.get_num_threads(), pair.target.max_positions]
    command = ["node", str(SCRIPT), *map(str, about)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as program:
        ask(program)  # it is ready
        lookups = [LlamaCpp(LLAMA_CPP_LOOKUP, f"{count} tokens", program, count) for count in LOOKED_UP]
        yield {LLAMA_CPP: [LlamaCpp(LLAMA_CPP, "", program)], LLAMA_CPP_LOOKUP: lookups}
