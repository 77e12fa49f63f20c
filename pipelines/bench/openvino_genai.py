"""OpenVINO GenAI next to c2t: processes continue the same token ids, from exports of the target's own weights.

A number of bits is a contender of its own, because it is another model. So are its two ways of speculation: n-grams of
the text, and chains or trees of the pair's EAGLE-3 head. Their texts are compared with plain decoding of the same
weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from c2t.models.drafts.heads import PARTS
from c2t.models.loading.load import Pair
from c2t.storage.paths import cache, find
from pipelines.bench import openvino_genai_files
from pipelines.bench.contenders import LOOKED_UP, Contender
from pipelines.bench.openvino_genai_files import BITS, size_of_folder
from pipelines.bench.openvino_genai_worker import EAGLE3, LOOKUP, PLAIN, ROWS
from pipelines.bench.programs import Program, Way, all_started, not_alone, not_there, python_of

OPENVINO = "OpenVINO"
PACKAGE, VERSION = "openvino-genai", "2026.4.1.0"
# optimum-intel exports; it installs a torchvision that may be of another torch, and needs none.
HOW_TO_GET = (
    f"python3.11 -m venv build/openvino && build/openvino/bin/pip install torch==2.13.0 {PACKAGE}=={VERSION} "
    "optimum-intel==2.2.0 nncf==3.4.0 einops && build/openvino/bin/pip install --no-deps diffusers==0.37.1 && "
    "build/openvino/bin/pip uninstall -y torchvision"
)
SCRIPT = Path(__file__).with_name("openvino_genai_worker.py")
SPECULATION = {LOOKUP: ", prompt lookup", EAGLE3: ", EAGLE-3"}
NAMES = (
    OPENVINO,
    *(f"{OPENVINO}, {kind}{speculation}" for kind in BITS for speculation in ("", *SPECULATION.values())),
)
LONGEST = (2, 3, 4)  # tokens of an n-gram at most
CHAINS = (2, 3, 5)  # drafted tokens
TREES = ((2, 3, 6), (3, 3, 8), (3, 4, 10), (4, 4, 12), (4, 5, 20))  # branching factor, depth, tokens


def python() -> Path:
    """Return the interpreter of the environment that `HOW_TO_GET` makes."""
    return python_of("openvino")


def missing(pair: Pair, batch: int = 1, temperature: float = 0.0) -> str | None:
    """Say why OpenVINO cannot be compared, in a line; None if it can."""
    why_not = openvino_genai_files.why_not(pair.target.config, pair.sources["target"][0])
    return not_alone(batch, temperature) or why_not or not_there(python(), HOW_TO_GET)


def settings_of(way: str) -> dict[str, dict[str, Any]]:
    """Return the settings of a way to decode, by their names."""
    if way in (PLAIN, ROWS):
        return {"": {}}
    if way == LOOKUP:
        return {
            f"{count} tokens after {longest} or fewer": {"num_assistant_tokens": count, "max_ngram_size": longest}
            for count in LOOKED_UP
            for longest in LONGEST
        }
    chains = {f"chain of {count}": {"num_assistant_tokens": count} for count in CHAINS}
    trees = {
        f"tree of {count}, {depth} deep, {branching} wide": {
            "num_assistant_tokens": count,
            "branching_factor": branching,
            "tree_depth": depth,
        }
        for branching, depth, count in TREES
    }
    return chains | trees


def folder_of(pair: Pair) -> Path:
    """Return the folder of what is exported for a pair."""
    return cache() / "openvino" / f"{VERSION}-{pair.sources['target'][1]}"


def exporter() -> list[str]:
    """Return the command that exports, without its arguments."""
    return [str(python().with_name("optimum-cli")), "export", "openvino"]


def way_of(pair: Pair, kind: str, way: str, *more: str) -> Way:
    """Return a way to decode with as many threads as torch has, from an export that is made if it is not there. more:
    further arguments of its process."""
    path = openvino_genai_files.files(Path(pair.sources["target"][0]), folder_of(pair), exporter())[kind]
    command = [str(python()), "-P", str(SCRIPT), str(path), str(torch.get_num_threads()), way, *more]
    name = f"{OPENVINO}, {kind}{SPECULATION.get(way, '')}"
    return Way(name, command, settings_of(way), size_of_folder(path, pair.target))


@contextmanager
def start(pair: Pair) -> Iterator[dict[str, list[Contender]]]:
    """Start a process for each number of bits and way to decode; yield them by the contenders' names. A pair without an
    EAGLE-3 head has no such contender."""
    ways: dict[str, list[str]] = {PLAIN: [], LOOKUP: []}
    if head := find(pair.name, PARTS[EAGLE3]):
        source = Path(pair.sources["target"][0])
        exported = openvino_genai_files.exported_head(head, pair.target, source, folder_of(pair), exporter())
        ways[EAGLE3] = [str(exported)]
    with all_started(way_of(pair, kind, way, *more) for kind in BITS for way, more in ways.items()) as contenders:
        yield contenders


@contextmanager
def start_rows(pair: Pair) -> Iterator[list[Program]]:
    """Start a process for each number of bits that times forwards."""
    with all_started(way_of(pair, kind, ROWS) for kind in BITS) as programs:
        yield [program for [program] in programs.values()]


def plain_of(name: str) -> str | None:
    """Return the contender that decodes plainly from the same weights; None for a name that is not OpenVINO's."""
    if name not in NAMES:
        return None
    return next((name.removesuffix(end) for end in SPECULATION.values() if name.endswith(end)), name)
