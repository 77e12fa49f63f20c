"""The policy: forks of the target's candidates, continued by the draft (MCSD+, section 3)."""

from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.classifier import TreeClassifier
from c2t.decoding import Verifier
from c2t.errors import InputError, at_least_one, from_zero, probability
from c2t.kernels.features import DERIVED
from c2t.policies.limits import Size, check_size
from c2t.policies.mcsd_plus.forks import ForkSession
from c2t.protocols import Draft, NextTokenDistributions, Root, Session
from c2t.sessions.wrapped import find
from c2t.storage.checked import check_fields
from c2t.tree import Nodes, Tree


class Drafted(NamedTuple):
    """The columns that a decision model can read, of the F nodes of a level."""

    log_joint: Float[Tensor, "B F"]
    entropy: Float[Tensor, "B F"]
    depth: Int[Tensor, "B F"]
    top_probs: Float[Tensor, "B F k"]
    hidden: Float[Tensor, "B F H"] | None


@dataclass(frozen=True)
class MCSDPlus:
    """Chains of the draft under W tokens that the target samples after the root. The latter (section 3.1) are each
    continued by the draft's most probable tokens, up to D times: a fork of W (1 + D) nodes, in which chains never
    branch.

    decision: a network that predicts if the target will accept a drafted token (section 3.3). Drafting of a tree ends
    with the level on which all forks are below `threshold`. M: entropy over the M most probable tokens
    (0: not computed; a decision model brings its own).

    Choices. The W tokens differ (sampled without replacement); at T = 0 they are the target's W most probable. Chains
    are the draft's most probable tokens, verified by the target's samples at every T; at T > 0 the paper samples them
    and verifies by min(1, p/q). joint_prob starts after the first token, which the target has proposed.
    """

    W: int = 16
    D: int = 5
    decision: TreeClassifier | None = None
    threshold: float = 0.4
    M: int | None = 0

    proposal = "target-initialised"
    exact = False
    bench = ("",)
    sweep = ()
    tune = ()

    def __post_init__(self):
        check_fields(self)
        at_least_one(self, "W", "D")
        probability(self, "threshold")
        from_zero(self, "M")
        check_size(self)
        foreign = [name for name in self.decision.config.features if name in DERIVED] if self.decision else []
        if foreign:
            raise InputError(
                f"MCSDPlus: the decision model reads {', '.join(foreign)}, which forks do not have: train one by "
                "c2t train --model mcsd-topk"
            )

    @property
    def size(self) -> Size:
        """See `Size`."""
        return Size(1 + self.W * (1 + self.D), self.W)

    @property
    def levels(self) -> int:
        """Layers of nodes at most; the first is the target's."""
        return 1 + self.D

    @property
    def draft_length(self) -> int:
        """Drafted tokens on a path at most; alpha is tau as a share of it."""
        return self.D

    def session(self, draft: Session, rows: int, verifier: Verifier) -> Session:
        """Return a session that has the target's candidates where the target runs; see `c2t.protocols.Policy`."""
        return ForkSession(draft, verifier) if verifier.live else draft

    def __call__(self, draft: Draft, root: Root) -> Tree:
        target = find(draft, ForkSession)
        if target is None:
            raise InputError("mcsd+ cannot be replayed: its trees start from the target's candidates")
        first, M = target.successors(self.W), self.M if self.decision is None else self.decision.config.M
        forks = torch.arange(first.shape[1], device=first.device)
        tree, frontier = Tree.root(root.token), torch.zeros_like(root.token)[:, None]
        draft.expand(tree, frontier)  # reads the root; the target gives its successors
        certain, unknown = torch.zeros_like(first[:, None], dtype=tree.log_joint.dtype), tree.entropy
        level = replace(tree.children(frontier, first.clamp(min=0)[:, None], certain, unknown), alive=first >= 0)
        growing = torch.ones_like(root.token, dtype=torch.bool)
        for _ in range(self.D):
            frontier = torch.where(growing[:, None] & level.alive, tree.size + forks, -1)
            tree = tree.extend(level)
            rows = draft.expand(tree, frontier)
            level = tree.children(frontier, *rows.topk_entropy(1, M))
            if self.decision is not None:
                growing = growing & self._accepting(level, rows)
            if not growing.any():
                break
        tree = tree.extend(level).packed()
        whole = len(forks) == self.W and bool((first >= 0).all())
        return replace(tree, mask=topology(self.W, self.D, first.device)[: tree.size, : tree.size]) if whole else tree

    def _accepting(self, level: Nodes, rows: NextTokenDistributions) -> Bool[Tensor, " B"]:
        """Return the rows in which the decision model expects at least one fork to be accepted."""
        top = rows.top(self.decision.config.widths.get("top_probs", 1))[1].exp()
        confidence = self.decision(Drafted(level.log_joint, level.entropy, level.depth, top, rows.hidden))
        return (level.alive & (confidence >= self.threshold)).any(1)


@cache
def topology(W: int, D: int, device: torch.device) -> Bool[Tensor, "n n"]:
    """Return the ancestor mask of the root and W forks of 1 + D nodes in depth-major order, built once. Its upper left
    part of 1 + W (1 + d) slots is the mask of the fork that stopped after d drafted levels (section 3.2)."""
    slot = torch.arange(W * (1 + D), device=device)
    same_fork = slot[:, None] % W == slot % W
    mask = torch.ones(1 + len(slot), 1 + len(slot), dtype=torch.bool, device=device).tril()
    mask[1:, 1:] &= same_fork
    return mask
