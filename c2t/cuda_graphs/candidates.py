"""All candidates that a draft phase of fixed shapes has drafted, as one tree, which EAGLE-2 reranks (EAGLE-2, section
4.2).
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Int
from torch import Tensor

from c2t.kernels.rows import TopK
from c2t.kernels.static_tree import StaticTree
from c2t.tree import Tree


def candidates(tree: StaticTree, slots: Sequence[range], drafted: Sequence[TopK]) -> Tree:
    """Return trees of the root and every candidate, in creation order.

    slots: the root's range, then each level's, which hold the candidates that were expanded. drafted: for each level,
    the children (B, F, K) drafted from the slots before it.
    """
    K = drafted[0].token.shape[2]
    flat = {
        "token": [level.token for level in drafted],
        "log_prob": [level.log_prob for level in drafted],
        "max_log_prob": [level.log_prob[..., :1].expand_as(level.log_prob) for level in drafted],
        "entropy": [level.entropy[..., None].expand_as(level.log_prob) for level in drafted],
        "rank": [torch.arange(K, device=tree.token.device).expand_as(level.token) for level in drafted],
        "parent": [parent_slots(frontier, level) for frontier, level in zip(slots, drafted, strict=False)],
    }
    columns = {name: torch.cat([part.flatten(1) for part in parts], 1) for name, parts in flat.items()}
    above = columns["parent"]
    columns["log_joint"] = columns["score"] = tree.log_joint.gather(1, above) + columns["log_prob"]
    columns["depth"], columns["alive"] = tree.depth.gather(1, above) + 1, tree.alive.gather(1, above)
    columns["parent"] = numbers(tree, slots, K).gather(1, above)
    root = Tree.root(tree.token[:, 0], tree.log_joint.dtype)
    joined = {name: torch.cat([getattr(root, name), column], 1) for name, column in columns.items()}
    return Tree(**joined, capped=tree.capped)


def parent_slots(frontier: range, drafted: TopK) -> Int[Tensor, "B F K"]:
    """Return the slots of a frontier, repeated for each of their children."""
    slots = torch.arange(frontier.start, frontier.stop, device=drafted.token.device)
    return slots[None, :, None].expand_as(drafted.token)


def numbers(tree: StaticTree, slots: Sequence[range], K: int) -> Int[Tensor, "B n"]:
    """Return, for each slot, the number of its node among all candidates; the root's is 0."""
    number, before = tree.parent * K + tree.rank, 1
    for frontier, level in pairwise(slots):
        number[:, level.start : level.stop] += before - frontier.start * K
        before += len(frontier) * K
    return torch.nn.functional.pad(number[:, 1:], (1, 0))
