"""llama.cpp next to c2t: a process continues the same token ids, from files of the target's own weights.

`llama-cpp-python` is taken for the source of llama.cpp in it, which `HOW_TO_GET` compiles for this machine's processor
into an environment of its own. Of its Python only the declarations of the C interface are used
(`pipelines.bench.llama_cpp_worker`).

A type of weights is a contender of its own, because it is another model. So is its speculation by n-grams, whose text
is compared with plain decoding of the same file.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from c2t.models.loading.load import Pair
from c2t.storage.paths import cache
from pipelines.bench import llama_cpp_files
from pipelines.bench.contenders import LOOKED_UP
from pipelines.bench.programs import Program, not_alone, not_there, python_of, started
from pipelines.bench.sizes import size_of_file

LLAMA_CPP, LOOKUP = "llama.cpp", ", prompt lookup"
PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
# Ten minutes by one core. Left out is what only its own programs and models of images need.
LEFT_OUT = ("LLAMA_CURL", "LLAVA_BUILD", "LLAMA_BUILD_TOOLS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_SERVER")
OPTIONS = " ".join(("-DGGML_NATIVE=ON", *(f"-D{part}=OFF" for part in LEFT_OUT)))
HOW_TO_GET = (
    f"python3.11 -m venv build/llama.cpp && CMAKE_ARGS='{OPTIONS}' "
    f"build/llama.cpp/bin/pip install --no-binary {PACKAGE} {PACKAGE}=={VERSION}"
)
SHORTEST = (1, 2, 3)  # tokens of an n-gram at least, before a draft is taken after it
SCRIPT = Path(__file__).with_name("llama_cpp_worker.py")
WAYS = {kind: f"{LLAMA_CPP}, {kind}" for kind in (llama_cpp_files.EXACT, *llama_cpp_files.ROUNDED)}
NAMES = (LLAMA_CPP, *(name + lookup for name in WAYS.values() for lookup in ("", LOOKUP)))


def python() -> Path:
    """Return the interpreter of the environment that `HOW_TO_GET` makes."""
    return python_of("llama.cpp")


def worker() -> list[str]:
    """Return the command that runs the worker, without its arguments."""
    return [str(python()), "-P", str(SCRIPT)]


def missing(pair: Pair, batch: int = 1, temperature: float = 0.0) -> str | None:
    """Say why llama.cpp cannot be compared, in a line; None if it can."""
    why_not = llama_cpp_files.why_not(pair.target.config)
    return not_alone(batch, temperature) or why_not or not_there(python(), HOW_TO_GET)


def files_of(pair: Pair) -> dict[str, Path]:
    """Return the GGUF file of each type of weights, which are made in c2t's cache the first time. InputError: see
    `llama_cpp_files.files`."""
    _, mark = pair.sources["target"]
    folder = cache() / "llama.cpp" / f"{VERSION}-{mark}"
    return llama_cpp_files.files(pair.target.model, folder, [*worker(), "quantize"], torch.get_num_threads())


@contextmanager
def start(pair: Pair) -> Iterator[dict[str, list[Program]]]:
    """Start llama.cpp on the file of each type with as many threads as torch has; yield it without and with n-grams of
    the text, by the contenders' names."""
    settings = [str(torch.get_num_threads()), str(pair.target.max_positions)]
    with ExitStack() as running:
        contenders: dict[str, list[Program]] = {}
        for kind, path in files_of(pair).items():
            name, size = WAYS[kind], size_of_file(path)
            process = running.enter_context(started(name, [*worker(), "run", str(path), *settings]))
            contenders[name] = [Program(name, "", process, size=size)]
            contenders[name + LOOKUP] = [
                Program(name + LOOKUP, setting, process, {"lookup": count, "shortest": shortest}, size)
                for count in LOOKED_UP
                for shortest in SHORTEST
                for setting in [f"{count} tokens after {shortest} or more"]
            ]
        yield contenders


@contextmanager
def start_rows(pair: Pair) -> Iterator[list[Program]]:
    """Start a process for each type that times forwards."""
    with start(pair) as contenders:
        yield [rivals[0] for name, rivals in contenders.items() if name == plain_of(name)]


def plain_of(name: str) -> str | None:
    """Return the contender that decodes plainly from the same file; None for a name that is not llama.cpp's."""
    return name.removesuffix(LOOKUP) if name in NAMES else None
