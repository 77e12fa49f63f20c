"""Acceptance length after prompts of several lengths: of the head, of the text's n-grams, and of both.

    python -m pipelines.bench lengths --json data/results/lengths.jsonl

Prompts are those of `pipelines.bench long`; those of different lengths begin alike. All drafts have trees of the same
size, and are counted by exact replay on the same texts.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import typer
from jaxtyping import Float

from c2t.costs.statistics import Statistics
from c2t.models.loading.load import load_draft, load_pair, with_ngrams
from c2t.output.progress import progress_bar
from c2t.policies.spec import describe
from c2t.sampling import Sampling
from c2t.storage.paths import DEFAULT_PAIR
from c2t.study.evaluate import continuations, evaluate, share_of_loops
from c2t.study.interval import Interval, bootstrap
from pipelines import terminal
from pipelines.bench.decoding import short
from pipelines.bench.lines import Json, append, computed
from pipelines.bench.long_texts import prompts_of, sizes_of
from pipelines.bench.vocabulary import POLICY
from pipelines.options import PairName

LENGTHS = "512,1024,2048,4096"
HEAD, NGRAMS_ALONE, BOTH = "head", "n-grams", "head and n-grams"


def acceptance_length(counted: Sequence[Statistics]) -> Interval:
    """Return the acceptance length of some texts."""
    counts = np.array([[of.rounds for of in counted], [of.accepted_tokens for of in counted]], float)

    def length(sums: Float[np.ndarray, "2 R"]) -> Float[np.ndarray, "1 R"]:
        return 1 + sums[1:] / sums[:1]

    return bootstrap(counts, length)[0]


def main(
    pair: PairName = DEFAULT_PAIR,
    lengths: Annotated[str, typer.Option(help="Tokens of prompts, separated by commas.")] = LENGTHS,
    prompts: Annotated[int, typer.Option(help="Prompts of each length.", min=1)] = 10,
    new_tokens: Annotated[int, typer.Option(help="New tokens of a text at most.", min=2)] = 128,
    json: Json = None,
) -> None:
    """Count what each draft's trees are accepted after prompts of several lengths."""
    alone, sampling = load_pair(pair, draft="eagle"), Sampling(0.0)
    sizes = sizes_of(lengths, alone, new_tokens)
    lookup = replace(alone, draft=load_draft("lookup", alone.target))
    ways = {HEAD: alone, NGRAMS_ALONE: lookup, BOTH: with_ngrams(alone)}
    rows: list[dict[str, Any]] = []
    with progress_bar("lengths", "runs") as report:
        done, of = itertools.count(1), len(sizes) * len(ways)
        for size in sizes:
            ids = prompts_of(alone, size, prompts)
            texts = continuations(alone, ids, new_tokens, POLICY.levels, sampling)
            for way, drafted in ways.items():
                counted = evaluate(drafted, POLICY, ids, max_new_tokens=new_tokens, sampling=sampling, texts=texts)
                length = acceptance_length(counted)
                rows.append({"prefix": size, "way": way, "acceptance_length": length, "loops": share_of_loops(texts)})
                report(next(done), of, f"{size} tokens, {way}")
    cells = [[row["prefix"], row["way"], short(row["acceptance_length"]), f"{row['loops']:.0%}"] for row in rows]
    columns = ["tokens before", "draft", "acceptance length", "texts that end in a loop"]
    terminal.table(f"{alone.name}: {prompts} prompts of each length", columns, cells)
    run = {
        "pair": alone.name,
        "sources": ways[BOTH].sources,
        "policy": describe(POLICY, brief=True),
        "prompts": prompts,
        "max_new_tokens": new_tokens,
        "temperature": sampling.temperature,
        **computed(alone),
    }
    append(json, "bench lengths", rows, run)
