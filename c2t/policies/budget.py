"""One budget of verified tokens for all requests of a batch, spent on the nodes that are most likely accepted."""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from c2t.errors import InputError, at_least_one
from c2t.policies.c2t import C2T
from c2t.policies.limits import Size
from c2t.policies.round_costs import RoundCosts, best_levels
from c2t.protocols import Draft, RecordingDraft, Root
from c2t.tree import Tree

LENGTHS = ("levels", "length")  # settings that say how deep a policy drafts


@dataclass(frozen=True)
class Budget:
    """Drafts trees by `policy`, and verifies those of their nodes, over all rows, that are most likely accepted.

    nodes: tokens verified in a round at most, of all rows together, roots included; every row keeps its root. costs:
    of rounds on this machine. With them nodes are added only while expected tokens per second rise, and drafting stops
    at the level (0: no draft at all) that pays for so many rows.

    Which tokens are verified depends on drafts and committed text only, so the target's law is kept. A row's tree
    depends on the rows beside it; its text does not.
    """

    policy: Any
    nodes: int | None = None
    costs: RoundCosts | None = None

    proposal = "ranked"
    exact = True
    bench = ()
    sweep = ()
    tune = ("",)

    def __post_init__(self):
        proposal = getattr(self.policy, "proposal", None)
        if hasattr(self.policy, "policy") or proposal != "ranked":
            what = f"has {proposal} candidates" if proposal else "is no policy"
            what = "has a policy of its own" if hasattr(self.policy, "policy") else what
            name = type(self.policy).__name__
            raise InputError(f"Budget: {name} {what}: give a policy that ranks its candidates, such as C2T or Eagle2")
        at_least_one(self, "nodes")
        if self.nodes is None and self.costs is None:
            raise InputError("Budget: give nodes, or costs that were measured on this machine")
        if self.costs is not None:
            self.costs.check()
            if len(self.costs.profile.accepted) != self.policy.levels:
                measured = len(self.costs.profile.accepted)
                raise InputError(
                    f"Budget: the costs were measured with trees of {measured} levels, and the policy drafts "
                    f"{self.policy.levels}: measure them again"
                )

    @property
    def levels(self) -> int:
        """Layers of drafted nodes at most."""
        return self.policy.levels

    @property
    def K(self) -> int:
        """Children of a node, which the vocabulary must have."""
        return getattr(self.policy, "K", 1)

    @property
    def size(self) -> Size:
        """See `Size`; a row alone may spend the whole budget."""
        tokens, candidates = self.policy.size
        return Size(min(tokens, self.nodes or tokens), candidates)

    def __call__(self, draft: Draft, root: Root) -> Tree:
        rows = len(root.token)
        policy = self.policy if self.costs is None else self._for_rows(rows)
        if policy is None:
            return Tree.root(root.token)
        seen = RecordingDraft(draft)
        tree = policy(seen, root)
        worth = torch.where(tree.alive, self.confidence(tree), -1.0)
        worth[:, 0] = -1.0  # roots are verified anyway
        # Slot by slot, so that equal nodes stand in the order of their rows' own trees, parents first.
        falling = torch.sort(worth.T.flatten(), descending=True, stable=True)
        nodes = int((worth >= 0).sum())
        most = min(nodes, max(self.nodes - rows, 0) if self.nodes else nodes)
        if self.costs is not None:
            most = self._paying(falling.values[:most], rows, seen)
        if most == nodes:
            return tree
        chosen = torch.zeros_like(worth.T.flatten(), dtype=torch.bool)
        chosen[falling.indices[:most]] = True
        chosen = chosen.unflatten(0, worth.T.shape).T.clone()
        chosen[:, 0] = True
        return replace(tree, alive=chosen).packed()

    def confidence(self, tree: Tree) -> Float[Tensor, "B n"]:
        """Return the probability that each node is accepted, as the policy knows it: its classifier's, else the joint
        probability under the draft. A node has none above its parent's, because it is not accepted without it."""
        if not isinstance(self.policy, C2T):
            return tree.log_joint.exp()  # which falls along a path as it is
        own, parent = tree.score, tree.parent.clamp(min=0)
        for _ in range(int(tree.depth.max()) + 1):
            own = torch.minimum(own, own.gather(1, parent))
        return own

    def _paying(self, worth: Float[Tensor, " m"], rows: int, drafted: RecordingDraft) -> int:
        """Return how many of these nodes, the most confident ones first, make the most of a round's time. The curve of
        costs has steps, so all numbers are looked at, not only those up to the first that does not pay."""
        widths = [int((slots >= 0).sum()) for slots in drafted.slots]
        likely = self.costs.profile.calibration.at(worth.detach().double().cpu().numpy())
        tokens = rows + np.concatenate([[0.0], likely.cumsum()])
        seconds = self.costs.seconds(rows, widths, rows + np.arange(len(worth) + 1))
        return int(np.argmax(tokens / seconds))

    def _for_rows(self, rows: int) -> Any:
        """The policy that drafts as many levels as pay for so many rows, None for none; looked up where known."""
        if rows not in self._known:
            self._known[rows] = self.of_levels[best_levels(self.costs, rows)]
        return self._known[rows]

    @cached_property
    def _known(self) -> dict[int, Any]:
        return {}

    @cached_property
    def of_levels(self) -> list[Any]:
        """The policy by the number of levels that it may draft; None drafts nothing. A policy of fixed depth drafts
        all levels or none."""
        name = next((field.name for field in fields(self.policy) if field.name in LENGTHS), None)
        shorter = [replace(self.policy, **{name: n}) if name else self.policy for n in range(1, self.levels + 1)]
        return [None, *shorter]
