"""EntropyTree (EntropyTree, section 3): the entropy of a node's next-token distribution decides how many children it
gets."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.errors import InputError, at_least_one
from c2t.kernels.level_plan import Branching, LevelPlan
from c2t.kernels.select import SelectLimits
from c2t.policies.growth import LevelSelection, grow
from c2t.policies.limits import Size, check_size, grown
from c2t.protocols import Draft, Root
from c2t.storage.checked import check_fields
from c2t.tree import Nodes, Tree


def published(entropy: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Return B(H) of section 4: 1 below 0.02 nats, 2 below 1, then min(ceil(4 H), 7)."""
    wide = (4 * entropy).ceil().clamp(max=7)
    return torch.where(entropy < 0.02, 1, torch.where(entropy < 1, 2, wide)).long()


def static(entropy: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Return 2 always: the paper's static tree."""
    return torch.full_like(entropy, 2).long()


def early_stop(entropy: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Return the widths of a chain that ends where the entropy exceeds 1 (section 3.1)."""
    return torch.where(entropy > 1, 0, 1).long()


def naive_width(entropy: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Return the widths of a chain whose last token, drafted at an entropy above 1, has 4 alternatives (section 3.1)
    [choice of 4]. Use with `leaf_above=1`."""
    return torch.where(entropy > 1, 4, 1).long()


def dynamic_depth(entropy: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Return B(H) with 0 children above 2 nats: dynamic width and depth (section 3.3) [choice of 2]."""
    return torch.where(entropy > 2, 0, published(entropy))


BRANCHING: dict[str, Branching] = {
    rule.__name__: rule for rule in (published, static, early_stop, naive_width, dynamic_depth)
}


@dataclass(frozen=True)
class EntropyTree:
    """Sets the number of children by the entropy of the distribution. `branching` maps entropies (whole vocabulary,
    temperature 1 [choice]) to numbers of children, at most K: one of BRANCHING by name, or any function of entropy.
    Children drafted at an entropy above `leaf_above` are not expanded."""

    branching: str | Branching = "published"
    levels: int = 4
    leaf_above: float = float("inf")
    K: int = 7
    max_width: int = 64
    max_nodes: int = 1024

    proposal = "ranked"
    exact = True
    bench = (
        "",
        "branching=static",
        "branching=early_stop,levels=10",
        "branching=naive_width,leaf_above=1,levels=10",
        "branching=dynamic_depth,levels=10",
    )
    sweep = ("levels=1|2|3|4",)
    tune = ()

    def __post_init__(self):
        check_fields(self)
        at_least_one(self, "levels", "K", "max_width", "max_nodes")
        check_size(self)
        if not self.leaf_above >= 0:
            raise InputError(f"EntropyTree: leaf_above = {self.leaf_above} must be an entropy in nats, at least 0")
        if isinstance(self.branching, str) and self.branching not in BRANCHING:
            raise InputError(f"EntropyTree: no branching is called {self.branching!r}; known: {', '.join(BRANCHING)}")

    @property
    def size(self) -> Size:
        """See `Size`."""
        return grown(self.K, self.max_width, self.levels, self.max_nodes)

    def __call__(self, draft: Draft, root: Root) -> Tree:
        branching = self._branching

        def certain(children: Nodes, _parent_score: Tensor) -> LevelSelection:
            alive = children.rank < branching(children.entropy)
            return LevelSelection(children.log_joint, alive, children.entropy <= self.leaf_above)

        return grow(
            draft,
            root,
            certain,
            K=self.K,
            levels=self.levels,
            M=None,
            width=self.max_width,
            max_nodes=self.max_nodes,
        )

    @property
    def level_plan(self) -> LevelPlan | None:
        """Return the static plan of the policy; None where `leaf_above` stops some nodes."""
        if self.leaf_above != float("inf"):
            return None
        limits = SelectLimits(0.0, self.max_nodes, strict=True)
        return LevelPlan(self.K, self.max_width, self.levels, limits, M=None, branching=self._branching)

    @property
    def _branching(self) -> Branching:
        return BRANCHING[self.branching] if isinstance(self.branching, str) else self.branching
