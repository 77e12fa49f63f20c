"""Verification of one fixed shape, recorded as a graph, in which every token has plain decoding's bits."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedConfig

from c2t.caches.padded import TreeKVCache
from c2t.caches.ragged import SlotLogits
from c2t.cuda_graphs.graph import Graph
from c2t.cuda_graphs.row_independence import check_rows
from c2t.errors import InputError
from c2t.kernels.rms_norm import RMSNorm
from c2t.kernels.tree_attention import triton
from c2t.kernels.tree_mask import TreeMask
from c2t.models.target.positions import changes_with_text
from c2t.models.target.target import Target, TargetSession, Verified
from c2t.tree import Tree

SLOTS = 64  # tokens of a row in the recorded forward: on a GPU they take hardly longer than one


class StaticTarget:
    """A target whose sessions verify by one recorded forward of SLOTS tokens a row: of at most `rows` rows, texts of at
    most `capacity` tokens and trees of at most `room` tokens. Generations use the same memory, so only one runs at a
    time.

    Plain decoding's one token is padded to the same forward, and larger trees are verified SLOTS tokens at a time. So
    every token goes through the same kernels, in products of the same shapes. Its logits then have the bits of plain
    decoding with as many rows, if a product's rows do not depend on each other, which is checked on a CUDA device, and
    norms and attention do not either (`c2t.kernels.rms_norm`, `c2t.kernels.tree_attention`).

    target: one of the same weights as the caller's, which stays as it is. InputError for what cannot be recorded.
    """

    def __init__(self, target: Target, rows: int, capacity: int, room: int = SLOTS):
        check_recordable(target)
        self.target = target.sharing_weights()
        self.target.use_tree_attention()
        replace_norms(self.target.model)
        if target.device.type == "cuda":
            check_rows(self.target.model, rows * SLOTS)
        self.rows, self.capacity, self.room = rows, capacity, -(-room // SLOTS) * SLOTS
        self.cache: TreeKVCache | None = None
        self.trees = Slots.empty(rows, self.room, self.device)
        self.graph = Graph(self._verify, self.device)

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

    @torch.inference_mode()
    def record(self) -> None:
        """Record the forward, once a prompt was read."""
        self.trees.alive.zero_()
        self.graph()

    def verify(self, tree: Tree) -> tuple[Float[Tensor, "B n V"], Float[Tensor, "B n D"]]:
        """Return logits and features of trees, and of the slots after them."""
        self.trees.fill(tree)
        parts = []
        for first in range(0, tree.size, SLOTS):
            self.trees.first.fill_(first)
            self.graph()
            # The next forward writes to the same memory.
            parts.append([part.clone() if tree.size > SLOTS else part for part in self.trees.out])
        logits, features = (torch.cat(part, 1) if len(part) > 1 else part[0] for part in zip(*parts, strict=True))
        return logits, features

    def _verify(self) -> None:
        lengths, trees = self.cache.lengths, self.trees
        here = trees.first + torch.arange(SLOTS, device=self.device)
        token, _, depth = trees.whole.index_select(2, here)
        alive = trees.alive.index_select(1, here)
        parent = torch.where(trees.alive, trees.whole[1], -1)
        positions = lengths[:, None] + torch.where(alive, depth, -1) + 1
        self.cache.tree_slots = here
        mask = TreeMask.of(parent, alive, positions, lengths, trees.first)
        hidden = self.target.forward(token, positions, mask, self.cache)
        trees.out[:] = [self.target.logits(hidden), self.target.features(hidden)]


def check_recordable(target: Target) -> None:
    """Raise InputError for a target whose forward is not made of the same kernels every time, or not on one device."""
    if len({weight.device for weight in target.model.parameters()}) > 1:
        raise InputError("graphs need a target on one device; leave device_map out")
    if target.is_split:
        raise InputError("graphs need a target in one process; leave --tp out")
    kinds = {type(module).__name__ for module in target.model.modules()}
    if experts := next((kind for kind in sorted(kinds) if kind.endswith("Experts")), None):
        raise InputError(f"graphs cannot serve {experts}, whose products depend on the text; decode without graphs")
    if changes_with_text(target.config):
        raise InputError(
            "graphs cannot record dynamic RoPE, whose frequencies depend on the text; decode without graphs"
        )
    if target.device.type == "cuda":
        check_device(next(target.model.parameters()).dtype)


def check_device(dtype: torch.dtype) -> None:
    """Raise InputError where a CUDA device has no kernels for this dtype."""
    if triton is None:
        raise InputError("graphs need Triton, which is not installed; decode without graphs")
    if dtype == torch.float64:
        raise InputError("graphs compute in float32, bfloat16 and float16: choose another --dtype than float64")
    if dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise InputError("this card does not compute in bfloat16: choose --dtype float16")


def replace_norms(model: nn.Module) -> None:
    """Compute RMS norms row by row. Others stay as they are: in one shape they sum in one order, by more kernels."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm") and (norm := RMSNorm.of(module)) is not None:
            module.forward = norm.__call__


class Slots(NamedTuple):
    """Trees that the graph reads, `first` being the first slot that it verifies, and its results in `out`: logits and
    features. whole: token, parent and depth of each slot; slots that are not alive have those of other trees."""

    whole: Int[Tensor, "3 B N"]
    alive: Bool[Tensor, "B N"]
    first: Int[Tensor, ""]
    out: list[Float[Tensor, "B n _"]]

    @classmethod
    def empty(cls, rows: int, size: int, device: torch.device) -> "Slots":
        """Return `rows` trees of `size` slots, none of them alive."""
        whole = torch.zeros(3, rows, size, dtype=torch.long, device=device)
        alive = torch.zeros(rows, size, dtype=torch.bool, device=device)
        return cls(whole, alive, torch.zeros((), dtype=torch.long, device=device), [])

    def fill(self, tree: Tree) -> None:
        """Copy the trees in; the slots after them are not alive."""
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
            cache = TreeKVCache(self.owner.target.num_layers, self.owner.capacity, self.owner.room)
            cache.allocate(self.cache, self.owner.rows)
            self.owner.cache = cache
        self.owner.cache.adopt(self.cache)
        self.cache, self.rows = self.owner.cache, len(tokens)
        return verified

    def verify(self, tree: Tree) -> Verified:
        """See `TargetSession.verify`; InputError for larger trees than there is room for."""
        if tree.size > self.owner.room:
            raise InputError(
                f"a tree of {tree.size} tokens is larger than the {self.owner.room} that graphs have room for"
            )
        logits, features = self.owner.verify(tree)
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
