"""Further columns of harvested nodes, by name: what the draft said where a node was drawn, and what the target says of
it (for decision models and for the oracle)."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.decoding import Policy, Step
from c2t.errors import InputError
from c2t.models.target import Target, TargetSession, Verified
from c2t.protocols import Draft, NextTokenDistributions, Root
from c2t.sampling import Sampling
from c2t.tree import Tree

TOP_PROBS = 10
# name -> whether the target must run on every tree
COLUMNS = {"top_probs": False, "hidden": False, "target_prob": True}


def types(names: Sequence[str], hidden: int) -> dict[str, pa.DataType]:
    """The columns as they are stored; `hidden` is the draft's hidden size. InputError for unknown names."""
    known = {
        "top_probs": pa.list_(pa.float32(), TOP_PROBS),
        "hidden": pa.list_(pa.float32(), hidden),
        "target_prob": pa.float32(),
    }
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise InputError(f"no further column is called {unknown[0]!r}; known: {', '.join(COLUMNS)}")
    return {name: known[name] for name in names}


class RecordingTarget(Target):
    """A target whose sessions keep the logits of the last trees. Steps do not carry them: they are far larger than all
    else in a round, and only a column asks for them."""

    said: Float[Tensor, "B n V"]

    def __init__(self, target: Target):
        vars(self).update(vars(target))

    def session(self) -> "RecordingTargetSession":
        return RecordingTargetSession(self)


class RecordingTargetSession(TargetSession):
    target: RecordingTarget

    def verify(self, tree: Tree) -> Verified:
        verified = super().verify(tree)
        self.target.said = verified.logits
        return verified


class RecordingPolicy:
    """A policy that also keeps what the draft said in the current round, for the columns that ask for it; `target` is
    whom to decode with, so that what the target said is known as well."""

    def __init__(self, policy: Policy, columns: Sequence[str], target: Target):
        self.policy, self.columns = policy, columns
        self.target: Target | RecordingTarget = RecordingTarget(target) if "target_prob" in columns else target
        self.proposal, self.exact, self.levels = policy.proposal, policy.exact, policy.levels

    def __call__(self, draft: Draft, root: Root) -> Tree:
        self.draft = RecordingDraft(draft, [name for name in ("top_probs", "hidden") if name in self.columns])
        return self.policy(self.draft, root)

    def of(self, step: Step, sampling: Sampling) -> dict[str, np.ndarray]:
        """The columns (B, n, ...) of the round that has just been made; NaN for nodes that the draft has not drawn."""
        tree = step.tree
        found = {name: self.draft.after(tree.parent, name) for name in self.draft.values}
        if self.proposal == "target-initialised":
            found = {name: value.masked_fill((tree.depth < 1)[..., None], torch.nan) for name, value in found.items()}
        if "target_prob" in self.columns:
            found["target_prob"] = target_prob(tree, self.target.said, sampling)
        return {name: value.float().cpu().numpy() for name, value in found.items()}


class RecordingDraft:
    """A draft that remembers its rows. A slot must keep its number until the tree is verified, which holds of the
    trees that are harvested: nothing is left out of them."""

    def __init__(self, draft: Draft, names: Sequence[str] = ()):
        self.draft = draft
        self.slots: list[Int[Tensor, "B F"]] = []
        self.values: dict[str, list[Tensor]] = {name: [] for name in names}

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        rows = self.draft.expand(tree, slots)
        self.slots.append(slots)
        read = {"top_probs": lambda: rows.top(TOP_PROBS)[1].exp(), "hidden": lambda: rows.hidden}
        for name, values in self.values.items():
            values.append(read[name]())
        return rows

    def after(self, slots: Int[Tensor, "B n"], name: str) -> Float[Tensor, "B n k"]:
        """The values of these expanded slots."""
        known = torch.cat(self.slots, 1)
        place = (slots[..., None] == known[:, None]).int().argmax(-1)
        values = torch.cat(self.values[name], 1)
        return values.gather(1, place[..., None].expand(-1, -1, values.shape[2]))


def target_prob(tree: Tree, logits: Float[Tensor, "B n V"], sampling: Sampling) -> Float[Tensor, "B n"]:
    """Probability of each node's path under the target, its processors applied; at temperature 0 under its raw
    distribution."""
    processed = sampling.process(logits.flatten(0, 1)).log_softmax(-1).reshape(logits.shape)
    above = processed.gather(1, tree.parent.clamp(min=0)[..., None].expand_as(processed))
    own = above.gather(2, tree.token[..., None])[..., 0].masked_fill(tree.parent < 0, 0.0)
    return tree.along_path(own).exp()
