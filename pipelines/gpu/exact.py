"""Measurements that show whether a tree's logits have plain decoding's bits on this device, in bfloat16.

    python -m pipelines.gpu.exact STAGE [--tiny] [--out data/results]

products: linear layers at several numbers of rows, as cuBLAS computes them, without split-K, and padded.
mma: products of the device's tensor cores in tiles of several sizes, and a model of them.
attention: every node of random trees against plain decoding, by the kernels alone.
nodes: every node's logits against plain decoding, by a target of LLaMA-2 7B's shapes with random weights.

--tiny runs the same on sizes that take seconds, on any machine. Without a CUDA device the kernels then run in Triton's
interpreter, which TRITON_INTERPRET=1 selects, with a model of a tensor core.

The exit status is 1 if something differs that must be equal, and 2 if a stage cannot run.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from c2t.cuda_graphs.target import StaticTarget
from c2t.errors import InputError
from c2t.kernels.tree_attention import triton, triton_attention
from c2t.kernels.tree_mask import TreeMask
from c2t.models.target import attention
from c2t.storage.provenance import hardware
from c2t.storage.results import append_line, result_line
from c2t.study.parity.activations import Difference, difference
from c2t.study.parity.kernels import OwnTarget
from c2t.study.parity.nodes import PlainNode
from pipelines.gpu.attention import measure_attention, paths_of
from pipelines.gpu.lines import Finding
from pipelines.gpu.models import FULL, TINY, Shapes, ragged_trees, random_target, random_trees
from pipelines.gpu.products import measure_products
from pipelines.gpu.report import Report
from pipelines.gpu.tensor_core import measure_mma, modelled


class NodeSizes(NamedTuple):
    """trees: as many random trees of `nodes` nodes, unless `seconds` are over before. prefixes: of the first trees; the
    others have random ones up to `longest`. rounds: tokens of the rounds that are timed."""

    shapes: Shapes
    trees: int
    nodes: int
    prefixes: tuple[int, ...]
    longest: int
    rounds: tuple[int, ...]
    seconds: float


NODES = NodeSizes(FULL, 200, 60, (1, 31, 32, 33, 255, 256, 257, 511, 512, 513), 700, (1, 16, 60), seconds=300)
TINY_NODES = NodeSizes(
    TINY._replace(hidden=32, heads=2, layers=1, dtype=torch.bfloat16), 2, 5, (31, 32), 40, (1,), seconds=60
)


def measure_nodes(device: torch.device, tiny: bool) -> Iterator[Finding]:
    """Compare every node of random trees with plain decoding by the same recorded forward, then time rounds."""
    sizes = TINY_NODES if tiny else NODES
    report = Report(sizes.shapes, device)
    target = random_target(sizes.shapes, device)
    if device.type == "cpu":
        compute_rows_alone(target.model)
    static = StaticTarget(target, 1, sizes.longest + sizes.nodes)
    yield from compare_trees(static, sizes)
    prefix = sizes.shapes.prefixes[0]
    for count in sizes.rounds:
        static.cache.lengths.fill_(prefix)
        timing = report.timed(partial(static.verify, ragged_trees(1, count, device)))
        floor = report.floor(target, 1, prefix)
        said = f"{timing.median:.4f} ms ({timing.low:.4f}-{timing.high:.4f})  {timing.median / floor:5.2f} x floor"
        yield Finding("nodes", f"a round of {count} tokens, prefix {prefix}", said, {"ms": [*timing], "floor": floor})


def compare_trees(static: StaticTarget, sizes: NodeSizes) -> Iterator[Finding]:
    """Yield the trees in which nodes differ, and the sum over all of them."""
    generator = torch.Generator().manual_seed(0)
    begin = time.monotonic()
    done, differing, flips, ulp = 0, 0, 0, 0.0
    while done < sizes.trees and time.monotonic() - begin < sizes.seconds:
        sampled = int(torch.randint(1, sizes.longest + 1, (), generator=generator))
        prefix = sizes.prefixes[done] if done < len(sizes.prefixes) else sampled
        prompt = torch.randint(sizes.shapes.vocabulary, (prefix,), generator=generator).tolist()
        model, nodes = OwnTarget(static, prompt), random_nodes(sizes.nodes, sizes.shapes.vocabulary, done)
        logits, alone = model.verify(nodes), decoded_alone(model, nodes)
        differs = difference(logits, alone) or Difference(0.0, 0)
        if differs.rows:
            said = f"{differs.rows} of {len(nodes)} nodes differ, by up to {differs.ulp:.2g} ulp"
            yield Finding("nodes", f"tree {done} after {prefix} tokens", said, differs._asdict())
        done, differing, ulp = done + 1, differing + differs.rows, max(ulp, differs.ulp)
        flips += int((logits.argmax(-1) != alone.argmax(-1)).sum())
    seconds, count = time.monotonic() - begin, done * sizes.nodes
    said = f"{differing} of {count} nodes differ, by up to {ulp:.2g} ulp; {flips} other argmax; in {seconds:.0f} s"
    what = f"{done} of {sizes.trees} trees of {sizes.nodes} nodes"
    figures = {"trees": done, "nodes": count, "differing": differing, "ulp": ulp, "flips": flips, "seconds": seconds}
    yield Finding("nodes", what, said, figures, differing)


def random_nodes(count: int, vocabulary: int, seed: int) -> list[PlainNode]:
    """Return a tree of random tokens, all of them different; trees of odd seeds are deep."""
    tree = random_trees(count, 1, seed, reach=4 if seed % 2 else None)
    tokens = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(seed))[:count]
    columns = (column.tolist() for column in (tokens, tree.parent[0], tree.depth[0] + 1))
    return [PlainNode(*node) for node in zip(*columns, strict=True)]


def decoded_alone(model: OwnTarget, nodes: Sequence[PlainNode]) -> Float[Tensor, "n V"]:
    """Return the logits after every node by plain decoding, one forward a node: the nodes come depth first, so the
    committed path of a node before is taken back only to the parent."""
    paths = paths_of([node.parent for node in nodes])
    logits = {path[-1]: model.after([nodes[slot].token for slot in path]) for path in sorted(paths)}
    model.to_prompt()
    return torch.stack([logits[slot] for slot in range(len(nodes))])


def compute_rows_alone(model: nn.Module) -> None:
    """Compute products row by row: rows are independent on a GPU in one shape, and on some CPU they may not be."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.forward = partial(_linear_alone, module)


