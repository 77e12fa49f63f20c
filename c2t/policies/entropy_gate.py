"""A gate with hysteresis: rows draft only while the draft has been sure lately. Users of engines ask for it (llama.cpp
issue 27821, vLLM 54082, SGLang 36715)."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.errors import InputError, probability
from c2t.policies.around import Around
from c2t.policies.limits import Size
from c2t.protocols import Draft, NextTokenDistributions, Root
from c2t.storage.checked import check_fields
from c2t.tree import Tree


@dataclass(frozen=True)
class EntropyGate(Around):
    """Grows the trees of `policy` in rows whose gate is open, and none in the others.

    Each round moves a row's running mean by `share` of the way to the draft's entropy (nats) behind the row's root. The
    gate shuts when the mean is above `high`, and opens again when it is below `low`; in between it stays as it is. In a
    text's first round the mean is that round's entropy, and the gate is open unless that is above `high`.

    The proposals take the target's entropy. It is read off the draft here [choice], which knows the root already: no
    token that is not committed has a part in it, so the target's law is kept. A shut row costs the target one token and
    the draft what it takes to read that token. The mean goes over rounds, so a replay of every position by itself takes
    each position as a text's first; `high` = `low` is a gate without hysteresis.
    """

    policy: Any
    # On smollm2's harvest prompts half of the entropies are below 2.0, a quarter is above 3.1 (376 positions, T = 0).
    high: float = 3.0
    low: float = 2.0
    share: float = 0.35  # as proposed

    proposal = "ranked"
    exact = True
    bench = ("",)
    sweep = ()
    tune = ()

    def __post_init__(self):
        self.check_inner()
        if not self.policy.levels:
            kind = type(self.policy).__name__
            raise InputError(f"EntropyGate: {kind} drafts nothing: give a policy that grows trees, such as Eagle2")
        check_fields(self)
        probability(self, "share")
        if not 0 <= self.low <= self.high < math.inf:
            raise InputError(f"EntropyGate: low = {self.low} and high = {self.high} must be nats, 0 <= low <= high")

    @property
    def size(self) -> Size:
        """See `Size`."""
        return self.policy.size

    def remember(self, memory: Float[Tensor, "B 2"] | None, rows: NextTokenDistributions) -> Float[Tensor, "B 2"]:
        """Return each row's running mean and gate (1: open) from those of the round before, NaN in rows that had none
        (None: all), and the distributions behind the roots."""
        entropy = rows.entropy(None)[:, 0]
        if memory is None:
            memory = torch.full_like(entropy, math.nan)[:, None].expand(-1, 2)
        mean, was_open = memory.unbind(1)
        first = mean.isnan()
        mean = torch.where(first, entropy, mean + self.share * (entropy - mean))
        is_open = torch.where(first | (was_open == 1), mean <= self.high, mean < self.low)
        return torch.stack([mean, is_open.to(mean)], 1)

    def __call__(self, draft: Draft, root: Root) -> Tree:
        tree = Tree.root(root.token)
        rows = draft.expand(tree, torch.zeros_like(root.token)[:, None])
        memory = self.remember(None, rows) if rows.memory is None else rows.memory
        going = memory[:, 1] == 1
        if not going.any():
            return tree
        tree = self.policy(_OpenRows(draft, rows, going), root)
        return tree if going.all() else replace(tree, alive=tree.alive & (going[:, None] | (tree.depth < 0))).packed()


class _OpenRows:
    """Draft of a round whose root was expanded before, and which expands nothing more in rows that are shut."""

    def __init__(self, draft: Draft, root: NextTokenDistributions, going: Bool[Tensor, " B"]):
        self.draft, self.root, self.going = draft, root, going

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `Draft.expand`; shut rows have some slot's distribution."""
        if tree.size == 1:
            return self.root
        return self.draft.expand(tree, torch.where(self.going[:, None], slots, -1))
