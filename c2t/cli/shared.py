"""Steps that several commands take: load a pair, read prompts, find a classifier, show facts."""

from collections.abc import Callable
from pathlib import Path

import torch

from c2t.classifier import TreeClassifier
from c2t.cli import info as information
from c2t.cli import terminal
from c2t.models.pairs import Pair, load_pair
from c2t.prompts import Prompt, read_prompts


def load(
    pair: str | None, target: str | None, draft: str | None, device: str | None, dtype: str | None, spread: str | None
) -> Pair:
    place = None if spread else device or ("cuda" if torch.cuda.is_available() else "cpu")
    kind = getattr(torch, dtype) if dtype else None
    return load_pair(pair, target=target, draft=draft, device=place, dtype=kind, device_map=spread)


def read(files: list[Path]) -> list[Prompt]:
    return [prompt for path in files for prompt in read_prompts(path)]


def classifier(pair: Pair, reference: str | None) -> Callable[..., TreeClassifier]:
    return lambda name=None: TreeClassifier.from_pretrained(name or reference or pair.name, device=pair.target.device)


def show(found: list[information.Facts]) -> None:
    for facts in found:
        terminal.facts(*facts)