def _linear_alone(layer: nn.Linear, x: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
    rows = [linear(row, layer.weight, layer.bias) for row in x.reshape(-1, 1, x.shape[-1])]
    return torch.cat(rows).view(*x.shape[:-1], -1)


def attend_by_kernel(
    query: Tensor, key: Tensor, value: Tensor, mask: TreeMask, scale: float, window: int | None = None, ranges=None
) -> Tensor:
    """Do `tree_attention` by the kernels of a GPU."""
    return triton_attention(query, key, value, mask, scale, window, ranges)


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Let targets on a CPU attend by the kernels of a GPU, and Triton's interpreter multiply as a tensor core does."""
    with modelled(), mock.patch.object(attention, "tree_attention", attend_by_kernel):
        yield


STAGES = {
    "products": measure_products,
    "mma": measure_mma,
    "attention": measure_attention,
    "nodes": measure_nodes,
}


@torch.inference_mode()
def main(arguments: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("stage", choices=STAGES, metavar="STAGE", help=", ".join(STAGES))
    options.add_argument("--tiny", action="store_true")
    options.add_argument("--out", type=Path, help="folder for gpu.jsonl (default: nothing is written)")
    given = options.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not given.tiny:
        options.error("exact measurements need a CUDA device; --tiny runs anywhere")
    if triton is None:
        options.error('exact measurements need Triton: pip install "c2t[gpu]"')
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        options.error("without a CUDA device set TRITON_INTERPRET=1")
    if device.type == "cuda":
        return run_stage(given.stage, device, given.tiny, given.out)
    with as_on_a_gpu():
        return run_stage(given.stage, device, given.tiny, given.out)


def run_stage(stage: str, device: torch.device, tiny: bool, out: Path | None) -> int:
    """Print a stage's lines, append its result line to `out`, and return the exit status. What was measured before an
    error is written, too."""
    print(f"{hardware()}, {stage}{', tiny' if tiny else ''}", flush=True)
    findings: list[Finding] = []
    try:
        for finding in STAGES[stage](device, tiny):
            print(finding, flush=True)
            findings.append(finding)
    except InputError as error:  # the check of a target's linear layers, say
        print(f"{stage}: {error}")
        return 2
    finally:
        if out:
            figures = {finding.what: finding.figures | {"differing": finding.differing} for finding in findings}
            append_line(out / "gpu.jsonl", result_line("gpu_exact", figures, {"stage": stage, "tiny": tiny}))
    differing = sum(finding.differing for finding in findings)
    print(f"{stage}: {differing} results differ that must be equal")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
