"""Masks of trees for transformers' attention: 4-D, as its implementation takes them, within sliding windows."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedModel

from c2t.models.target.families import FULL, SLIDING

KINDS = (FULL, SLIDING)  # of layers


def mask_arguments(
    model: PreTrainedModel, sees: Bool[Tensor, "B n t"], distance: Callable[[], Int[Tensor, "B n t"]]
) -> Tensor | dict[str, Tensor]:
    """Return the model's attention_mask, limited to its sliding window if it has one. A model with several kinds of
    layers gets a mask for each kind.

    sees: slots that each token attends to. distance: returns how many positions each slot is distance the token.
    """
    config = model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    full = _as_taken(model, sees[:, None])
    if window is None or kinds == {FULL}:
        return full
    sliding = _as_taken(model, (sees & (distance() < window))[:, None])
    return {FULL: full, SLIDING: sliding} if len(kinds) > 1 else sliding


def _as_taken(model: PreTrainedModel, mask: Bool[Tensor, "B 1 n t"]) -> Tensor:
    """Return a mask for the model's attention: eager attention adds it to the scores."""
    if model.config._attn_implementation != "eager":
        return mask
    zeros = torch.zeros(mask.shape, dtype=model.dtype, device=mask.device)
    return zeros.masked_fill(~mask, torch.finfo(model.dtype).min)
