"""The policy: a chain that the int4 target has generated, and the tree of one more of its rounds."""

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
from c2t.tree import Nodes, Tree

# A tree of fewer nodes and one more level, for processors that multiply int4 weights slower than they read them.
NARROW = "of=threshold:threshold=0.2,K=6,W=6,levels=4"


@dataclass(frozen=True)
class Hierarchical(WrapperPolicy):
    """Verifies what the target with int4 weights decodes in some rounds of another policy. Its chains of `rounds`
    rounds are each followed by the tree of the next round.

    With int4 weights the target reads a sixth of float32's bytes, or a third of bf16's, and nearly always chooses the
    same token. One round of the target thus commits the tokens of several rounds. The int4 target samples with the
    random numbers that the target will use. Whatever the tree is, the target samples its own tokens along it, so the
    law of the text is unchanged.
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
        """Layers of drafted nodes at most: each int4 round adds up to `policy.levels` + 1 tokens, and the target
        verifies the last tree."""
        return self.rounds * (self.policy.levels + 1) + self.policy.levels

    @property
    def size(self) -> Size:
        """See `Size`."""
        tokens, candidates = self.policy.size
        return Size(self.rounds * (self.policy.levels + 1) + tokens, candidates)

    def check_target(self, target: Any) -> None:
        """Raise InputError, with what is missing, for a target without an int4 form."""
        _ = target.quantized

    def session(self, draft: Session, rows: int, verifier: Verifier) -> Session:
        """Return a session in which the verifier's int4 target decodes with the draft; see
        `c2t.protocols.Policy`."""
        inner = super().session(draft, rows, verifier) if self.policy.levels else NoDraft()
        return QuantizedStage(inner, verifier) if verifier.live else inner

    def __call__(self, draft: Draft, root: Root) -> Tree:
        run = getattr(draft, "run_rounds", None)
        if run is None:
            raise InputError(
                "Hierarchical: the int4 target drafts in live decoding only, not where it is viewed, recorded, "
                "replayed or split over processes; choose another policy"
            )
        tokens, count, tail = run(self.policy, self.rounds)
        chain = chains(tokens, count)
        return chain if tail is None else grafted(chain, count, tail)


def grafted(chain: Tree, count: Int[Tensor, " B"], tail: Tree) -> Tree:
    """Return the chains, of count[r] tokens each, with the trees of `tail` appended: their roots are the chains' last
    tokens."""
    last = count[:, None] - 1
    nodes = tail.take(torch.arange(1, tail.size, device=last.device).expand(len(last), -1))
    parent = torch.where(nodes.parent > 0, nodes.parent + chain.size - 1, last)
    return chain.extend(replace(nodes, parent=parent, depth=nodes.depth + last), tail.capped)


def chains(tokens: Int[Tensor, "B m"], count: Int[Tensor, " B"]) -> Tree:
    """Return trees that are the chains tokens[r, :count[r]], roots first, each token of probability 1."""
    root, new = Tree.root(tokens[:, 0]), tokens[:, 1:]
    step = torch.arange(new.shape[1], device=new.device).expand_as(new)
    joint = torch.zeros_like(new, dtype=root.log_joint.dtype)
    return root.extend(Nodes.certain(new, step, step, joint, step + 1 < count[:, None]))
