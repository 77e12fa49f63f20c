"""A layered policy as a static plan, by which a draft grows trees without a call of the policy after every level.

On a CPU the plan runs as one fused call in C (`c2t.kernels.draft_phase`), on a GPU in fixed shapes
(`c2t.cuda_graphs.draft`).
"""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from c2t.kernels.network import Network
from c2t.kernels.select import SelectLimits

Branching = Callable[[Float[Tensor, "..."]], Int[Tensor, "..."]]  # entropies -> numbers of children


class LevelPlan(NamedTuple):
    """A static plan of a policy: K candidates per frontier node; the `width` best of a level within `limits` are
    expanded.

    M: entropy is over the M most probable tokens (None: all; 0: not computed). network: its confidence ranks candidates
    (None: the joint probability does). branching: number of candidates per node, up to K (None: K). reranked: all
    candidates join, and the final tree has this many of the most probable ones, root included (EAGLE-2).
    """

    K: int
    width: int
    levels: int
    limits: SelectLimits = SelectLimits(0.0)
    M: int | None = 0
    network: Network | None = None
    branching: Branching | None = None
    reranked: int | None = None
