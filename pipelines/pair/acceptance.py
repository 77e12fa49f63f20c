"""Measure the acceptance rates that shape Sequoia's tree, for both rules, and store them with the pair."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from c2t.models.loading.load import load_pair
from c2t.policies import Sequoia
from c2t.replay.prompts import default_prompts, read_prompts, spread
from c2t.sampling import Sampling
from c2t.study.acceptance import acceptance_by_rank, key, local_file, store
from c2t.study.evaluate import encode
from pipelines.terminal import errors_in_one_line


def main(
    pair: str = "tiny",
    draft: Annotated[str | None, typer.Option(help="Folder or Hub id, or one of the pair's own by name.")] = None,
    temperature: Annotated[list[float], typer.Option(help="Of the target; repeat it for more.")] = (0.0, 0.4, 0.7, 1.0),
    top_p: float = 1.0,
    draft_temperature: float = Sequoia.temperature,
    children: int = 16,
    limit: Annotated[int, typer.Option(help="Prompts, of those that classifiers learn from.")] = 24,
    max_new_tokens: int = 64,
    out: Annotated[
        Path | None, typer.Option(help="File.", show_default="checkpoints/local/PAIR/acceptance.json")
    ] = None,
) -> None:
    loaded = load_pair(pair, draft=draft, dtype=torch.float32)
    prompts = [prompt for path in default_prompts(loaded.name, "harvest") for prompt in read_prompts(path)]
    for target_temperature in temperature:
        sampling = Sampling(target_temperature, top_p=top_p)
        ids = encode(loaded, spread(prompts, limit), max_new_tokens, sampling).ids
        for rule in ("residual", "target-only"):
            measured = acceptance_by_rank(
                loaded,
                ids,
                sampling=sampling,
                draft_temperature=draft_temperature,
                rule=rule,
                children=children,
                max_new_tokens=max_new_tokens,
            )
            entry = key(loaded, target_temperature, draft_temperature, rule, top_p)
            store(out or local_file(loaded.name), entry, measured)
            rates = " ".join(f"{rate:.3f}" for rate in measured.rates[:6])
            print(f"T = {target_temperature:g}, {rule}: {rates} ... ({measured.rounds} rounds)")


if __name__ == "__main__":
    with errors_in_one_line("pipelines.pair.acceptance"):
        typer.run(main)
