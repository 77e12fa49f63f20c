"""C2T (C2T, Algorithm 1): grow level by level, keep a child only if the classifier trusts it with at least beta."""

import warnings
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from c2t.classifier import CONDITIONAL, TreeClassifier
from c2t.errors import InputError, at_least_one, from_zero, short_repr
from c2t.kernels.features import WIDE
from c2t.kernels.level_plan import LevelPlan
from c2t.kernels.select import SelectLimits
from c2t.policies.growth import LevelSelection, grow, try_fused
from c2t.policies.limits import Size, check_size, grown
from c2t.protocols import Draft, Root
from c2t.storage.checked import check_fields
from c2t.tree import Nodes, Tree


@dataclass(frozen=True)
class C2T:
    """Keeps a child if the classifier's confidence is at least `beta`. The K most probable children of each frontier
    node are classified (first top-K); the W most confident of a level survive (second top-K; None is the paper's naive
    variant, capped at max_width) and form the next frontier. K = W = 1 is the paper's chain mode.

    beta: default None, what the classifier recommends. M: entropy over the M most probable tokens (default: what it was
    trained with). Not in the paper: with a conditional classifier (label "accepted_given_parent") a node's confidence
    is the product along its path.
    """

    classifier: TreeClassifier
    beta: float | None = None
    K: int = 15
    W: int | None = 15
    levels: int = 10
    M: int | Literal["trained"] | None = "trained"
    max_width: int = 64
    max_nodes: int = 1024

    proposal = "ranked"
    exact = True
    bench = ("K=1,W=1", "", "W=none")
    sweep = ("beta=0.9|0.8|0.65|0.5|0.3|0.2|0.1|0.05|0.02",)
    tune = (
        *("beta=0.7", "beta=0.5", "beta=0.3", "beta=0.1", "beta=0.3,levels=3", "beta=0.1,levels=3"),
        *("beta=0.6,K=6,W=6,levels=2", "beta=0.5,K=6,W=6,levels=3", "beta=0.3,K=6,W=6,levels=3"),
    )

    def __post_init__(self):
        if not isinstance(self.classifier, TreeClassifier):
            raise InputError(
                f"C2T: {short_repr(self.classifier)} is no classifier: load one by TreeClassifier.from_pretrained"
            )
        check_fields(self)
        at_least_one(self, "K", "W", "levels", "max_width", "max_nodes")
        check_size(self)
        if self.beta is None:
            # Frozen dataclasses have no other way to a default that depends on another field.
            object.__setattr__(self, "beta", self.classifier.config.beta)
        if not 0 < self.beta < 1:
            raise InputError(f"C2T: beta = {self.beta} must be between 0 and 1, both excluded")
        if foreign := [name for name in self.classifier.config.features if name in WIDE]:
            raise InputError(
                f"C2T: the classifier reads {', '.join(foreign)}: it decides for mcsd+ when to stop drafting"
            )
        if self.M != "trained":
            from_zero(self, "M")
        trained = self.classifier.config.M
        if self.M not in ("trained", trained):
            warnings.warn(f"C2T: entropy over M = {self.M}, the classifier was trained with {trained}", stacklevel=3)

    @property
    def size(self) -> Size:
        """See `Size`."""
        return grown(self.K, self.W or self.max_width, self.levels, self.max_nodes)

    def __call__(self, draft: Draft, root: Root) -> Tree:
        if (tree := try_fused(draft, root, self.level_plan)) is not None:
            return tree

        def confident(children: Nodes, parent_score: Tensor) -> LevelSelection:
            confidence = self.confidence(children, parent_score)
            return LevelSelection(confidence, confidence >= self.beta)

        return grow(
            draft,
            root,
            confident,
            K=self.K,
            levels=self.levels,
            M=self._entropy_over,
            width=self.W or self.max_width,
            max_nodes=self.max_nodes,
            strict=self.W is None,
        )

    def confidence(self, children: Nodes, parent_score: Tensor) -> Tensor:
        """Return the numbers (B, n) that are compared with beta; parent_score (B, n) are those of the parents."""
        confidence = self.classifier(children)
        return confidence * parent_score if self.classifier.config.label == CONDITIONAL else confidence

    @property
    def level_plan(self) -> LevelPlan | None:
        """Return the static plan of the policy; None for a classifier that is no `Network`, and for a subclass with
        another `confidence`."""
        if (network := self.classifier.network) is None or type(self).confidence is not C2T.confidence:
            return None
        limits = SelectLimits(self.beta, self.max_nodes, strict=self.W is None)
        return LevelPlan(self.K, self.W or self.max_width, self.levels, limits, self._entropy_over, network)

    @property
    def _entropy_over(self) -> int | None:
        return self.classifier.config.M if self.M == "trained" else self.M
