"""Sampled trees of a static configuration (k1, k2, ...): every node of level i - 1 gets ki children.

The sampled chain of standard speculative sampling (1, 1, ...), SpecInfer's independent siblings, and MCSD's siblings
sampled without replacement (MCSD+, section 4.1).
"""

from dataclasses import dataclass

import torch

from c2t.errors import InputError, at_least_one
from c2t.policies.limits import Size, check_size, product_tree
from c2t.policies.sampled import check_temperature, sample_children
from c2t.protocols import Draft, Root
from c2t.storage.checked import check_fields
from c2t.tree import Tree


@dataclass(frozen=True)
class SampledChain:
    """Standard speculative sampling: a chain of `length` tokens, sampled from the draft at `temperature`."""

    length: int = 5
    temperature: float = 1.0

    proposal = "sampled"
    exact = True
    bench = ("",)
    sweep = ()
    tune = ()

    def __post_init__(self):
        check_fields(self)
        at_least_one(self, "length")
        check_temperature(self)
        check_size(self)

    @property
    def size(self) -> Size:
        """See `Size`."""
        return Size(1 + self.length, 1)

    @property
    def levels(self) -> int:
        """Layers of drafted nodes at most."""
        return self.length

    draft_length = levels  # alpha is tau as a share of it

    def __call__(self, draft: Draft, root: Root) -> Tree:
        return grow_config(draft, root, (1,) * self.length, self.temperature, independent=True)


@dataclass(frozen=True)
class SpecInfer:
    """SpecInfer's tree of a configuration: ki children on level i, sampled independently. So a token can be sampled
    twice; it is verified once and offered twice."""

    config: tuple[int, ...] = (4, 2, 2, 1, 1)
    temperature: float = 1.0

    proposal = "sampled"
    exact = True
    bench = ("",)
    sweep = ()
    tune = ()
    independent = True

    def __post_init__(self):
        check_fields(self)
        check_config(self)
        check_temperature(self)
        check_size(self)

    @property
    def size(self) -> Size:
        """See `Size`."""
        tokens = product_tree(self.config)
        return Size(tokens, tokens)

    @property
    def levels(self) -> int:
        """Layers of drafted nodes at most."""
        return len(self.config)

    draft_length = levels  # alpha is tau as a share of it

    def __call__(self, draft: Draft, root: Root) -> Tree:
        return grow_config(draft, root, self.config, self.temperature, self.independent)


@dataclass(frozen=True)
class MCSD(SpecInfer):
    """MCSD's tree of a configuration: ki children on level i, sampled without replacement [choice]."""

    independent = False


def grow_config(draft: Draft, root: Root, config: tuple[int, ...], temperature: float, independent: bool) -> Tree:
    """Sample the tree of a configuration. Samples that repeat a sibling stay as dead slots: the residual rule offers
    them too."""
    tree = Tree.root(root.token)
    frontier = torch.zeros_like(root.token)[:, None]
    for k in config:
        tree, children = sample_children(tree, draft, root, frontier, k, temperature, independent)
        slots = tree.size + torch.arange(children.size, device=frontier.device)
        frontier = torch.where(children.alive, slots, -1)
        tree = tree.extend(children)
    return tree


def check_config(policy: SpecInfer | MCSD) -> None:
    """Raise InputError for an empty configuration or a level without children."""
    if not policy.config or min(policy.config) < 1:
        raise InputError(f"{type(policy).__name__}: config = {policy.config} must name at least 1 child on every level")
