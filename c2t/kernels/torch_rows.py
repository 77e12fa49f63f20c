"""`c2t.kernels.rows` in torch: it runs where there is no kernel, and the kernels are tested against it."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

SPARE = 16  # values after the k-th that are searched for ties
PART = 128  # logits of a part of a row


def torch_log_norm(logits: Float[Tensor, "*R V"]) -> Float[Tensor, "*R"]:
    """Return log-sum-exp in half the time of torch's, from the logit and the probability of the most probable token."""
    peak = logits.amax(-1)
    return torch.where(peak == float("-inf"), peak, peak - logits.softmax(-1).amax(-1).log())


def torch_top(
    logits: Float[Tensor, "*R V"], log_norm: Float[Tensor, "*R"], k: int
) -> tuple[Int[Tensor, "*R K"], Float[Tensor, "*R K"]]:
    """Return the k most probable tokens and their log-probabilities. `topk` picks any of equal values, so rows with
    ties are picked again by lowest id."""
    value, token = _topk(logits, min(k + 1, logits.shape[-1]) if k else 0)
    ties = (value[..., 1:] == value[..., :-1]).any(-1) & ~value.isnan().any(-1)
    value, token = value[..., :k], token[..., :k]
    if ties.any():
        token[ties] = _lowest_ids(logits[ties], k)
        value = logits.gather(-1, token)
    return token, value - log_norm[..., None]


def _topk(logits: Float[Tensor, "*R V"], k: int) -> tuple[Float[Tensor, "*R K"], Int[Tensor, "*R K"]]:
    """Return the k largest values and their places. Only the k parts of a row with the largest maxima can hold them,
    which on a CPU leaves a fraction of the row to search."""
    parts, odd = divmod(logits.shape[-1], PART)
    if odd or parts < 2 * k or logits.is_cuda:
        return logits.topk(k, dim=-1)
    split = logits.unflatten(-1, (parts, PART))
    part = split.amax(-1).topk(k, dim=-1).indices
    value, index = split.gather(-2, part[..., None].expand(*part.shape, PART)).flatten(-2).topk(k, dim=-1)
    return value, part.gather(-1, index // PART) * PART + index % PART


def _lowest_ids(logits: Float[Tensor, "R V"], k: int) -> Int[Tensor, "R K"]:
    """Return the k largest, equal ones by lowest id; the whole row is sorted only where more than SPARE values equal
    the k-th."""
    count = min(k + SPARE, logits.shape[1])
    value, token = logits.topk(count, dim=1)
    token = token.sort(dim=1).values
    order = logits.gather(1, token).sort(dim=1, descending=True, stable=True).indices
    token = token.gather(1, order)[:, :k]
    beyond = (value[:, k - 1] == value[:, -1]) & (count < logits.shape[1])
    if beyond.any():
        token[beyond] = logits[beyond].sort(dim=1, descending=True, stable=True).indices[:, :k]
    return token


def torch_entropy(logits: Float[Tensor, "*R V"], log_norm: Float[Tensor, "*R"], m: int | None) -> Float[Tensor, "*R"]:
    """Return the entropy in nats over the m most probable tokens; m as in `rank`."""
    if m == 0:
        return torch.full_like(log_norm, float("nan"))
    if m is not None and m < logits.shape[-1]:
        logits = torch_largest(logits, m)
    log_prob = (logits - log_norm[..., None]).clamp_(min=-1e4)  # finite, so that p log p is 0 where p is
    return -(log_prob.exp() * log_prob).sum(-1)


def torch_largest(values: Float[Tensor, "*R V"], m: int) -> Float[Tensor, "*R M"]:
    """Return the m < V largest values, in any order."""
    if values.is_cuda or values.requires_grad:
        return values.topk(m, dim=-1, sorted=False).values
    # On a CPU numpy's selection uses vector instructions, which torch's does not: half the time at 15 x 8192, m = 1000.
    split = values.shape[-1] - m
    return torch.from_numpy(np.partition(values.numpy(), split, axis=-1)[..., split:])
