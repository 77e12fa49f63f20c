"""Time one layer's attention over rows of different sizes, computed in several ways: row by row, padded to the largest
row, and as torch's nested tensors, which take no tree mask and are timed without one. Keys and values are random."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

import torch
import typer
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from c2t.batch_costs import BRANCHING, regular
from pipelines import terminal
from pipelines.bench.lines import Json, append
from pipelines.bench.ragged import PREFIX, SIZES

HEADS, KV_HEADS, DIM = 9, 3, 64  # smollm2's


class Inputs(NamedTuple):
    """Queries (B, HEADS, n, DIM), keys and values (B, KV_HEADS, t, DIM), and what each query sees (B, 1, n, t)."""

    query: Tensor
    key: Tensor
    value: Tensor
    sees: Tensor


def padded() -> Inputs:
    """Return all rows behind PREFIX tokens each, padded to the largest; what lies beyond a row's end is not used."""
    rows, size, random = len(SIZES), max(SIZES), torch.Generator().manual_seed(0)
    query = torch.randn(rows, HEADS, size, DIM, generator=random)
    key, value = torch.randn(2, rows, KV_HEADS, PREFIX + size, DIM, generator=random)
    tree = regular(torch.zeros(rows, dtype=torch.long), size, BRANCHING)
    sees = torch.nn.functional.pad(tree.ancestors()[:, None], (PREFIX, 0), value=True)
    return Inputs(query, key, value, sees)


def by_row(inputs: Inputs) -> Iterator[Inputs]:
    """Yield each row by itself, in its own size."""
    for row, size in enumerate(SIZES):
        query, key, value, sees = (part[row : row + 1] for part in inputs)
        end = PREFIX + size
        yield Inputs(query[:, :, :size], key[:, :, :end], value[:, :, :end], sees[:, :, :size, :end])


def sdpa(inputs: Inputs) -> Tensor:
    """Return torch's attention."""
    query, key, value, sees = inputs
    return scaled_dot_product_attention(query, key, value, attn_mask=sees, enable_gqa=True)


def eager(inputs: Inputs) -> Tensor:
    """Return attention step by step, as transformers' eager implementation computes it."""
    query, key, value, sees = inputs
    key, value = (each.repeat_interleave(HEADS // KV_HEADS, 1) for each in (key, value))
    scores = (query @ key.transpose(2, 3) * DIM**-0.5).masked_fill(~sees, float("-inf"))
    return scores.softmax(-1) @ value


def nested(inputs: Inputs) -> Callable[[], Tensor]:
    """Return attention over nested tensors, without a mask."""
    rows = list(by_row(inputs))

    def joined(parts: list[Tensor]) -> Tensor:
        whole = [part[0].repeat_interleave(HEADS // part.shape[1], 0).transpose(0, 1).contiguous() for part in parts]
        return torch.nested.nested_tensor(whole, layout=torch.jagged).transpose(1, 2)

    query, key, value = (joined([row[part] for row in rows]) for part in range(3))
    return lambda: scaled_dot_product_attention(query, key, value)


def ways() -> dict[str, Callable]:
    """Return what is timed, by name."""
    inputs = padded()
    rows = list(by_row(inputs))
    return {
        "sdpa, row by row": lambda: [sdpa(row) for row in rows],
        "sdpa, padded": lambda: sdpa(inputs),
        "eager, row by row": lambda: [eager(row) for row in rows],
        "eager, padded": lambda: eager(inputs),
        "nested tensors, no mask": nested(inputs),
    }


def main(
    repeats: Annotated[int, typer.Option(help="Times to run each way; the median counts.", min=1)] = 15,
    json: Json = None,
) -> None:
    """Time attention over 16 rows of different sizes, way by way."""
    found = ways()
    seconds: dict[str, list[float]] = {name: [] for name in found}
    with torch.no_grad():  # nested tensors refuse inference mode
        for _ in range(repeats + 1):
            for name, run in found.items():
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)
    # The first turn warms up.
    figures = [{"way": name, "milliseconds": 1e3 * statistics.median(each[1:])} for name, each in seconds.items()]
    rows = [[each["way"], f"{each['milliseconds']:.1f}"] for each in figures]
    terminal.table(f"ms of one layer, {len(SIZES)} rows behind {PREFIX} tokens", ["way", "ms"], rows)
    settings = {"sizes": SIZES, "prefix": PREFIX, "repeats": repeats, "threads": torch.get_num_threads()}
    append(json, "bench attention", figures, settings)
