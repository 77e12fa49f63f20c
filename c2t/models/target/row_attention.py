"""Stock transformers models on ragged batches: in every layer attention runs row by row; all else runs once over the
tokens of all rows.

    with RowAttention(model, positions, sees, rows, cache) as attention:
        model(tokens[None], position_ids=positions[None], past_key_values=cache, **attention)
"""

import sys
from types import TracebackType
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from c2t.caches.pool import KVPool
from c2t.caches.ragged import Ragged
from c2t.kernels.tree_attention import Ranges
from c2t.kernels.tree_mask import TreeMask
from c2t.models.target.attention import TREE_ATTENTION
from c2t.tree import Tree

ROWS = "c2t_rows"


class RowAttention:
    """Context in which a model attends row by row, with the attention implementation that it has otherwise.

    positions, sees: of the S tokens; see `c2t.models.target.target.Target.forward_rows`. cache: has slots for them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        positions: Int[Tensor, " S"],
        sees: Bool[Tensor, "S n"],
        rows: Ragged,
        cache: KVPool,
        tree: Tree | None = None,
    ):
        self.model, self.kind = model, model.config._attn_implementation
        self.positions, self.rows, self.cache = positions, rows, cache
        self.tree = tree if self.kind == TREE_ATTENTION else None
        self.sees = sees
        self._masks: dict[tuple[int, int | None, torch.device], Tensor] = {}
        self._of_tree: dict[torch.device, dict[str, Any]] = {}

    def __enter__(self) -> dict[str, Any]:
        self.model.config._attn_implementation = ROWS
        # Models take a mask of four dimensions as it is, and pass arguments that they do not know on to their layers.
        return {"attention_mask": self.sees[None, None], "rows": self}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.model.config._attn_implementation = self.kind

    def mask(self, row: int, begin: int, window: int | None, query: Tensor) -> Tensor:
        """Return what one row's tokens see, the first of which is token `begin`: the same in all layers of a kind."""
        key = row, window, query.device
        if key not in self._masks:
            self._masks[key] = self._mask(row, begin, window, query)
        return self._masks[key]

    def _mask(self, row: int, begin: int, window: int | None, query: Tensor) -> Tensor:
        """Return the mask over the row's committed slots and its new ones, cut at the sliding window if there is one.
        A committed slot's position is its index."""
        length, span = self.cache.row(row, 0), self.rows.spans[row]
        mine = slice(begin, begin + self.rows.sizes[row])
        prefix = length.stop - length.start
        seen = torch.nn.functional.pad(self.sees[mine, :span], (prefix, 0), value=True)
        if window is not None:
            here = self.positions[mine]
            new = here.new_zeros(span).index_copy(0, self.rows.slot[mine], here)
            there = torch.cat([torch.arange(prefix, device=here.device), new])
            seen = seen & (here[:, None] - there < window)
        seen = seen[None, None].to(query.device)
        if self.kind == "eager":  # which would add True to the scores as a 1
            zeros = torch.zeros(seen.shape, dtype=query.dtype, device=query.device)
            seen = zeros.masked_fill(~seen, torch.finfo(query.dtype).min)
        return seen

    def tree_arguments(self, device: torch.device) -> dict[str, Any]:
        """Return the arguments of tree attention over all rows together, on a layer's device."""
        if device not in self._of_tree:
            tree, cache, sizes = self.tree, self.cache, self.rows.sizes
            span = max(sizes)
            columns = tree.parent[:, :span], tree.alive[:, :span], tree.positions(cache.lengths)[:, :span]
            first = torch.tensor([0, *sizes[:-1]], device=tree.token.device).cumsum(0)
            mask = TreeMask(*(part.to(device) for part in TreeMask.of(*columns, cache.lengths)))
            first, starts, tails = (part.to(device) for part in (first, cache.first, cache.tails))
            ranges = Ranges(first, starts, tails, cache.longest)
            self._of_tree[device] = {"attention_mask": None, "tree_mask": mask, "ranges": ranges}
        return self._of_tree[device]


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    rows: RowAttention,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Return the attention of queries (1, H, S, D) to keys and values of the whole cache (1, h, t, D), as (1, S, H, D),
    and None for the weights. transformers calls it in every layer."""
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    inner = ALL_ATTENTION_FUNCTIONS.get_interface(rows.kind, eager)
    others["sliding_window"] = sliding_window
    if rows.tree is not None:
        return inner(module, query, key, value, **rows.tree_arguments(query.device), **others)
    out, begin = [], 0
    for row, size in enumerate(rows.rows.sizes):
        if not size:  # a text that has ended before the others of its batch
            continue
        slots = rows.cache.row(row, rows.rows.spans[row])
        parts = query[:, :, begin : begin + size], key[:, :, slots], value[:, :, slots]
        out.append(inner(module, *parts, rows.mask(row, begin, sliding_window, query), **others)[0])
        begin += size
    return torch.cat(out, 1), None


AttentionInterface.register(ROWS, attend)
AttentionMaskInterface.register(ROWS, sdpa_mask)
