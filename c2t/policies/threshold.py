"""Joint-probability threshold: C2T's loop with the joint probability as confidence, the sceptic's first baseline."""

from dataclasses import dataclass

from torch import Tensor

from c2t.errors import at_least_one, probability
from c2t.kernels.level_plan import LevelPlan
from c2t.kernels.select import SelectLimits
from c2t.policies.growth import LevelSelection, grow, try_fused
from c2t.policies.limits import Size, check_size, grown
from c2t.protocols import Draft, Root
from c2t.storage.checked import check_fields
from c2t.tree import Nodes, Tree


@dataclass(frozen=True)
class JointThreshold:
    """Keeps a child if its joint probability is at least `threshold`. K, W and levels are those of C2T."""

    threshold: float = 0.02
    K: int = 15
    W: int | None = 15
    levels: int = 10
    max_width: int = 64
    max_nodes: int = 1024

    proposal = "ranked"
    exact = True
    bench = ("",)
    sweep = ("threshold=0.2|0.1|0.05|0.02|0.01|0.005|0.002|0.001",)
    tune = (
        *("threshold=0.05", "threshold=0.02"),
        *("threshold=0.1,K=6,W=6,levels=2", "threshold=0.1,K=6,W=6,levels=3", "threshold=0.05,K=6,W=6,levels=3"),
        *("threshold=0.05,K=6,W=6,levels=5", "threshold=0.03,K=8,W=8,levels=5", "threshold=0.03,K=8,W=8,levels=7"),
    )

    def __post_init__(self):
        check_fields(self)
        at_least_one(self, "K", "W", "levels", "max_width", "max_nodes")
        probability(self, "threshold")
        check_size(self)

    @property
    def size(self) -> Size:
        """See `Size`."""
        return grown(self.K, self.W or self.max_width, self.levels, self.max_nodes)

    def __call__(self, draft: Draft, root: Root) -> Tree:
        if (tree := try_fused(draft, root, self.level_plan)) is not None:
            return tree

        def probable(children: Nodes, _parent_score: Tensor) -> LevelSelection:
            return LevelSelection(children.log_joint, children.log_joint.exp() >= self.threshold)

        return grow(
            draft,
            root,
            probable,
            K=self.K,
            levels=self.levels,
            width=self.W or self.max_width,
            max_nodes=self.max_nodes,
            strict=self.W is None,
        )

    @property
    def level_plan(self) -> LevelPlan:
        """Return the static plan of the policy."""
        limits = SelectLimits(self.threshold, self.max_nodes, strict=self.W is None)
        return LevelPlan(self.K, self.W or self.max_width, self.levels, limits)
