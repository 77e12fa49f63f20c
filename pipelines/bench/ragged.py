"""Time a batch of trees of different sizes beside trees that all have the mean size, and trees that all have the
largest, which is what a batch costs that is padded."""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import torch
import typer
from torch import Tensor

from c2t.batch_costs import BRANCHING, regular
from c2t.models.pairs import Pair, load_pair
from c2t.storage.paths import DEFAULT_PAIR
from c2t.tree import Tree
from pipelines import terminal
from pipelines.bench.lines import Json, append, computed
from pipelines.options import PairName

SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 30, 38, 47)  # of the target's trees
WIDTHS = (1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 5, 6, 8, 10, 12)  # of the draft's levels
PREFIX = 128


def trees(root: Tensor, sizes: tuple[int, ...], branching: int) -> dict[str, Tree]:
    """Return batches of trees: of these sizes, all of the mean size, and all of the largest."""
    largest = regular(root, max(sizes), branching)
    mixed = replace(largest, alive=torch.arange(max(sizes)) < torch.tensor(sizes)[:, None])
    return {"mixed": mixed, "mean": regular(root, round(statistics.mean(sizes)), branching), "largest": largest}


class Bench:
    """Forwards of one pair against the clock, behind random prefixes of PREFIX tokens."""

    def __init__(self, pair: Pair):
        rows, vocabulary = len(SIZES), pair.target.config.vocab_size
        self.pair = pair
        self.tokens = torch.randint(vocabulary, (rows, PREFIX + 1), generator=torch.Generator().manual_seed(0))
        self.lengths, self.root = torch.full((rows,), PREFIX), self.tokens[:, -1]
        self.session = pair.target.session()
        self.features = self.session.prefill(self.tokens[:, :-1], self.lengths).features

    def verify(self, tree: Tree) -> float:
        """Return the seconds of a target forward over trees."""
        start = time.perf_counter()
        self.session.verify(tree)
        seconds = time.perf_counter() - start
        self.session.cache.drop()
        return seconds

    def level(self, tree: Tree) -> float:
        """Return the seconds of a draft forward over the roots' children, and of ranking what follows them."""
        session = self.pair.draft.session()
        session.observe(self.tokens, self.features, self.lengths)
        slots = torch.where(tree.alive, torch.arange(tree.size), -1)
        session.expand(tree, slots[:, :1])
        start = time.perf_counter()
        session.expand(tree, slots[:, 1:]).topk_entropy(10, 0)
        return time.perf_counter() - start


@torch.inference_mode()
def measure(run: Callable[[Tree], float], batches: dict[str, Tree], repeats: int) -> dict[str, float]:
    """Return the median milliseconds of each batch; all take turns, and the first turn warms up."""
    found: dict[str, list[float]] = {name: [] for name in batches}
    for repeat in range(repeats + 1):
        for name, tree in batches.items():
            seconds = run(tree)
            if repeat:
                found[name].append(1e3 * seconds)
    return {name: statistics.median(each) for name, each in found.items()}


def main(
    pair: PairName = DEFAULT_PAIR,
    repeats: Annotated[int, typer.Option(help="Times to run each forward; the median counts.", min=1)] = 15,
    json: Json = None,
) -> None:
    """Time forwards over 16 rows of different sizes."""
    loaded = load_pair(pair)
    with torch.inference_mode():
        bench = Bench(loaded)
    levels = tuple(width + 1 for width in WIDTHS)
    found = [
        {"forward": "target", "sizes": SIZES, **measure(bench.verify, trees(bench.root, SIZES, BRANCHING), repeats)},
        {"forward": "draft level", "sizes": WIDTHS, **measure(bench.level, trees(bench.root, levels, 99), repeats)},
    ]
    rows = [
        [each["forward"], *(f"{each[name]:.1f}" for name in ("mixed", "mean", "largest")), ratio(each)]
        for each in found
    ]
    names = ["forward", "mixed", "all of the mean size", "all of the largest", "mixed / mean"]
    terminal.table(f"ms over {len(SIZES)} rows behind {PREFIX} tokens", names, rows)
    settings = {"pair": loaded.name, "sources": loaded.sources, "prefix": PREFIX, "repeats": repeats}
    append(json, "bench ragged", found, settings | computed(loaded))


def ratio(row: dict) -> str:
    """Return what a mixed batch costs beside one of its mean size."""
    return f"{row['mixed'] / row['mean']:.2f}"
