"""Losses of a DSpark head: blocks from random roots of the target's texts, whose slots all predict.

Shapes: B texts, A blocks of each, K slots of a block, m judged slots of all blocks, H hidden, r the Markov head's rank,
v tokens whose logits are compared. In the joint space, of D = H + r numbers, a slot's state and the embedding of the
token before it stand side by side, and so do the target's rows and the Markov head's: logits are one product.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from c2t.caches.padded import KVCache
from c2t.drafting.losses import Losses
from c2t.drafting.rows import Rows
from c2t.models.drafts.block import BlockHead

BLOCKS = 16  # of each text in a batch, at most
ENTROPY, VARIATION, CONFIDENCE = 0.1, 0.9, 1.0  # DeepSpec's weights of the loss's parts
DECAY = 4.0  # slots: DeepSpec's, by which slot k has the weight exp(-k / DECAY)
CHUNK = 128  # states whose logits are computed together


def random_roots(judged: Bool[Tensor, "B n"]) -> tuple[Int[Tensor, "B A"], Bool[Tensor, "B A"]]:
    """Return up to BLOCKS random positions of each text where a judged state is, and False for those beyond them."""
    slots = torch.rand(judged.shape, device=judged.device).masked_fill(~judged, 2.0).argsort(1)[:, :BLOCKS]
    return slots + 1, judged.gather(1, slots)  # slot j is judged by the state of position j + 1


def block_states(head: BlockHead, rows: Rows, roots: Int[Tensor, "B A"]) -> Float[Tensor, "B A K H"]:
    """Return the states of blocks whose roots stand at these positions of the texts; each sees the target's states
    before its root, and itself."""
    (texts, blocks), cache = roots.shape, KVCache(head.num_layers)
    positions = torch.arange(rows.inputs.shape[1], device=roots.device)
    head.remember(rows.inputs, positions.expand(texts, -1), cache)
    tokens = head.block(rows.ids.gather(1, roots).flatten()).view(texts, -1)
    mask = seen(roots, len(positions), head.size)
    return head(tokens, positions_of(roots, head.size).flatten(1), mask, cache).unflatten(1, (blocks, head.size))


def positions_of(roots: Int[Tensor, "B A"], size: int) -> Int[Tensor, "B A K"]:
    """Return the positions of the blocks' slots."""
    return roots[..., None] + torch.arange(size, device=roots.device)


def seen(roots: Int[Tensor, "B A"], length: int, size: int) -> Bool[Tensor, "B n t"]:
    """Return what each slot of the blocks sees: the text before its root, and its own block."""
    number = torch.arange(roots.shape[1], device=roots.device).repeat_interleave(size)
    text = torch.arange(length, device=roots.device) < roots[:, number, None]
    block = (number[:, None] == number).expand(len(roots), -1, -1)
    return torch.cat([text, block], 2)


def joint_rows(head: BlockHead, lm_head: Float[Tensor, "v H"], tokens: Int[Tensor, " v"]) -> Float[Tensor, "v D"]:
    """Return the target's rows of these tokens and the Markov head's, side by side."""
    return torch.cat([lm_head, head.markov_head.markov_w2.weight[tokens.to(lm_head.device)].to(lm_head)], 1)


def joint_states(
    head: BlockHead, hidden: Float[Tensor, "... H"], previous: Int[Tensor, "..."]
) -> Float[Tensor, "... D"]:
    """Return states of slots and the embeddings of the tokens before them, side by side."""
    return torch.cat([hidden, head.markov_head.markov_w1(previous).to(hidden.dtype)], -1)


def first_slots(head: BlockHead, rows: Rows) -> Float[Tensor, "m D"]:
    """Return the joint states of the root's slots of blocks at all judged positions."""
    slots = rows.judged.int().argsort(dim=1, descending=True, stable=True)[:, : int(rows.judged.sum(1).max())]
    parts = [block_states(head, rows, part + 1)[:, :, 0] for part in slots.split(BLOCKS, 1)]
    judged, previous = rows.judged.gather(1, slots), rows.ids.gather(1, slots + 1)
    return joint_states(head, torch.cat(parts, 1), previous)[judged]


