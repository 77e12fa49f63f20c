"""Verification: which drafted tokens the target accepts.

Target-only rule (EntropyTree, Algorithm 1; the same distribution as EAGLE's sequential rule): the target samples its
own next token. If a child of the current node holds this token, the walk descends to that child. If none does, the
token is the round's bonus token. Greedy decoding is the case T = 0. The target's random numbers depend on the positions
of the text only (`c2t.sampling`), so its tokens are the same for every tree. A tree may therefore be grown with these
numbers (`c2t.sessions.coupled`).

Residual rule (DySpec, Algorithm 3; SpecInfer): for children that were sampled from the draft's distribution D. With the
target's distribution R, child y is accepted with probability min(1, R[y] / D[y]). After a rejection R becomes the
residual norm(max(R - D, 0)) for the siblings and, if all are rejected, for the bonus token. The rule is lossless only
if the children were sampled from D, so it refuses ranked trees. Children of a slot without D, such as the tokens that a
constraint forces, are accepted by the target-only rule.

The third rule, MCSD+'s longest fork, is in `c2t.policies.mcsd_plus`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.errors import InputError
from c2t.sampling import invert
from c2t.tree import Tree

Choose = Callable[[Int[Tensor, " b"], Int[Tensor, " b"]], Int[Tensor, " b"]]  # rows, their slots -> tokens
TINY = 1e-300  # keeps an empty distribution at 0, where 0 / 0 would be NaN


class Accepted(NamedTuple):
    """The accepted path of each row.

    slots: root first, then -1 after the end. length: drafted tokens on the path. bonus: the target's next token after
    the path, which is the next root. agreed: under the longest-fork rule, the nodes that agree with the target in any
    fork, the discarded forks included.
    """

    slots: Int[Tensor, "B m"]
    length: Int[Tensor, " B"]
    bonus: Int[Tensor, " B"]
    agreed: Bool[Tensor, "B n"] | None = None


def target_only(tree: Tree, choose: Choose) -> Accepted:
    """Walk from the root along the target's choices; return the accepted path.

    choose(rows, slots): returns the target's next token after one slot of each of these rows. It is called once per
    depth, root first, for the rows whose walk continues.
    """
    slot = torch.zeros_like(tree.token[:, 0])
    token = choose(torch.arange(len(slot), device=slot.device), slot)
    path = [slot]
    while True:
        child = tree.child(slot, token)  # stays -1 in a row whose walk has ended
        active = (child >= 0).nonzero()[:, 0]
        if not len(active):
            break
        path.append(child)
        slot = torch.where(child >= 0, child, slot)
        token = token.index_copy(0, active, choose(active, child[active]))
    slots = torch.stack(path, 1)
    return Accepted(slots, (slots >= 0).sum(1) - 1, token)


def residual(
    tree: Tree,
    target: Callable[[Int[Tensor, " B"]], Float[Tensor, "B V"]],
    uniform: Callable[[Int[Tensor, " B"], int], Float[Tensor, " B"]],
) -> Accepted:
    """Walk from the root by the residual rule, trying children in the order of their ranks; return the accepted path.

    target(slots): returns the target's processed probabilities (float64) after these slots. It is called once per
    depth. uniform(slots, number): returns uniform random numbers at these slots, number 0 for the bonus token and 1, 2,
    ... for the children. A rejected token leaves D if children were sampled without replacement; with replacement D
    stays the same, and a token that was sampled twice is tried twice. Raises InputError for a tree without `proposals`.
    """
    if tree.proposals is None:
        raise InputError(
            "the residual rule needs a tree of sampled candidates; verify ranked trees by the target alone"
        )
    slot = torch.zeros_like(tree.token[:, 0])
    bonus, active = torch.full_like(slot, -1), torch.ones_like(slot, dtype=torch.bool)
    path = [slot]
    while True:
        child, remaining = _try_children(tree, slot, target(slot), uniform)
        rejected = active & (child < 0)
        bonus = torch.where(rejected, invert(remaining, uniform(slot, 0)[:, None])[:, 0], bonus)
        sampled = tree.proposals.row.gather(1, slot[:, None])[:, 0] >= 0
        child = torch.where(rejected & ~sampled, tree.child(slot, bonus), child)
        active = active & (child >= 0)
        if not active.any():
            break
        slot = torch.where(active, child, slot)
        path.append(torch.where(active, slot, -1))
    slots = torch.stack(path, 1)
    return Accepted(slots, (slots >= 0).sum(1) - 1, bonus)


def _try_children(
    tree: Tree, slot: Int[Tensor, " B"], remaining: Float[Tensor, "B V"], uniform: Callable
) -> tuple[Int[Tensor, " B"], Float[Tensor, "B V"]]:
    """Return the first accepted child of each row's slot (-1: none), and the residual distribution."""
    proposals = tree.proposals
    row = proposals.row.gather(1, slot[:, None])
    rows = row.clamp(min=0)[..., None].expand(-1, 1, remaining.shape[1])
    draft = proposals.log_probs.gather(1, rows)[:, 0].double().exp()
    draft = draft / draft.sum(1, keepdim=True)  # float32 probabilities sum to 1 only approximately
    accepted = torch.full_like(slot, -1)
    offered = (tree.parent == slot[:, None]) & (row >= 0)
    for rank in range(int(tree.rank.max()) + 1):
        candidate = offered & (tree.rank == rank)
        real = candidate.any(1) & (accepted < 0)
        if not real.any():
            break
        token = tree.token.gather(1, candidate.int().argmax(1, keepdim=True))
        ratio = remaining.gather(1, token) / draft.gather(1, token)
        passed = real & (uniform(slot, rank + 1) < ratio[:, 0])
        # A repeated token is a dead slot; the target has verified its twin.
        accepted = torch.where(passed, tree.child(slot, token[:, 0]), accepted)
        rejected = (real & ~passed)[:, None]
        residue = (remaining - draft).clamp(min=0)
        mass = residue.sum(1, keepdim=True)
        # The residue is empty only where D equals R up to rounding, and then the rejection was rounding too.
        remaining = torch.where(rejected & (mass > 0), residue / mass.clamp(min=TINY), remaining)
        if not proposals.independent:
            without = draft.scatter(1, token, 0.0)
            draft = torch.where(rejected, without / without.sum(1, keepdim=True).clamp(min=TINY), draft)
    return accepted, remaining
