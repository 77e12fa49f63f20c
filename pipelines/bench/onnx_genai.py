"""ONNX Runtime GenAI next to c2t: processes continue the same token ids, from models of the target's own weights.

A number of bits is a contender of its own, because it is another model. So is its speculation by n-grams, whose text is
compared with plain decoding of the same weights. That one needs logits of all tokens of a forward, where plain decoding
is faster on prompts with those of the last token alone. So there are two models of each number of bits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from c2t.models.loading.load import Pair
from c2t.storage.paths import cache
from pipelines.bench import onnx_genai_files
from pipelines.bench.contenders import LOOKED_UP, Contender
from pipelines.bench.onnx_genai_files import BITS, exported, size_of
from pipelines.bench.programs import Program, Way, all_started, not_alone, not_there, python_of

ONNX, LOOKUP = "ONNX Runtime", ", prompt lookup"
PACKAGE, VERSION = "onnxruntime-genai", "0.18.0"
# A looser version of torch would bring gigabytes for GPUs.
HOW_TO_GET = (
    "python3.11 -m venv build/onnx && build/onnx/bin/pip install torch==2.13.0 transformers==5.24.0 "
    f"onnx==1.23.2 onnx-ir==1.1.0 onnxruntime==1.32.0 {PACKAGE}=={VERSION}"
)
LENGTHS = (1, 2, 3)  # tokens after which a draft is taken; the library's `ngram_size` counts one of the draft as well
ADAPTIVE = {"ngram_chained_lookup": True, "min_adaptive_k": 2}  # as the library's documentation recommends
SCRIPT = Path(__file__).with_name("onnx_genai_worker.py")
NAMES = (ONNX, *(f"{ONNX}, {kind}{lookup}" for kind in BITS for lookup in ("", LOOKUP)))


def python() -> Path:
    """Return the interpreter of the environment that `HOW_TO_GET` makes."""
    return python_of("onnx")


def missing(pair: Pair, batch: int = 1, temperature: float = 0.0) -> str | None:
    """Say why ONNX Runtime cannot be compared, in a line; None if it can."""
    why_not = onnx_genai_files.why_not(pair.target.config, pair.sources["target"][0])
    return not_alone(batch, temperature) or why_not or not_there(python(), HOW_TO_GET)


def settings_of(lookup: str) -> dict[str, dict[str, Any]]:
    """Return the settings of plain decoding, or of speculation by n-grams, by their names."""
    if not lookup:
        return {"": {}}
    fixed = {
        f"{count} tokens after {length}": {"ngram_size": length + 1, "max_draft_tokens": count}
        for count in LOOKED_UP
        for length in LENGTHS
    }
    adaptive = {f"2 tokens or more after {length}": {**ADAPTIVE, "ngram_size": length + 1} for length in LENGTHS}
    return fixed | adaptive


def way_of(pair: Pair, kind: str, lookup: str) -> Way:
    """Return a way to decode with as many threads as torch has, from a model that is made if it is not there."""
    source, mark = Path(pair.sources["target"][0]), pair.sources["target"][1]
    build = [str(python()), "-m", "onnxruntime_genai.models.builder"]
    path = exported(source, cache() / "onnx" / f"{VERSION}-{mark}", kind, bool(lookup), build)
    command = [str(python()), "-P", str(SCRIPT), str(path), str(torch.get_num_threads())]
    return Way(f"{ONNX}, {kind}{lookup}", command, settings_of(lookup), size_of(pair.target, kind))


@contextmanager
def start(pair: Pair) -> Iterator[dict[str, list[Contender]]]:
    """Start a process for each number of bits, without and with n-grams of the text; yield them by the contenders'
    names."""
    with all_started(way_of(pair, kind, lookup) for kind in BITS for lookup in ("", LOOKUP)) as contenders:
        yield contenders


@contextmanager
def start_rows(pair: Pair) -> Iterator[list[Program]]:
    """Start a process for each number of bits that times forwards, logits of all their tokens included."""
    ways = (way_of(pair, kind, LOOKUP)._replace(name=f"{ONNX}, {kind}", settings={"": {}}) for kind in BITS)
    with all_started(ways) as programs:
        yield [program for [program] in programs.values()]


def plain_of(name: str) -> str | None:
    """Return the contender that decodes plainly with the same weights; None for a name that is not ONNX Runtime's."""
    return name.removesuffix(LOOKUP) if name in NAMES else None
