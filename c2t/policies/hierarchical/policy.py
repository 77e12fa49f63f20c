"""The policy: a chain that the target in 4 bits has generated, and the tree of one more of its rounds."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from c2t.decoding import Verifier
from c2t.errors import InputError, at_least_one
from c2t.policies.hierarchical.session import QuantizedStage
from c2t.policies.limits import Size, check_size
from c2t.policies.wrapper import WrapperPolicy
from c2t.protocols import Draft, Root, Session
from c2t.sessions.stateless import NoDraft
from c2t.storage.checked import check_fields
from c2t.tree import Tree

ONLY = (
    "a target rehearses while it decodes, and not where it is viewed, recorded, replayed or split over processes; "
    "choose another policy"
)


# A tree of fewer nodes and one more level, for processors that multiply weights of 4 bits slower than they read them.
NARROW = "of=threshold:threshold=0.2,K=6,W=6,levels=4"


@dataclass(frozen=True)
class Hierarchical(WrapperPolicy):
    """Chains that the target in 4 bits has written, in so many `rounds` of its own with the trees of `policy`, and
    behind each chain the tree that the next round would have had.

    In 4 bits it reads a sixth of float32's bytes, or a third of bf16's, and chooses nearly always what the target
    chooses, so that a round of the target commits what several rounds have found. A rehearsal draws with the random
    numbers that the target will draw with. But whatever the tree is, the target draws its own tokens along it, and its
    law is kept.
    """

    policy: Any
    rounds: int = 3

    proposal = "ranked"
    exact = True
    live_only = True  # no replay, no recording
    bench = ()
    sweep = ()
    tune = ("rounds=2", "", "rounds=4", f"rounds=2,{NARROW}", NARROW)

    def __post_init__(self):
        self.check_inner()
        check_fields(self)
        at_least_one(self, "rounds")
        check_size(self)

    @property
    def levels(self) -> int:
        """Layers of drafted nodes at most: each round writes a token more than its tree has levels, and the last tree
        is left to the target."""
        return self.rounds * (self.policy.levels + 1) + self.policy.levels

    @property
    def size(self) -> Size:
        """See `Size`."""
        tokens, candidates = self.policy.size
        return Size(self.rounds * (self.policy.levels + 1) + tokens, candidates)

    def check_target(self, target: Any) -> None:
        """Raise InputError unless this target has a form in 4 bits, which says what is missing."""
        _ = target.quantized

    def session(self, draft: Session, rows: int, verifier: Verifier) -> Session:
        """Return a session in which the verifier's target decodes in 4 bits with the draft's; see
        `c2t.protocols.Policy`."""
        inner = super().session(draft, rows, verifier) if self.policy.levels else NoDraft()
        return QuantizedStage(inner, verifier) if verifier.live else inner

    def __call__(self, draft: Draft, root: Root) -> Tree:
        run = getattr(draft, "run_rounds", None)
        if run is None:
            raise InputError(f"Hierarchical: {ONLY}")
        tokens, count, tail = run(self.policy, self.rounds)
        chain = chains(tokens, count)
        return chain if tail is None else grafted(chain, count, tail)


def grafted(chain: Tree, count: Int[Tensor, " B"], tail: Tree) -> Tree:
    """Return the chains, of count[r] tokens each, with the nodes of the trees behind them that their last tokens are
    the roots of."""
    last = count[:, None] - 1
    nodes = tail.take(torch.arange(1, tail.size, device=last.device).expand(len(last), -1))
    parent = torch.where(nodes.parent > 0, nodes.parent + chain.size - 1, last)
    return chain.extend(replace(nodes, parent=parent, depth=nodes.depth + last), tail.capped)


def chains(tokens: Int[Tensor, "B m"], count: Int[Tensor, " B"]) -> Tree:
    """Return trees that are the chains tokens[r, :count[r]], roots first, and certain of each token."""
    step = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    root = Tree.root(tokens[:, 0])
    certain, entropy = (column.expand(-1, tokens.shape[1]) for column in (root.log_prob, root.entropy))
    return Tree(
        token=tokens,
        parent=step - 1,
        depth=step - 1,
        rank=torch.zeros_like(step),
        log_prob=certain,
        log_joint=certain,
        entropy=entropy,
        max_log_prob=certain,
        score=certain.exp(),
        alive=step < count[:, None],
        capped=root.capped,
    )
