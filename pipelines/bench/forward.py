"""Milliseconds of a target forward by its number of rows: c2t's kernels, with the target in 8 and 4 bits as well, stock
transformers in float32 and bf16, and other programs in every type of weights, where they are installed.

    python -m pipelines.bench forward [--json data/results/forward.jsonl]

A row is a token of the tree that is verified; c2t runs a tree, the others a chain of as many tokens. Layers and LM head
are timed apart, except those of other programs. All sizes and ways take turns, a forward is timed after others like it,
and medians count. Other processes must use less than 5 % of the cores; else the run is refused.
"""

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated

import torch
import typer
from transformers import DynamicCache, PreTrainedModel

from c2t.caches.ragged import Ragged
from c2t.costs.measure import BRANCHING, regular
from c2t.errors import InputError
from c2t.models.loading.load import Pair, load_pair
from c2t.models.target.target import TargetSession
from c2t.storage.paths import DEFAULT_PAIR
from c2t.tree import Tree
from pipelines import terminal
from pipelines.bench import llama_cpp, onnx_genai, openvino_genai
from pipelines.bench.contenders import DTYPES, ROUNDED, stock
from pipelines.bench.idle import check_idle
from pipelines.bench.lines import Json, append, computed
from pipelines.bench.programs import Program, ask
from pipelines.options import PairName

ROWS = (1, 2, 4, 8, 12, 14, 16, 28, 60)
PREFIX, WARM = 256, 4
PROGRAMS = (llama_cpp, openvino_genai, onnx_genai)
Way = Callable[[int], tuple[float, ...]]  # rows -> seconds of the layers and of the LM head, or of both together


class Ours:
    """c2t's forward over a tree."""

    def __init__(self, pair: Pair, tokens: torch.Tensor):
        self.root = tokens[:, -1]
        self.session = TargetSession(pair.target)
        self.session.prefill(tokens, torch.tensor([tokens.shape[1]]))

    def __call__(self, rows: int) -> tuple[float, float]:
        tree = regular(self.root, rows, BRANCHING) if rows > 1 else Tree.root(self.root)
        positions = tree.positions(self.session.lengths)
        start = time.perf_counter()
        hidden = self.session.forward(tree.token, positions, tree.ancestors(), Ragged.of(tree.alive), tree)
        middle = time.perf_counter()
        self.session.logits(hidden)
        end = time.perf_counter()
        self.session.cache.drop()
        return middle - start, end - middle


class Stock:
    """transformers' forward over a chain."""

    def __init__(self, model: PreTrainedModel, tokens: torch.Tensor):
        self.model, self.tokens, self.cache = model, tokens, DynamicCache(config=model.config)
        model.base_model(input_ids=tokens, past_key_values=self.cache)

    def __call__(self, rows: int) -> tuple[float, float]:
        start = time.perf_counter()
        hidden = self.model.base_model(input_ids=self.tokens[:, :rows], past_key_values=self.cache).last_hidden_state
        middle = time.perf_counter()
        self.model.get_output_embeddings()(hidden)
        end = time.perf_counter()
        self.cache.crop(-rows)
        return middle - start, end - middle


@dataclass
class Other:
    """A program's forward over a chain, in a process of its own. tokens: the prefix."""

    program: Program
    tokens: list[int]

    def __call__(self, rows: int) -> tuple[float]:
        return (ask(self.program.process, self.program.name, {"prefix": self.tokens, "rows": rows})["seconds"],)


@torch.inference_mode()
def measure(ways: dict[str, Way], sizes: tuple[int, ...], repeats: int) -> dict[str, list[list[float]]]:
    """Return median milliseconds of layers and LM head, by way and size; one number where both are timed together."""
    seconds: dict[tuple[str, int], list[tuple[float, ...]]] = {(way, n): [] for way in ways for n in sizes}
    for repeat in range(repeats + 1):  # the first turn warms up
        for (way, size), samples in seconds.items():
            for _ in range(WARM):  # the caches hold another way's weights, and take more than one forward to hold these
                ways[way](size)
            spent = ways[way](size)
            if repeat:
                samples.append(spent)
    return {
        way: [[1e3 * statistics.median(part) for part in zip(*seconds[way, n], strict=True)] for n in sizes]
        for way in ways
    }


def main(
    pair: PairName = DEFAULT_PAIR,
    repeats: Annotated[int, typer.Option(help="Times to run each forward; the median counts.", min=1)] = 15,
    json: Json = None,
) -> None:
    """Time a target forward by its number of rows."""
    check_idle()
    loaded = load_pair(pair)
    tokens = torch.randint(loaded.target.config.vocab_size, (1, PREFIX), generator=torch.manual_seed(0))
    with torch.inference_mode():
        ways: dict[str, Way] = {"c2t": Ours(loaded, tokens)}
        for kind, dtype in ROUNDED.items():
            try:
                ways[kind] = Ours(load_pair(pair, dtype=dtype), tokens)
            except InputError as error:
                terminal.say(f"{kind} is left out: {error}", error=True)
        ways |= {f"transformers, {name}": Stock(stock(loaded, name), tokens) for name in DTYPES}
    with ExitStack() as running:
        for module in PROGRAMS:
            if why_not := module.missing(loaded):
                terminal.say(f"{module.NAMES[0]} is left out: {why_not}", error=True)
                continue
            for program in running.enter_context(module.start_rows(loaded)):
                ways[program.name] = Other(program, tokens[0].tolist())
        check_idle()
        by_way = measure(ways, ROWS, repeats)
    settings = {"pair": loaded.name, "sources": loaded.sources, "prefix": PREFIX, "repeats": repeats}
    settings |= {**computed(loaded), "packed": loaded.target.packed is not None}
    show(by_way)
    rows = ({"way": way, "rows": ROWS, "milliseconds": milliseconds} for way, milliseconds in by_way.items())
    append(json, "bench forward", rows, settings)


def show(by_way: dict[str, list[list[float]]]) -> None:
    """Print a table with a row for each size."""
    rows = [
        [f"{size}", *(" + ".join(f"{part:.1f}" for part in parts) for parts in sizes)]
        for size, *sizes in zip(ROWS, *by_way.values(), strict=True)
    ]
    terminal.table(f"ms of layers + LM head, or of both together, {PREFIX} tokens of prefix", ["rows", *by_way], rows)
