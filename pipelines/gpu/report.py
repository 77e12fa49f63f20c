"""The GPU runtime, timed: target and draft of LLaMA-2 7B's shapes with random weights against what must move (bytes /
measured bandwidth).

    python -m pipelines.gpu [--tiny] [--out data/results]
    python -m pipelines.gpu --texts smollm2 [--out data/results]

--tiny runs the same on shapes of a few kilobytes, on any machine: it shows that the report works, not how fast it is.
--texts generates whole texts with a pair: in float32 to compare the text of graphs with the ordinary loop's, in
bfloat16 for their speed, and to compare that of graphs with trees with that of graphs without.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import torch

from c2t.cuda_graphs.draft import DraftGraph
from c2t.cuda_graphs.graph import Graph
from c2t.kernels.network import Network
from c2t.kernels.rows import rank
from c2t.kernels.select import SelectLimits, select
from c2t.kernels.static_tree import StaticTree
from c2t.models.drafts.head_draft import EagleDraft
from c2t.models.target.target import Target
from c2t.policies import C2T, Eagle2
from c2t.protocols import Policy
from c2t.storage.provenance import hardware
from c2t.storage.results import append_line, result_line
from pipelines.gpu.lines import Line, Timing, timed
from pipelines.gpu.models import (
    FULL,
    TINY,
    Shapes,
    classifier_until,
    phase_of,
    ragged_trees,
    random_head,
    random_network,
    random_target,
    with_prefixes,
)
from pipelines.gpu.texts import TEXTS, TINY_TEXTS, Sizes, text_lines


class Report:
    """Stages of the report on one device."""

    def __init__(self, shapes: Shapes, device: torch.device):
        self.shapes, self.device = shapes, device
        self.bytes_a_ms = self._bandwidth()

    def timed(self, run: Callable[[], object]) -> Timing:
        """Time a call on the device."""
        return timed(run, self.device)

    def lines(self) -> Iterator[Line]:
        """Yield all measurements."""
        target = random_target(self.shapes, self.device)
        draft = random_head(self.shapes, target)
        yield from self.kernels()
        for prefix in self.shapes.prefixes:
            yield from self.draft(draft, prefix)
            yield from self.verification(target, prefix)

    def _bandwidth(self) -> float:
        """Return the bytes moved in a millisecond by a copy, which reads and writes them."""
        source = torch.empty(2**30 if self.device.type == "cuda" else 2**22, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * source.numel() / self.timed(lambda: target.copy_(source)).median

    def floor(self, target: Target, rows: int, prefix: int) -> float:
        """Return the milliseconds to read the target's weights, without its embedding, and the prefixes' keys and
        values."""
        weights = sum(weight.nbytes for weight in target.model.parameters()) - target.embed_tokens.weight.nbytes
        cache = 2 * rows * prefix * self.shapes.hidden * self.shapes.layers * self.shapes.dtype.itemsize
        return (weights + cache) / self.bytes_a_ms

    def verification(self, target: Target, prefix: int) -> Iterator[Line]:
        """Measure the target's forward over trees of several sizes."""
        if prefix == self.shapes.prefixes[0]:
            cases = {1: self.shapes.verified, **self.shapes.ragged}
        else:
            cases = {1: self.shapes.verified[:2]}
        for rows, sizes in cases.items():
            static = with_prefixes(target, rows, prefix, self.shapes)
            floor = self.floor(target, rows, prefix)
            for size in sizes:
                tree = ragged_trees(rows, size, self.device)
                timing = self.timed(partial(static.verify, tree))
                yield Line("verify", f"{rows} x {size} tokens, prefix {prefix}", timing, floor)

    def draft(self, draft: EagleDraft, prefix: int) -> Iterator[Line]:
        """Measure levels and whole phases (C2T, figure 11)."""
        head, project = (sum(w.nbytes for w in module.parameters()) for module in (draft.head, draft.lm_head.linear))
        head -= draft.head.embed_tokens.weight.nbytes
        keys = 2 * prefix * self.shapes.hidden * self.shapes.dtype.itemsize
        level = (head + project + keys) / self.bytes_a_ms
        same = C2T(classifier_until(9, self.device), K=10, W=10)
        for name, policy in {"EAGLE-2, K=10": Eagle2(N=60), "C2T, K=W=10": same}.items():
            phase = phase_of(draft, policy, 1, prefix)
            phase.grow(phase.root)

            def again(phase: DraftGraph = phase) -> None:
                phase.tree.sizes.fill_(1 + phase.plan.width)  # room for a level
                phase.levels[1]()

            yield Line("draft", f"{name}: one level, prefix {prefix}", self.timed(again), level)
        policies: dict[str, Policy] = {"EAGLE-2, K=10, 6 levels": Eagle2(N=60)}
        for depth in (2, 5, 9):
            policies[f"C2T, K=W=15, alive for {depth + 1} of 10 levels"] = C2T(classifier_until(depth, self.device))
        batches = (1, 4, 16) if prefix == self.shapes.prefixes[0] else (1,)
        for (name, policy), rows in product(policies.items(), batches):
            yield self.whole(name, policy, draft, rows, prefix, level)

    def whole(self, name: str, policy: Policy, draft: EagleDraft, rows: int, prefix: int, level: float) -> Line:
        """Measure a round's whole draft phase: reading the committed tokens, all levels, reranking."""
        phase = phase_of(draft, policy, rows, prefix)
        count = torch.full((rows,), 2, device=self.device)
        tokens, features = phase.tokens[:, :2].clone(), phase.features[:, :2].clone()

        def run() -> None:
            phase.cache.lengths.fill_(prefix)
            phase.read_committed(tokens, features, count)
            phase.grow(phase.root)

        run()
        passes = int(phase.grow(phase.root)[1].max())
        # The first pass is over the committed tokens; each is followed by the LM head.
        more = (rows - 1) * 2 * prefix * self.shapes.hidden * self.shapes.dtype.itemsize / self.bytes_a_ms
        what = f"{name}: whole phase, {rows} rows, prefix {prefix}"
        return Line("draft", what, self.timed(run), passes * (level + more))

    def kernels(self) -> Iterator[Line]:
        """Measure rank and select of a level, for C2T and for an equally fused EAGLE-2."""
        networks = {"C2T": (1000, random_network(self.device)), "EAGLE-2": (0, None)}
        for vocabulary, widths in self.shapes.ranked.items():
            for width in widths:
                logits = torch.randn(1, width, vocabulary, device=self.device, dtype=self.shapes.dtype)
                for name, (m, network) in networks.items():
                    work = self.selection(logits, m, network)
                    timing = self.timed(Graph(work, self.device))
                    yield Line("select", f"{name}: {width} x {vocabulary}", timing)

    def selection(self, logits: torch.Tensor, m: int, network: Network | None) -> Callable[[], None]:
        """Return rank and select of a level, for the 15 most probable children of each node."""
        width = logits.shape[1]
        tree = StaticTree.rooted(torch.zeros(1, dtype=torch.long, device=self.device), 1 + 2 * width)
        tree.alive[:, 1 : 1 + width] = True

        def work() -> None:
            tree.sizes.fill_(1)
            drafted = rank(logits, 15, m)
            select(tree, range(1, 1 + width), range(1 + width, 1 + 2 * width), drafted, network, SelectLimits(0.0))

        return work


