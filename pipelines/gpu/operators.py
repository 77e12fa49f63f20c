"""Products and attention of a verified tree: which bits depend on the number of rows, and how long they take."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from c2t.cuda_graphs.graph import Graph
from c2t.cuda_graphs.row_independence import are_independent
from c2t.cuda_graphs.target import SLOTS
from c2t.kernels.tree_attention import torch_attention, triton_attention
from c2t.kernels.tree_mask import TreeMask
from c2t.tree import Tree
from pipelines.gpu.lines import Finding, timed
from pipelines.gpu.models import random_trees

COLD = 200 * 2**20  # bytes of copies that one replay reads: more than a cache holds, as a round's other layers are


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


def copies_of(nbytes: int, tiny: bool) -> int:
    """Return how many copies of so many bytes a replay reads."""
    return 2 if tiny else COLD // nbytes + 1


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
        return Finding("products", f"{self.name}, {how}", "; ".join(said), figures, unlike)

    def padded(self) -> Finding:
        """Pad every number of rows to SLOTS, as a recorded forward does: all rows must be equal."""
        expected, microseconds, _ = self.computed(self.x)
        equal = []
        for rows in ROWS:
            out, _, _ = self.computed(pad(self.x[:rows], (0, 0, 0, SLOTS - rows)))
            equal.append(equal_rows(out[:rows], expected))
        figures = {"rows": list(ROWS), "equal": equal, "microseconds": microseconds}
        said = f"equal {listed(equal, 'd')}"
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


def equal_rows(out: Float[Tensor, "m V"], expected: Float[Tensor, "n V"]) -> int:
    """Return how many rows have the bits of the same rows of `expected`."""
    return int((out == expected[: len(out)]).all(1).sum())


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


class AttentionSizes(NamedTuple):
    """heads: query heads, key-value heads, and the dimension of one. prefixes, nodes: all combinations are compared,
    and those of timed_prefixes and timed_nodes are timed. blocks: of `triton_attention`."""

    heads: tuple[tuple[int, int, int], ...]
    prefixes: tuple[int, ...]
    nodes: tuple[int, ...]
    timed_prefixes: tuple[int, ...]
    timed_nodes: tuple[int, ...]
    blocks: dict[str, int]


ATTENTION = AttentionSizes(
    heads=((32, 32, 128), (9, 3, 64), (64, 8, 128)),
    prefixes=(1, 31, 32, 33, 255, 256, 257, 511, 4096),
    nodes=(1, 2, 5, 16, 33, 60, 64),
    timed_prefixes=(512, 4096),
    timed_nodes=(1, 16, 60),
    blocks={},
)
# Small blocks, so that short prefixes meet every border.
TINY_ATTENTION = AttentionSizes(
    ((2, 1, 16), (3, 1, 16)), (15, 33), (1, 6), (17,), (2,), blocks={"keys": 16, "part": 32}
)


class AttentionCase:
    """A random tree after a prefix, in a cache whose trees begin `gap` slots after the prefix; queries, keys and values
    are random, too. query: (1, H, n, D). key, value: (1, h, slots, D).

    reach: see `random_trees`.
    """

    def __init__(
        self,
        heads: tuple[int, int, int],
        prefix: int,
        nodes: int,
        device: torch.device,
        reach: int | None = None,
        blocks: dict[str, int] | None = None,
        gap: int = 3,
    ):
        query_heads, kv_heads, dim = heads
        self.prefix, self.start, self.blocks = prefix, prefix + gap, blocks or {}
        self.tree, self.scale = random_trees(nodes, 1, seed=prefix + nodes, reach=reach), dim**-0.5
        generator = torch.Generator(device).manual_seed(prefix + nodes)
        shapes = (query_heads, nodes), *[(kv_heads, self.start + nodes)] * 2
        self.query, self.key, self.value = (
            torch.randn(1, *shape, dim, generator=generator, device=device).bfloat16() for shape in shapes
        )

    def copied(self) -> "AttentionCase":
        """Return the same case with keys and values at other addresses."""
        case = copy(self)
        case.key, case.value = self.key.clone(), self.value.clone()
        return case

    def mask(self) -> TreeMask:
        """Return the tree's mask."""
        device = self.query.device
        parent, alive, depth = (column.to(device) for column in (self.tree.parent, self.tree.alive, self.tree.depth))
        return TreeMask.of(parent, alive, self.prefix + depth + 1, torch.tensor([self.prefix], device=device))

    def attend(self, mask: TreeMask) -> Float[Tensor, "n H D"]:
        """Attend from all nodes together."""
        out = triton_attention(self.query, self.key, self.value, mask, self.scale, **self.blocks)
        return out[0].transpose(0, 1)

    def plain(self) -> Float[Tensor, "n H D"]:
        """Attend as plain decoding does: every node is a tree of one token after its committed path. The nodes are
        rows of one batch."""
        device = self.query.device
        slots, lengths = self._plain_slots()
        key, value = (given[0][:, slots.to(device)].transpose(0, 1) for given in (self.key, self.value))
        root, lengths = torch.full((len(slots), 1), -1, device=device), lengths.to(device)
        mask = TreeMask.of(root, root < 0, lengths[:, None], lengths)
        query = self.query[0].transpose(0, 1)[:, :, None]
        return triton_attention(query, key, value, mask, self.scale, **self.blocks)[:, :, 0]

    def _plain_slots(self) -> tuple[Int[Tensor, "n t"], Int[Tensor, " n"]]:
        """Return the slots that make up each node's cache, the node's as the last one, and the lengths before it."""
        paths = paths_of(self.tree)
        slots = torch.zeros(len(paths), self.prefix + max(map(len, paths)), dtype=torch.long)
        slots[:, : self.prefix] = torch.arange(self.prefix)
        for node, path in enumerate(paths):
            slots[node, self.prefix : self.prefix + len(path) - 1] = self.start + torch.tensor(path[:-1])
            slots[node, -1] = self.start + node
        return slots, torch.tensor([self.prefix + len(path) - 1 for path in paths])

    def error(self, out: Float[Tensor, "n H D"], mask: TreeMask) -> float:
        """Return the largest error against float64."""
        wide = (given.double() for given in (self.query, self.key, self.value))
        exact = torch_attention(*wide, mask, self.scale)[0].transpose(0, 1)
        return float((out.double() - exact).abs().max())


