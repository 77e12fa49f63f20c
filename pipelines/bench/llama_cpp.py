"""llama.cpp next to c2t: a process of Node continues the same token ids from the GGUF that the pair's target came from.

node-llama-cpp is taken because its package holds builds of llama.cpp for each kind of processor, and chooses among them
as it starts; wheels on PyPI hold one for all, which is half as fast on a processor with AVX-512.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from c2t.errors import InputError
from c2t.models.loading.load import Pair
from c2t.models.target import gguf_target
from c2t.storage.paths import checkout
from pipelines.bench.contenders import LOOKED_UP, Contender
from pipelines.bench.programs import Program, started

LLAMA_CPP, LLAMA_CPP_LOOKUP = "llama.cpp", "llama.cpp, prompt lookup"
PACKAGE, VERSION = "node-llama-cpp", "3.22.1"
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


@contextmanager
def start(pair: Pair) -> Iterator[dict[str, list[Contender]]]:
    """Start llama.cpp with as many threads as torch has; yield it without and with its prompt lookup."""
    about = [library(), gguf_target.installed(), torch.get_num_threads(), pair.target.max_positions]
    with started(LLAMA_CPP, ["node", str(SCRIPT), *map(str, about)]) as process:
        lookups = [Program(LLAMA_CPP_LOOKUP, f"{count} tokens", process, {"lookup": count}) for count in LOOKED_UP]
        yield {LLAMA_CPP: [Program(LLAMA_CPP, "", process)], LLAMA_CPP_LOOKUP: lookups}
