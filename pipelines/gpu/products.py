"""Products of a verified tree: which bits depend on the number of rows, and how long they take."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from c2t.cuda_graphs.graph import Graph
from c2t.cuda_graphs.row_independence import are_independent
from c2t.cuda_graphs.target import SLOTS
from pipelines.gpu.lines import Finding, copies_of, equal_rows, timed


class Weights(NamedTuple):
    """Shapes (outputs, inputs) of a model's linear layers."""

    model: str
    shapes: tuple[tuple[int, int], ...]


WEIGHTS = (
    Weights("LLaMA-2 7B", ((4096, 4096), (11008, 4096), (4096, 11008), (32000, 4096))),
    Weights("SmolLM2-135M", ((576, 576), (192, 576), (1536, 576), (576, 1536), (49152, 576))),
)
TINY_WEIGHTS = (Weights("tiny", ((64, 64), (320, 64))),)
ROWS = (1, 2, 8, 16, 32, 48, SLOTS)


def measure_products(device: torch.device, tiny: bool) -> Iterator[Finding]:
    """Measure the products of all weights."""
    generator = torch.Generator().manual_seed(0)
    for model, shapes in TINY_WEIGHTS if tiny else WEIGHTS:
        for outputs, inputs in shapes:
            x, weight = (
                torch.randn(rows, inputs, generator=generator).bfloat16().to(device) for rows in (SLOTS, outputs)
            )
            weight *= inputs**-0.5
            yield from Products(f"{model} {outputs} x {inputs}", x, weight, tiny).findings()


class Products:
    """Products of the first 1 to SLOTS rows of x, (SLOTS, inputs), with weights, (outputs, inputs), of which a replay
    reads several copies."""

    def __init__(self, name: str, x: Tensor, weight: Tensor, tiny: bool):
        self.name, self.x = name, x
        self.weights = [weight.clone() for _ in range(copies_of(weight.nbytes, tiny))]

    def findings(self) -> Iterator[Finding]:
        """Yield one line for each way to compute them, and one for the check that loading a target does."""
        yield self.unpadded("as it is", nullcontext())
        yield self.unpadded("no split-K", without_split_k())
        yield self.padded()
        yield self.independence()

    def computed(self, x: Tensor) -> tuple[Tensor, float, bool]:
        """Return a replay's outputs for the first copy of the weights, the microseconds of one product, and whether
        all copies gave these bits."""
        out: list[Tensor] = []

        def work() -> None:
            out[:] = [linear(x, weight) for weight in self.weights]

        timing = timed(Graph(work, x.device), x.device)
        same = all(other.equal(out[0]) for other in out[1:])
        return out[0].clone(), 1000 * timing.median / len(self.weights), same

    def unpadded(self, how: str, setting: AbstractContextManager) -> Finding:
        """Compute as many rows as there are. Rows may differ from those of SLOTS rows: padding is there for that."""
        with setting:
            results = {rows: self.computed(self.x[:rows]) for rows in ROWS}
        expected, slowest, _ = results[SLOTS]
        nbytes = self.weights[0].nbytes
        figures: dict[str, Any] = {
            "rows": list(ROWS),
            "equal": [equal_rows(out, expected) for out, _, _ in results.values()],
            "microseconds": [microseconds for _, microseconds, _ in results.values()],
            "GB/s": [nbytes / microseconds / 1000 for _, microseconds, _ in results.values()],
            "ratio": slowest / results[1][1],
            "error": self.error(expected),
        }
        columns = {"equal": "d", "microseconds": ".1f", "GB/s": ".0f"}
        said = [f"{name} {listed(figures[name], form)}" for name, form in columns.items()]
        said.append(f"{SLOTS} rows take {figures['ratio']:.3f} x 1 row; error {figures['error']:.1e}")
        unlike = sum(not same for _, _, same in results.values())  # one shape twice: the same bits are assumed
        return Finding(
            "products", f"{self.name}, {how}", f"rows {listed(ROWS, 'd')}: {'; '.join(said)}", figures, unlike
        )

    def padded(self) -> Finding:
        """Pad every number of rows to SLOTS, as a recorded forward does: all rows must be equal."""
        expected, microseconds, _ = self.computed(self.x)
        equal = []
        for rows in ROWS:
            out, _, _ = self.computed(pad(self.x[:rows], (0, 0, 0, SLOTS - rows)))
            equal.append(equal_rows(out[:rows], expected))
        figures = {"rows": list(ROWS), "equal": equal, "microseconds": microseconds}
        said = f"rows {listed(ROWS, 'd')}: equal {listed(equal, 'd')}"
        return Finding("products", f"{self.name}, padded", said, figures, sum(ROWS) - sum(equal))

    def independence(self) -> Finding:
        """Do the check that loading a target does."""
        outputs, inputs = self.weights[0].shape
        layer = nn.Linear(inputs, outputs, bias=False, device="meta")
        layer.weight = nn.Parameter(self.weights[0], requires_grad=False)
        holds = are_independent(layer, SLOTS)
        said = f"rows are {'independent' if holds else 'not independent'}"
        return Finding("products", f"{self.name}, check of {SLOTS} rows", said, {"independent": holds}, int(not holds))

    def error(self, out: Tensor) -> float:
        """Return the largest error, against float64, in terms of the largest number."""
        exact = linear(self.x.double(), self.weights[0].double())
        return float((out.double() - exact).abs().max() / exact.abs().max())


def listed(numbers: Sequence[float], form: str) -> str:
    """Return the numbers for as many rows as ROWS says, separated by slashes."""
    return "/".join(f"{number:{form}}" for number in numbers)


@contextmanager
def without_split_k() -> Iterator[None]:
    """Forbid cuBLAS to split sums of bfloat16 products, and to add up in bfloat16."""
    settings = torch.backends.cuda.matmul
    split_k = getattr(settings, "allow_bf16_reduced_precision_reduction_split_k", True)  # some releases have no reader
    before = settings.allow_bf16_reduced_precision_reduction, split_k
    settings.allow_bf16_reduced_precision_reduction = (False, False)
    try:
        yield
    finally:
        settings.allow_bf16_reduced_precision_reduction = before
