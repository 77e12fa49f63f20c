"""Learn the interpolation weights of n-grams for a kind of drafts from the target's texts to a pair's harvest prompts,
greedy and sampled (`c2t.drafting.ngram_weights`), and print them.

    python -m pipelines.ngrams [--pair smollm2] [--draft eagle]
"""

from typing import Annotated

import torch
import typer

from c2t.drafting.ngram_weights import LEVELS, Evidence, evidence, fitted, joined, loss_of
from c2t.models.loading.load import load_pair
from c2t.models.wrappers.ngrams import NgramDraft
from c2t.replay.cache import cached_continuations
from c2t.replay.prompts import default_prompts
from c2t.sampling import Sampling
from c2t.study.evaluate import BATCH, encode
from pipelines import options, terminal
from pipelines.papers.study import evenly


def main(
    pair: options.PairName = "smollm2",
    draft: Annotated[str, typer.Option(help="Draft of the pair, without n-grams, or lookup.")] = "eagle",
    prompts: Annotated[int, typer.Option(help="Prompts to learn from.")] = 600,
    temperatures: Annotated[str, typer.Option(help="Temperatures of the texts.")] = "0,1",
    max_new_tokens: Annotated[int, typer.Option(help="New tokens of each text.")] = 64,
) -> None:
    """Learn from the harvest prompts of a pair, and print the prior."""
    loaded = load_pair(pair, draft=draft, dtype=torch.float32)
    mixed = loaded.draft if loaded.draft.has_ngrams else NgramDraft(loaded.draft)
    shortest = mixed.mixing.shortest
    parts: list[Evidence] = []
    for temperature in map(float, temperatures.split(",")):
        sampling = Sampling(temperature)
        ids = encode(loaded, evenly(default_prompts(pair, "harvest"), prompts), max_new_tokens, sampling).ids
        for start in range(0, len(ids), BATCH):
            numbers = range(start, min(start + BATCH, len(ids)))
            how = {"max_new_tokens": max_new_tokens, "beyond": LEVELS + 1, "sampling": sampling, "sequences": numbers}
            texts = cached_continuations(loaded, ids[start : start + BATCH], **how)
            for number, text in zip(numbers, texts, strict=True):
                parts += evidence(mixed.draft, text, shortest, sampling, number)
    whole = joined(parts)
    prior = fitted(whole, shortest)
    counts = f"{len(whole.target):,} positions, {len(whole.log_prob):,} tokens that followed"
    print(f"{counts}, {loss_of(whole, prior):.4f} nats a position: {prior}")


if __name__ == "__main__":
    with terminal.errors_in_one_line("pipelines.ngrams"):
        typer.run(main)
