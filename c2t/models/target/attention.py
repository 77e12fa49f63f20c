"""c2t's tree attention as an attention implementation of transformers, for stock models.

    model.set_attn_implementation("c2t_tree")  # or attn_implementation="c2t_tree" where it is loaded
    model(tokens, position_ids=mask.positions.long(), past_key_values=cache, **tree_arguments(mask))

Forwards without a tree mask, prefills for example, are those of "sdpa".
"""

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from c2t.errors import InputError
from c2t.kernels.tree_attention import Ranges, tree_attention
from c2t.kernels.tree_mask import TreeMask
from c2t.models.target.families import head_dim

TREE_ATTENTION = "c2t_tree"


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    tree_mask: TreeMask | None = None,
    ranges: Ranges | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Return the attention of queries (B, H, n, D) to the cache's keys and values (B, h, t, D): a tensor (B, n, H, D),
    and None for the weights.

    transformers calls it in every layer of a model whose attention implementation is TREE_ATTENTION. Without
    `tree_mask` it is SDPA. ranges: see `tree_attention`.
    """
    if tree_mask is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    return tree_attention(query, key, value, tree_mask, scaling, sliding_window, ranges=ranges).transpose(1, 2), None


AttentionInterface.register(TREE_ATTENTION, attend)
AttentionMaskInterface.register(TREE_ATTENTION, sdpa_mask)  # without it, stock forwards would have no mask at all


def tree_arguments(mask: TreeMask) -> dict[str, Any]:
    """Return the arguments of a model's forward that make its layers attend under `mask`.

    Models pass arguments that they do not know on to their layers. They take a four-dimensional attention mask as it
    is, so they build none of their own.
    """
    return {"attention_mask": mask.path[:, None], "tree_mask": mask}


def has_blocks(config: PreTrainedConfig) -> bool:
    """Return whether the kernel has blocks for heads of this dimension."""
    return head_dim(config) in (16, 32, 64, 128, 256)


def check_heads(config: PreTrainedConfig) -> None:
    """Raise InputError where the kernel has no blocks for heads of this dimension."""
    if not has_blocks(config):
        dim = head_dim(config)
        raise InputError(
            f"tree attention needs heads of 16, 32, 64, 128 or 256 dimensions, not {dim}; use sdpa, and no CUDA graphs"
        )