def dspark_losses(head: BlockHead, joint: Float[Tensor, "v D"], rows: Rows) -> Losses:
    """Return DeepSpec's loss: cross-entropy and total variation between the head's distributions and the target's, the
    token before a slot being the text's, and the binary cross-entropy of the confidence, whose truth is the sum of
    min(p, q). The means of a depth's slots count less the deeper it is. (Upstream's cross-entropy is that of the text's
    token, which has the same expectation.)"""
    roots, valid = random_roots(rows.judged)
    positions = positions_of(roots, head.size)
    flat = positions.flatten(1)
    judged = F.pad(rows.judged, (1, head.size)).gather(1, flat).view_as(positions) & valid[..., None]
    depth = torch.arange(head.size, device=roots.device).expand_as(positions)[judged]
    previous = F.pad(rows.ids, (0, head.size)).gather(1, flat).view_as(positions)[judged]
    text = torch.arange(len(roots), device=roots.device)[:, None, None].expand_as(positions)[judged]
    true = rows.features[text, positions[judged]]
    states = joint_states(head, block_states(head, rows, roots)[judged], previous)
    counts = depth.bincount(minlength=head.size).clamp(min=1)
    weight = (-depth / DECAY).exp() / counts[depth]
    device = joint.device.type
    if torch.is_autocast_enabled(device):
        joint = joint.to(torch.get_autocast_dtype(device))
    apart, entropy, variation = Divergence.apply(states, joint, true, weight)
    logits = head.confidence_head(*states.tensor_split([true.shape[1]], 1)).float()
    wrong = F.binary_cross_entropy_with_logits(logits, 1 - variation, reduction="none")
    parts = {"cross_entropy": entropy, "variation": variation, "confidence": wrong.detach()}
    figures = {
        f"{name}_{k}": part[depth == k].sum() / counts[k]
        for name, part in parts.items()
        for k in depth.unique().tolist()
    }
    return Losses(apart + CONFIDENCE * (weight * wrong).sum(), figures)


class Divergence(torch.autograd.Function):
    """Weighted sum over states of ENTROPY x cross-entropy + VARIATION x total variation between the target's
    distributions p and the head's q, and both of each state. Only a few states' logits exist at a time: they stay in
    the processor's cache. With s = sign(q - p), the slopes by the logits are q - p and q (s - q . s) / 2."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Float[Tensor, "m D"],
        joint: Float[Tensor, "v D"],
        true: Float[Tensor, "m H"],
        weight: Float[Tensor, " m"],
    ) -> tuple[Float[Tensor, ""], Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Return the sum, whose gradients are computed along the way, and the two parts."""
        width, lm_head, true = true.shape[1], joint[:, : true.shape[1]], true.to(joint.dtype)
        entropies, variations, of_states = [], [], []
        of_joint = torch.zeros_like(joint, dtype=weight.dtype)  # 0 for the target's rows, which do not learn
        for x, t, w in zip(states.to(joint.dtype).split(CHUNK), true.split(CHUNK), weight.split(CHUNK), strict=True):
            p, logits = (t @ lm_head.T).float().softmax(-1), (x @ joint.T).float()
            log_q = logits.log_softmax(-1)
            entropies.append(-(p * log_q).sum(-1))
            q = log_q.exp_()
            apart = q - p
            sign = apart.sign()
            variations.append((apart * sign).sum(-1) / 2)
            sign -= (q * sign).sum(-1, keepdim=True)
            slope = apart.mul_(ENTROPY).addcmul_(q, sign, value=VARIATION / 2).mul_(w[:, None]).to(joint.dtype)
            of_states.append((slope @ joint).float())
            of_joint[:, width:] += slope.T @ x[:, width:]
        entropy, variation = torch.cat(entropies), torch.cat(variations)
        ctx.save_for_backward(torch.cat(of_states), of_joint)
        ctx.dtypes = states.dtype, joint.dtype
        ctx.mark_non_differentiable(entropy, variation)
        return (weight * (ENTROPY * entropy + VARIATION * variation)).sum(), entropy, variation

    @staticmethod
    def backward(ctx: Any, *outer: Float[Tensor, "..."]) -> tuple[Tensor, Tensor, None, None]:
        """Return the gradients of the states and of the joint rows."""
        states, joint = ((outer[0] * part).to(kind) for part, kind in zip(ctx.saved_tensors, ctx.dtypes, strict=True))
        return states, joint, None, None
