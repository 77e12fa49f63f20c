"""DySpec's table 5: how many 32 x 32 blocks of a random tree's attention mask are not empty, by order of its nodes;
on a GPU also how long attention over it takes."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from c2t.kernels.tree_attention import tree_attention
from c2t.kernels.tree_mask import TreeMask
from c2t.tree import Tree
from pipelines.papers.report import Report, Reproduction
from pipelines.papers.study import Study
from pipelines.papers.verdicts import fact

# Blocks printed in the paper (table 5), without and with its depth-first order.
PAPER = {256: (36.0, 22.5), 512: (135.5, 52.8), 1024: (490.2, 119.3), 2048: (1654.5, 278.7)}
TREES = 40  # random trees of each size


def random_trees(nodes: int, rows: int, seed: int = 0) -> Tree:
    """Return trees whose nodes have parents sampled uniformly among the nodes before them."""
    generator = torch.Generator().manual_seed(seed)
    parent = (torch.rand(rows, nodes, generator=generator, dtype=torch.float64) * torch.arange(nodes)).long()
    parent[:, 0] = -1
    depth = torch.full_like(parent, -1)
    for slot in range(1, nodes):
        depth[:, slot] = depth.gather(1, parent[:, slot, None])[:, 0] + 1
    root = Tree.root(torch.zeros(rows, dtype=torch.long)).columns()
    columns = {name: column.expand(rows, nodes).contiguous() for name, column in root.items()}
    return Tree(**{**columns, "parent": parent, "depth": depth}, capped=torch.zeros(rows, dtype=torch.long))


def depth_first(tree: Tree) -> Tree:
    """Return the trees in depth-first order, children in the order of their creation."""
    size = torch.ones_like(tree.parent)
    for slot in range(tree.size - 1, 0, -1):
        size.scatter_add_(1, tree.parent[:, slot, None], size[:, slot, None])
    index = torch.zeros_like(tree.parent)
    free = torch.ones_like(tree.parent)  # where the next child of each node goes, counted from the node
    for slot in range(1, tree.size):
        parent = tree.parent[:, slot, None]
        index[:, slot] = (index.gather(1, parent) + free.gather(1, parent))[:, 0]
        free.scatter_add_(1, parent, size[:, slot, None])
    return tree.select(index.argsort(dim=1))


ORDERS: dict[str, Callable[[Tree], Tree]] = {
    "creation": lambda tree: tree,
    "depth-first": depth_first,
    "heavy-first": Tree.heavy_first,
}


def mask_of(tree: Tree, prefix: int = 0) -> TreeMask:
    """Return the mask of these trees after a prefix."""
    lengths = torch.full_like(tree.capped, prefix)
    return TreeMask.of(tree.parent, tree.alive, tree.positions(lengths), lengths)


def block_counts(nodes: int, trees: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return order -> non-empty blocks of each of `trees` random trees, float64."""
    counts: dict[str, list[torch.Tensor]] = {name: [] for name in ORDERS}
    for first in range(0, trees, 4):  # a few at a time, since a dense relation of 2048 nodes takes megabytes
        tree = random_trees(nodes, min(4, trees - first), seed=seed + first)
        for name, order in ORDERS.items():
            counts[name].append(mask_of(order(tree)).count.sum(1).double())
    return {name: torch.cat(parts) for name, parts in counts.items()}


class Timing(NamedTuple):
    """Median and quartiles in milliseconds."""

    median: float
    low: float
    high: float


def timed(run: Callable[[], object], device: torch.device, repeats: int = 50) -> Timing:
    """Time a call. On a GPU its events are read after the cache was cleared, which also hides the cost of launching."""
    for _ in range(3):
        run()
    samples = []
    if device.type == "cuda":
        cache = torch.empty(2**28, dtype=torch.int8, device=device)
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
        for begin, end in events:
            cache.zero_()
            begin.record()
            run()
            end.record()
        torch.cuda.synchronize()
        samples = [begin.elapsed_time(end) for begin, end in events]
    for _ in range(repeats - len(samples)):
        begin = time.perf_counter()
        run()
        samples.append(1000 * (time.perf_counter() - begin))
    low, median, high = torch.tensor(samples).quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
    return Timing(median, low, high)


