"""No tree at all: the root alone is verified, which is plain autoregressive decoding."""

from dataclasses import dataclass

from c2t.policies.limits import Size
from c2t.protocols import Draft, Root
from c2t.tree import Tree


@dataclass(frozen=True)
class Plain:
    """Drafts nothing: plain decoding, the baseline of every speed-up, by the same target code."""

    proposal = "ranked"
    exact = True
    bench = ("",)
    sweep = ()
    tune = ("",)
    levels = 0
    size = Size(1, 0)

    def __call__(self, draft: Draft | None, root: Root) -> Tree:
        return Tree.root(root.token)
