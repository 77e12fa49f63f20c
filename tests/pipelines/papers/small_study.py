"""A study that takes a second: the small pair, a few texts, a network that hardly learns."""

from dataclasses import replace
from typing import Any

import pytest

from pipelines.papers import study as paper

SMALL: dict[str, Any] = {"limit": 3, "max_new_tokens": 8, "harvest_limit": 6, "harvest_tokens": 12}


def small_training(patch: pytest.MonkeyPatch) -> None:
    """Few steps of optimisers and of searches."""
    short = {name: replace(settings, epochs=1, min_steps=10) for name, settings in paper.TRAINING.items()}
    patch.setattr(paper, "TRAINING", short)
    patch.setattr(paper, "FINETUNE", replace(paper.FINETUNE, epochs=1, min_steps=10))
    patch.setattr(paper, "STEPS", 1)
