"""Measure how often each rank of each depth of a draft is right, for Medusa's static tree.

python -m pipelines.pair.accuracies --pair smollm2 --draft medusa
c2t bench --pair smollm2 --draft medusa --policies static:accuracies=checkpoints/local/smollm2/accuracies.json,N=26
"""

from pathlib import Path
from typing import Annotated

import torch
import typer

from c2t.models.loading.load import load_pair
from c2t.replay.prompts import default_prompts, read_prompts, spread
from c2t.sampling import Sampling
from c2t.storage import paths as checkpoints
from c2t.study.accuracies import accuracies, write
from c2t.study.evaluate import continuations, encode
from pipelines.terminal import errors_in_one_line


def main(
    pair: str = "tiny",
    draft: Annotated[str | None, typer.Option(help="Folder or Hub id, or one of the pair's own by name.")] = None,
    temperature: Annotated[float, typer.Option(help="Temperature of the texts; 0 is greedy.")] = 0.0,
    levels: Annotated[int, typer.Option(min=1, max=256, help="Depths of the draft to measure.")] = 5,
    ranks: Annotated[int, typer.Option(min=1, max=1024, help="Most probable tokens of a depth.")] = 16,
    limit: Annotated[int, typer.Option(min=1, help="Prompts, of those that classifiers learn from.")] = 24,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="New tokens of each text.")] = 64,
    out: Annotated[
        Path | None, typer.Option(help="File.", show_default="checkpoints/local/PAIR/accuracies.json")
    ] = None,
) -> None:
    """Measure a draft's accuracies by depth and rank and store them."""
    loaded = load_pair(pair, draft=draft, dtype=torch.float32)
    prompts = [prompt for path in default_prompts(loaded.name, "harvest") for prompt in read_prompts(path)]
    sampling = Sampling(temperature)
    ids = encode(loaded, spread(prompts, limit), max_new_tokens, sampling).ids
    texts = continuations(loaded, ids, max_new_tokens, levels, sampling)
    measured = accuracies(loaded.draft, texts, levels, ranks)
    file = out or checkpoints.root() / "checkpoints" / "local" / loaded.name / "accuracies.json"
    write(file, measured, pair=loaded.name, draft=loaded.sources["draft"][1], temperature=temperature)
    for depth, rates in enumerate(measured.rates):
        print(f"depth {depth}: {' '.join(f'{rate:.3f}' for rate in rates[:6])} ...")
    print(f"{measured.positions} positions: {file}")


if __name__ == "__main__":
    with errors_in_one_line("pipelines.pair.accuracies"):
        typer.run(main)