def write_texts(pair: str, device: torch.device, sizes: Sequence[Sizes], out: Path | None) -> None:
    """Print, and append to `out`, the speed of every way of decoding on texts of these sizes."""
    for size in sizes:
        print(f"{hardware()}, {pair}, {size.dtype}, {size.prompts} prompts, {size.tokens} new tokens")
        speeds = []
        for speed in text_lines(pair, device, size):
            print(speed, flush=True)
            speeds.append(speed)
        if out:
            figures = {speed.name: list(speed[1:]) for speed in speeds}
            about = {"pair": pair, **size._asdict(), "dtype": str(size.dtype).removeprefix("torch.")}
            append_line(out / "gpu.jsonl", result_line("gpu_texts", figures, about))


@torch.inference_mode()
def main(arguments: list[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tiny", action="store_true")
    options.add_argument("--texts", metavar="PAIR", help="write whole texts with this pair instead")
    options.add_argument("--out", type=Path, help="folder for gpu.jsonl (default: nothing is written)")
    given = options.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not given.tiny:
        options.error("the report needs a CUDA device; --tiny runs anywhere")
    if given.texts:
        write_texts(given.texts, device, TINY_TEXTS if given.tiny else TEXTS, given.out)
        return
    shapes = TINY if given.tiny else FULL
    print(f"{hardware()}, shapes of {shapes.name}, {shapes.dtype}")
    lines = []
    for line in Report(shapes, device).lines():
        print(line, flush=True)
        lines.append(line)
    if given.out:
        figures = {f"{line.stage}: {line.what}": [*line.timing, line.floor] for line in lines}
        append_line(given.out / "gpu.jsonl", result_line("gpu_report", figures, {"shapes": shapes.name}))