def paths_of(tree: Tree) -> list[list[int]]:
    """Return the slots from the root to each slot of the first row."""
    paths: list[list[int]] = []
    for slot, parent in enumerate(tree.parent[0].tolist()):
        paths.append([*(paths[parent] if parent >= 0 else ()), slot])
    return paths


def measure_attention(device: torch.device, tiny: bool) -> Iterator[Finding]:
    """Compare every node of random trees with plain decoding, then time some of them."""
    sizes = TINY_ATTENTION if tiny else ATTENTION
    for heads, prefix in product(sizes.heads, sizes.prefixes):
        differing, count, error = 0, 0, 0.0
        for nodes, reach in product(sizes.nodes, (None, 2)):
            case = AttentionCase(heads, prefix, nodes, device, reach, sizes.blocks)
            mask = case.mask()
            out = case.attend(mask)
            differing += nodes - equal_rows(out.flatten(1), case.plain().flatten(1))
            count, error = count + nodes, max(error, case.error(out, mask))
        said = f"{differing} of {count} nodes differ, error {error:.1e}"
        figures = {"nodes": count, "differing": differing, "error": error}
        yield Finding("attention", f"heads {heads}, prefix {prefix}", said, figures, differing)
    for heads, prefix, nodes in product(sizes.heads, sizes.timed_prefixes, sizes.timed_nodes):
        case = AttentionCase(heads, prefix, nodes, device, blocks=sizes.blocks)
        count = copies_of(case.key.nbytes + case.value.nbytes, tiny)
        cases = [case, *(case.copied() for _ in range(count - 1))]
        work = partial(attend_all, cases, case.mask())
        microseconds = 1000 * timed(Graph(work, device), device).median / count
        what = f"heads {heads}, prefix {prefix}, {nodes} nodes"
        yield Finding("attention", what, f"{microseconds:.1f} us", {"microseconds": microseconds})


def attend_all(cases: list[AttentionCase], mask: TreeMask) -> None:
    """Attend in copies of a case."""
    for case in cases:
        case.attend(mask)
