"""Harvests of full trees, made where they are missing and kept; an interrupted one is continued."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer

from c2t.harvest.harvest import HarvestSettings, harvest
from c2t.models.pairs import Pair, load_pair
from c2t.prompts import Prompt
from c2t.records.reader import is_complete
from c2t.storage import paths as checkpoints

HARVESTS = checkpoints.root() / "build" / "gain"
Build = Annotated[Path, typer.Option(help="Where harvests are kept.")]


class Condition(NamedTuple):
    """Draft of the embedded pair and temperature of the text."""

    draft: str
    temperature: float

    @property
    def title(self) -> str:
        return f"{self.draft}, T = {self.temperature:g}"


def harvested(condition: Condition, prompts: Sequence[Prompt], settings: HarvestSettings, build: Path) -> Path:
    """Return the folder of this condition's full trees, which are harvested if it is not complete yet."""
    make = partial(load_pair, "tiny", draft=condition.draft, dtype=torch.float32)
    return kept(condition.draft, make, prompts, settings, build)


def kept(
    draft: str, load: Callable[[], Pair], prompts: Sequence[Prompt], settings: HarvestSettings, build: Path
) -> Path:
    """Return the folder of a draft's full trees. They are harvested with the pair that `load` returns if it is not
    complete yet."""
    further = "".join(f"-{name}" for name in settings.columns)
    further += f"-draws{settings.sampling.draws}" * (settings.temperature > 0)
    folder = build / f"{draft}-T{settings.temperature:g}-{len(prompts)}x{settings.max_new_tokens}{further}"
    if not is_complete(folder):
        harvest(load(), prompts, folder, settings, resume=True)
    return folder
