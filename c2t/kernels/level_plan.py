"""A layered policy as numbers, by which a draft can grow its trees without asking it after every level: in one call in
C on a CPU (`c2t.kernels.draft_phase`), in fixed shapes on a GPU (`c2t.cuda_graphs.draft`)."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from c2t.kernels.network import Network
from c2t.kernels.select import SelectLimits

Branching = Callable[[Float[Tensor, "..."]], Int[Tensor, "..."]]  # entropies -> numbers of children


class LevelPlan(NamedTuple):
    """A policy as numbers: K candidates per frontier node, of which the `width` best of a level, among those within
    `limits`, are expanded.

    M: entropy over the M most probable tokens (None: all; 0: not computed). network: whose confidence ranks candidates
    (None: the joint probability). branching: how many of the K candidates there are. reranked: all candidates join, and
    the tree is the so many most probable of them, root included (EAGLE-2).
    """

    K: int
    width: int
    levels: int
    limits: SelectLimits = SelectLimits(0.0)
    M: int | None = 0
    network: Network | None = None
    branching: Branching | None = None
    reranked: int | None = None
