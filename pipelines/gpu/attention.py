"""Attention of a tree's nodes: whether it has the bits of plain decoding, and how long it takes."""

from collections.abc import Iterator, Sequence
from copy import copy
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.cuda_graphs.graph import Graph
from c2t.kernels.tree_attention import torch_attention, triton_attention
from c2t.kernels.tree_mask import TreeMask
from pipelines.gpu.lines import Finding, copies_of, equal_rows, timed
from pipelines.gpu.models import random_trees


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
        paths = paths_of(self.tree.parent[0].tolist())
        slots = torch.zeros(len(paths), self.prefix + max(map(len, paths)), dtype=torch.long)
        slots[:, : self.prefix] = torch.arange(self.prefix)
        for node, path in enumerate(paths):
            slots[node, self.prefix : self.prefix + len(path) - 1] = self.start + torch.tensor(path[:-1])
            slots[node, -1] = self.start + node
        return slots, torch.tensor([self.prefix + len(path) - 1 for path in paths])

    def error(self, out: Float[Tensor, "n H D"], mask: TreeMask) -> float:
        """Return the largest error against float64."""
        query, key, value = (given.double() for given in (self.query, self.key, self.value))
        exact = torch_attention(query, key, value, mask, self.scale)[0].transpose(0, 1)
        return float((out.double() - exact).abs().max())


def paths_of(parents: Sequence[int]) -> list[list[int]]:
    """Return the slots from the root to each slot of a tree. parents: those of the slots, -1 of the root."""
    paths: list[list[int]] = []
    for slot, parent in enumerate(parents):
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
