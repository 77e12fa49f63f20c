"""Verification of fixed shapes: one graph of the target for each size that trees are padded to."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from c2t.caches.padded import StaticKVCache
from c2t.caches.ragged import SlotLogits
from c2t.cuda_graphs.graph import Graph
from c2t.errors import InputError
from c2t.kernels.tree_mask import TreeMask
from c2t.models.target.target import Target, TargetSession, Verified
from c2t.tree import Tree

SIZES = (1, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)  # tokens that a tree is padded to


class StaticTarget:
    """A target whose sessions verify by graphs: of at most `rows` rows and texts of at most `capacity` tokens; one
    generation at a time, since all use the same memory.

    target: one of the same weights as the caller's, which stays as it is, with tree attention switched on and on a CUDA
    device its norms and MLPs compiled.
    """

    def __init__(self, target: Target, rows: int, capacity: int, sizes: Sequence[int] = SIZES):
        if len({weight.device for weight in target.model.parameters()}) > 1:
            raise InputError("graphs need a target on one device; leave device_map out")
        self.target = target.sharing_weights()
        self.target.use_tree_attention()
        if target.device.type == "cuda":
            compile_small_operations(self.target.model)
        self.rows, self.capacity, self.sizes = rows, capacity, sorted(sizes)
        self.cache: StaticKVCache | None = None
        self.graphs: dict[int, tuple[Padded, Graph]] = {}

    @property
    def config(self) -> PreTrainedConfig:
        """See `Target.config`."""
        return self.target.config

    @property
    def device(self) -> torch.device:
        """See `Target.device`."""
        return self.target.device

    def session(self) -> "StaticTargetSession":
        """Start a generation."""
        return StaticTargetSession(self)

    def graph(self, size: int) -> "tuple[Padded, Graph]":
        """Return the graph for trees of `size` slots, with the tensors that it reads and writes."""
        if size not in self.graphs:
            padded = Padded.empty(self.rows, size, self.device)
            self.graphs[size] = padded, Graph(partial(self._verify, padded), self.device)
        return self.graphs[size]

    @torch.inference_mode()
    def record(self, most: int) -> None:
        """Record the graphs for trees of up to so many tokens, once a prompt was read."""
        for smaller, size in zip((0, *self.sizes), self.sizes, strict=False):
            if smaller < most:
                padded, graph = self.graph(size)
                padded.alive.zero_()
                graph()

    def _verify(self, padded: "Padded") -> None:
        lengths = self.cache.lengths
        token, parent, depth = padded.whole
        parent, depth = (torch.where(padded.alive, column, -1) for column in (parent, depth))
        positions = lengths[:, None] + depth + 1
        self.cache.drop()
        mask = TreeMask.of(parent, padded.alive, positions, lengths)
        hidden = self.target.forward(token, positions, mask, self.cache)
        padded.out[:] = [self.target.logits(hidden), self.target.features(hidden)]


def compile_small_operations(model: PreTrainedModel) -> None:
    """Compile norms and MLPs, so that the operations around their matrix products become one kernel each: as several
    kernels they cost more to start than to run. Modules that are compiled already stay as they are."""
    for module in model.modules():
        if type(module).__name__.endswith(("RMSNorm", "MLP")) and module._compiled_call_impl is None:
            module.compile()


class Padded(NamedTuple):
    """Trees that a graph reads, and its results for them in `out`: logits and features. whole: token, parent and depth
    of each slot; those of dead ones are left over from other trees."""

    whole: Int[Tensor, "3 B n"]
    alive: Bool[Tensor, "B n"]
    out: list[Float[Tensor, "B n _"]]

    @classmethod
    def empty(cls, rows: int, size: int, device: torch.device) -> "Padded":
        """Return `rows` trees of `size` dead slots."""
        whole = torch.zeros(3, rows, size, dtype=torch.long, device=device)
        return cls(whole, torch.zeros(rows, size, dtype=torch.bool, device=device), [])

    def fill(self, tree: Tree) -> None:
        """Copy the trees in; the slots after them are dead."""
        rows, size = tree.token.shape
        self.whole[:, :rows, :size] = tree.blocks.whole[:3]
        self.alive.zero_()
        self.alive[:rows, :size] = tree.alive


class StaticTargetSession(TargetSession):
    """One generation. An ordinary session reads its prompts; the graphs' cache then takes over the prefixes."""

    def __init__(self, owner: StaticTarget):
        super().__init__(owner.target)
        self.owner, self.rows = owner, 0

    @property
    def lengths(self) -> Int[Tensor, " B"]:
        return self.owner.cache.lengths[: self.rows].clone()

    def prefill(self, tokens: Int[Tensor, "B P"], lengths: Int[Tensor, " B"]) -> Verified:
        """See `TargetSession.prefill`."""
        if len(tokens) > self.owner.rows:
            raise InputError(f"{len(tokens)} prompts are more than the {self.owner.rows} rows of the graphs")
        verified = super().prefill(tokens, lengths)
        if self.owner.cache is None:
            room = self.owner.sizes[-1]
            self.owner.cache = StaticKVCache(self.owner.target.num_layers, self.owner.capacity, room)
            self.owner.cache.allocate(self.cache, self.owner.rows)
        self.owner.cache.adopt(self.cache)
        self.cache, self.rows = self.owner.cache, len(tokens)
        return verified

    def verify(self, tree: Tree) -> Verified:
        """See `TargetSession.verify`; InputError for trees of more slots than the largest graph has."""
        fitting = [size for size in self.owner.sizes if size >= tree.size]
        if not fitting:
            raise InputError(f"a tree of {tree.size} slots is larger than the largest graph, {self.owner.sizes[-1]}")
        padded, graph = self.owner.graph(fitting[0])
        padded.fill(tree)
        graph()
        logits, features = padded.out
        padded_logits = SlotLogits.of(logits)
        slots = padded_logits.packed_index[: self.rows, : tree.size]
        return Verified(padded_logits._replace(packed_index=slots), features[: self.rows, : tree.size])

    def commit(self, slots: Int[Tensor, "B m"], count: Int[Tensor, " B"]) -> None:
        """See `TargetSession.commit`."""
        idle = self.owner.rows - self.rows
        pad = torch.nn.functional.pad
        self.cache.keep(pad(slots.clamp(min=0), (0, 0, 0, idle)), pad(count, (0, idle)))

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        self.cache.select(rows)
        self.rows = len(rows)

    def join(self, other: TargetSession) -> None:
        """Raise InputError: all sessions use the same memory."""
        raise InputError(
            "CUDA graphs decode a fixed batch, which no requests can join; decode without graphs (graph_tokens = 0)"
        )
