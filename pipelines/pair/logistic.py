"""Train the sceptic's classifiers on a harvest: logistic regression on P, H, d, on each subset of two, and on the
log-odds of the most probable sibling."""

from itertools import combinations
from pathlib import Path
from typing import Annotated

import typer

from c2t.kernels.features import FEATURES
from c2t.storage import paths as checkpoints
from c2t.training.data import TrainSettings
from c2t.training.logistic import train_logistic


def main(
    data: Annotated[list[Path] | None, typer.Argument(help="Harvests.", show_default="data/harvest/tiny")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the classifiers.")] = Path("checkpoints/local/logistic"),
) -> None:
    paper = tuple(FEATURES)[:3]
    for names in (paper, *combinations(paper, 2), ("max_prob_logit",)):
        place = out / "-".join(names)
        trained = train_logistic(data or [checkpoints.harvest_of("tiny")], place, TrainSettings(names), overwrite=True)
        print(place, " ".join(f"{name} {value:.4f}" for name, value in trained.config.metrics.items()))


if __name__ == "__main__":
    typer.run(main)
