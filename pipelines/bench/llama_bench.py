"""Tokens per second that llama.cpp's `llama-bench` reads, and those of the loop that `pipelines.bench decoding` times.

    python -m pipelines.bench llama-bench [--json data/results/llama_bench.jsonl]

Both continue one token on the same file with as many threads, and neither counts that token's forward. The tool does
not choose tokens; the loop takes the most probable one. Other processes must use less than 5 % of the cores; else the
run is refused.
"""

import json as to_json
from pathlib import Path
from typing import Any

import torch

from c2t.errors import InputError
from c2t.models.loading.load import load_pair
from c2t.sampling import Sampling
from c2t.storage.paths import DEFAULT_PAIR, checkout
from pipelines import terminal
from pipelines.bench import llama_cpp
from pipelines.bench.contenders import Task
from pipelines.bench.idle import check_idle
from pipelines.bench.lines import Json, append
from pipelines.bench.llama_cpp import PACKAGE, VERSION
from pipelines.bench.programs import Program, run
from pipelines.options import PairName

TOKENS, REPEATS = 96, 5  # the tool repeats as often by default
SOURCE = f"build/llama_cpp_python-{VERSION}"
# Eight minutes by one core: the library is compiled again, because the tool needs a part that its package lacks.
HOW_TO_GET = (
    f"build/llama.cpp/bin/pip download --no-deps --no-binary {PACKAGE} {PACKAGE}=={VERSION} -d build && "
    f"tar -xf {SOURCE}.tar.gz -C build && cmake -S {SOURCE}/vendor/llama.cpp -B build/llama-bench -DGGML_NATIVE=ON "
    "-DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_SERVER=OFF && cmake --build build/llama-bench --target llama-bench"
)


def tool() -> Path:
    """Return the program that `HOW_TO_GET` makes."""
    return checkout() / "build" / "llama-bench" / "bin" / "llama-bench"


def by_tool(path: Path, threads: int) -> float:
    """Return the tokens per second that the tool reads for a GGUF file. InputError if it fails."""
    size = ["-t", str(threads), "-p", "0", "-n", str(TOKENS), "-r", str(REPEATS)]
    [row] = to_json.loads(run([str(tool()), "-m", str(path), *size, "-o", "json"]))
    return row["avg_ts"]


def by_loop(program: Program) -> float:
    """Return the tokens per second after the first one of the same work by the worker."""
    task = Task(TOKENS + 1, Sampling(), frozenset())
    program.write([[1]], [0], task)  # warms up, as the tool does
    seconds = 0.0
    for _ in range(REPEATS):
        written = program.write([[1]], [0], task)
        seconds += written.seconds - written.first
    return REPEATS * TOKENS / seconds


def main(pair: PairName = DEFAULT_PAIR, json: Json = None) -> None:
    """Compare llama.cpp's own measurement of its speed with that of this program."""
    loaded = load_pair(pair)
    if why_not := llama_cpp.missing(loaded):
        raise InputError(f"{llama_cpp.LLAMA_CPP}: {why_not}")
    if not tool().is_file():
        raise InputError(f"{tool()} is not there; get it with: {HOW_TO_GET}")
    threads, rows = torch.get_num_threads(), []
    files = llama_cpp.files_of(loaded)
    with llama_cpp.start_rows(loaded) as programs:
        check_idle()
        for path, program in zip(files.values(), programs, strict=True):
            rows.append({"way": program.name, "tool": by_tool(path, threads), "loop": by_loop(program)})
    configuration: dict[str, Any] = {"pair": loaded.name, "sources": loaded.sources, "threads": threads}
    configuration |= {"program": f"{PACKAGE} {VERSION}", "new_tokens": TOKENS, "repeats": REPEATS}
    terminal.table(
        f"tokens/s, {threads} threads",
        ["way", "llama-bench", "the loop here"],
        [[row["way"], f"{row['tool']:.1f}", f"{row['loop']:.1f}"] for row in rows],
    )
    append(json, "bench llama-bench", rows, configuration)
