"""Verification: which drafted tokens the target accepts.

Target-only rule (EntropyTree, Algorithm 1; the law of EAGLE's sequential rule): the target draws its own next token. If
a child of the current node holds it, descend; else it is the round's bonus token. Greedy is the case T = 0. The target
draws by random numbers that belong to the positions of the text (`c2t.sampling`), so its tokens are the same whatever
the tree holds, and every tree keeps its law; a tree may even be grown with these numbers (`c2t.sessions.coupled`).

Residual rule (DySpec, Algorithm 3; SpecInfer): for children that were sampled from the draft. Each one is accepted with
probability min(1, R[y] / D[y]); a rejection leaves the residual R <- norm(max(R - D, 0)) to its siblings and, if all
fail, to the bonus token. Lossless only if the children were really drawn from D, so ranked trees are refused.

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
TINY = 1e-300  # keeps an empty distribution at zero where nothing is left to offer


class Accepted(NamedTuple):
    """Accepted path of each row.

    slots: root first, -1 beyond the path. length: drafted tokens on it. bonus: the token that the target adds, the next
    root. agreed: for a longest fork, the nodes of all forks that would have been accepted if their fork had been kept.
    """

    slots: Int[Tensor, "B m"]
    length: Int[Tensor, " B"]
    bonus: Int[Tensor, " B"]
    agreed: Bool[Tensor, "B n"] | None = None


def target_only(tree: Tree, choose: Choose) -> Accepted:
    """Walk from the root along the target's choices; return the accepted path.

    choose(rows, slots): the target's next token after one slot of each of these rows. It is called along the path only,
    root first, for the rows that go on.
    """
    slot = torch.zeros_like(tree.token[:, 0])
    token = choose(torch.arange(len(slot), device=slot.device), slot)
    path = [slot]
    while True:
        child = tree.child(slot, token)  # -1 in a row that has ended, each time again
        going = (child >= 0).nonzero()[:, 0]
        if not len(going):
            break
        path.append(child)
        slot = torch.where(child >= 0, child, slot)
        token = token.index_copy(0, going, choose(going, child[going]))
    slots = torch.stack(path, 1)
    return Accepted(slots, (slots >= 0).sum(1) - 1, token)


def residual(
    tree: Tree,
    target: Callable[[Int[Tensor, " B"]], Float[Tensor, "B V"]],
    uniform: Callable[[Int[Tensor, " B"], int], Float[Tensor, " B"]],
) -> Accepted:
    """Walk from the root, offering each node's sampled children in the order in which they were drawn; return the
    accepted path.

    target(slots): the target's processed probabilities (float64) after these slots, called along the path as in
    `target_only`. uniform(slots, number): uniforms for decision `number` (1, 2, ...) at these slots; 0 is for the bonus
    token. Children drawn independently leave D as it is, so a token drawn twice is tried twice; drawn without
    replacement, a rejected token leaves D.
    """
    if tree.drawn is None:
        raise InputError(
            "the residual rule needs a tree of sampled candidates; verify ranked trees by the target alone"
        )
    slot = torch.zeros_like(tree.token[:, 0])
    bonus, going = torch.full_like(slot, -1), torch.ones_like(slot, dtype=torch.bool)
    path = [slot]
    while True:
        child, rest = _try_children(tree, slot, target(slot), uniform)
        ending = going & (child < 0)
        bonus = torch.where(ending, invert(rest, uniform(slot, 0)[:, None])[:, 0], bonus)
        going = going & (child >= 0)
        if not going.any():
            break
        slot = torch.where(going, child, slot)
        path.append(torch.where(going, slot, -1))
    slots = torch.stack(path, 1)
    return Accepted(slots, (slots >= 0).sum(1) - 1, bonus)


def _try_children(
    tree: Tree, slot: Int[Tensor, " B"], rest: Float[Tensor, "B V"], uniform: Callable
) -> tuple[Int[Tensor, " B"], Float[Tensor, "B V"]]:
    """Return the first child of each row's slot that is accepted (-1: none), and the distribution that is left."""
    drawn = tree.drawn
    row = drawn.row.gather(1, slot[:, None])
    draft = drawn.log_probs.gather(1, row.clamp(min=0)[..., None].expand(-1, 1, rest.shape[1]))[:, 0].double().exp()
    draft = draft / draft.sum(1, keepdim=True)  # float32 log-probabilities sum to 1 only nearly
    accepted = torch.full_like(slot, -1)
    offered = (tree.parent == slot[:, None]) & (row >= 0)
    for rank in range(int(tree.rank.max()) + 1):
        candidate = offered & (tree.rank == rank)
        real = candidate.any(1) & (accepted < 0)
        if not real.any():
            break
        token = tree.token.gather(1, candidate.int().argmax(1, keepdim=True))
        ratio = rest.gather(1, token) / draft.gather(1, token)
        passed = real & (uniform(slot, rank + 1) < ratio[:, 0])
        # A token drawn again is dead; the target verified its twin.
        accepted = torch.where(passed, tree.child(slot, token[:, 0]), accepted)
        rejected = (real & ~passed)[:, None]
        left = (rest - draft).clamp(min=0)
        some = left.sum(1, keepdim=True)
        # Nothing is left only where D is R up to rounding, and then the rejection was rounding too.
        rest = torch.where(rejected & (some > 0), left / some.clamp(min=TINY), rest)
        if not drawn.independent:
            without = draft.scatter(1, token, 0.0)
            draft = torch.where(rejected, without / without.sum(1, keepdim=True).clamp(min=TINY), draft)
    return accepted, rest
