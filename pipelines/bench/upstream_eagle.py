"""Upstream EAGLE's own code next to c2t: same target, same head, in a process with the versions that it needs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from c2t.models.drafts.eagle import EagleHead
from c2t.models.drafts.head_draft import EagleDraft
from c2t.models.loading.load import Pair
from pipelines.bench.contenders import DTYPES, Contender
from pipelines.bench.programs import Program, not_there, python_of, started

UPSTREAM_EAGLE = "upstream EAGLE-1"
NAMES = (UPSTREAM_EAGLE,)
PACKAGE, VERSION = "eagle-llm", "1.2.1"
HOW_TO_GET = (
    "python3.11 -m venv build/eagle && build/eagle/bin/pip install torch==2.13.0 transformers==4.36.2 'numpy<2' && "
    f"build/eagle/bin/pip install --no-deps eagle-llm=={VERSION}"
)
SCRIPT = Path(__file__).with_name("upstream_eagle_worker.py")


def python() -> Path:
    """Return the interpreter of the environment that `HOW_TO_GET` makes."""
    return python_of("eagle")


def missing(pair: Pair, batch: int, temperature: float = 0.0) -> str | None:
    """Say why upstream EAGLE cannot be compared, in a line; None if it can, at any temperature."""
    if batch > 1:
        return "it decodes one text at a time"
    eagle = type(pair.draft) is EagleDraft and isinstance(pair.draft.head, EagleHead)
    if not eagle or pair.target.config.model_type != "llama":
        return "it runs EAGLE-1 heads of Llama targets"
    if (getattr(pair.target.config, "rope_parameters", None) or {}).get("rope_type") != "default":
        return "it knows no scaled rotary positions"
    if not all((Path(pair.sources[part][0]) / "model.safetensors").is_file() for part in ("target", "draft")):
        return "it is given a target and a head in a folder each, in one file of weights"
    return not_there(python(), HOW_TO_GET)


@contextmanager
def start(pair: Pair) -> Iterator[dict[str, list[Contender]]]:
    """Start it with as many threads as torch has, in each dtype; yield both, with upstream's own tree."""
    folders = [pair.sources[part][0] for part in ("target", "draft")]
    with ExitStack() as running:
        yield {
            UPSTREAM_EAGLE: [
                Program(UPSTREAM_EAGLE, dtype, running.enter_context(started(UPSTREAM_EAGLE, command)))
                for dtype in DTYPES
                for command in [[*map(str, (python(), SCRIPT, *folders, torch.get_num_threads())), dtype]]
            ]
        }


def plain_of(name: str) -> None:
    """Return None, for any contender: it is asked for its trees only."""