def timings(
    nodes: int,
    *,
    heads: int = 64,
    kv_heads: int = 64,
    dim: int = 128,
    prefix: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
    seed: int = 0,
    repeats: int = 50,
) -> Iterator[tuple[str, str, Timing]]:
    """Yield (order, what, timing) of one layer's attention, and of making its mask, which all layers share; the
    defaults are the paper's.

    Without CUDA the figures mean little: no kernel runs and FlexAttention is not compiled.
    """
    target_device = torch.device(device)
    compiled = torch.compile if target_device.type == "cuda" else lambda function, **_: function
    flex, make_blocks = compiled(flex_attention), compiled(create_block_mask)
    query = torch.randn(1, heads, nodes, dim, device=target_device, dtype=dtype)
    key, value = torch.randn(2, 1, kv_heads, prefix + nodes, dim, device=target_device, dtype=dtype)

    def repeated(shared: torch.Tensor) -> torch.Tensor:
        """Repeat keys or values for each query head, as transformers does for SDPA, whose fast kernels take a mask or
        grouped heads, not both."""
        return shared if kv_heads == heads else shared.repeat_interleave(heads // kv_heads, 1)

    for order in ("creation", "heavy-first"):
        tree = ORDERS[order](random_trees(nodes, 1, seed=seed))
        mask = TreeMask(*(column.to(target_device) for column in mask_of(tree, prefix)))
        parts = [part.to(target_device) for part in (tree.parent, tree.alive, mask.positions, mask.lengths)]
        dense = mask.dense(prefix + nodes)

        def seen(_row, _head, slot, other, dense=dense):
            return dense[0, slot, other]

        def flex_blocks(seen=seen):
            return make_blocks(seen, None, None, nodes, prefix + nodes, device=device)

        blocks = flex_blocks()
        runs = {
            "tree attention": lambda mask=mask: tree_attention(query, key, value, mask),
            "SDPA, dense mask": lambda dense=dense: scaled_dot_product_attention(
                query, *map(repeated, (key, value)), attn_mask=dense[:, None]
            ),
            "FlexAttention": lambda blocks=blocks: flex(
                query, key, value, block_mask=blocks, enable_gqa=heads > kv_heads
            ),
            "its mask": lambda parts=parts: TreeMask.of(*parts),
            "FlexAttention's mask": flex_blocks,
        }
        for what, run in runs.items():
            yield order, what, timed(run, target_device, repeats)


def blocks(study: Study) -> Report:
    """DySpec, table 5: non-empty 32 x 32 blocks of a random tree's attention mask, by order of its nodes.

    On a GPU also how long attention over the tree takes, with 64 heads of 128, in bfloat16 and without a prefix.
    """
    seed, rows, lower = study.settings.seed, [], []
    for nodes, paper in PAPER.items():
        counts = block_counts(nodes, TREES, seed)
        means = {order: float(values.mean()) for order, values in counts.items()}
        rows.append(
            [nodes, *(x for values in counts.values() for x in (float(values.mean()), float(values.std()))), *paper]
        )
        lower.append(means["depth-first"] < means["creation"])
    columns = ["nodes", *(f"{order}{what}" for order in ORDERS for what in ("", ": deviation"))]
    timed = []
    if torch.cuda.is_available():
        timed = [(n, *values[:2], *values[2]) for n in PAPER for values in timings(n, seed=seed)]
    return Report(
        f"DySpec, table 5: non-empty blocks, mean over {TREES} random trees",
        None,
        [*columns, "paper: creation", "paper: depth-first"],
        rows,
        [
            fact(
                "depth-first order has fewer blocks",
                all(lower),
                "; ".join(f"{row[0]} nodes: {row[1]:.1f} and {row[3]:.1f} depth-first" for row in rows),
            )
        ],
        [
            f"{n} nodes, {order}: {what} {median:.4f} ms ({low:.4f}-{high:.4f})"
            for n, order, what, median, low, high in timed
        ],
        {"milliseconds": timed},
    )


REPORTS = {"dyspec-table5": Reproduction(blocks)}
