"""Logits of out-of-vocabulary tokens, which a text has and its draft's vocabulary lacks
(`c2t.models.drafts.oov_tokens`): appended to those of the vocabulary, in C on a CPU (oov_tokens.c), else in torch."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.kernels.native import kernels
from c2t.kernels.pointer import pointer, weights

_DTYPES = (torch.float32, torch.bfloat16)


def serves(lm_head: Float[Tensor, "V H"]) -> bool:
    """Return True if the function in C can read this LM head: on a CPU with a compiler, in float32 or bf16."""
    whole = kernels() is not None and lm_head.shape[1] % kernels().lanes() == 0
    return whole and lm_head.device.type == "cpu" and lm_head.dtype in _DTYPES and lm_head.is_contiguous()


def add_oov_tokens(
    logits: Float[Tensor, "S v"],
    states: Float[Tensor, "S H"],
    text: Int[Tensor, " S"],
    ids: Int[Tensor, "B E"],
    lm_head: Float[Tensor, "V H"],
) -> Float[Tensor, "S w"]:
    """Return these logits followed by those of each text's out-of-vocabulary tokens, -inf for an id of -1.

    states: what the logits are of. text: the row of `ids` that each of them belongs to. lm_head: rows of all tokens.
    """
    common, count = logits.shape[1], ids.shape[1]
    plain = states.dtype == logits.dtype == torch.float32 and not (states.requires_grad and torch.is_grad_enabled())
    if not (serves(lm_head) and plain):
        # Of all texts, so that nothing waits for the device.
        of_all = states @ lm_head[ids.clamp(min=0).flatten()].to(states).T
        at = text[:, None] * count + torch.arange(count, device=text.device)
        more = of_all.gather(1, at).to(logits)
        return torch.cat([logits, more.masked_fill(ids[text] < 0, float("-inf"))], 1)
    joined, states, text = logits.new_empty(len(logits), common + count), states.contiguous(), text.contiguous()
    real, whole = torch.float32, torch.int64
    joined[:, :common] = logits
    kernels().add_oov_tokens(
        *(pointer(states, real), pointer(text, whole), *states.shape, *weights(lm_head)),
        *(pointer(ids, whole), count, pointer(joined, real), common, torch.get_num_threads()),
    )
    return joined
