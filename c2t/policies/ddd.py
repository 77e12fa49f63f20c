"""Dynamic depth decoding (arXiv 2409.00142): EAGLE-2 that stops drafting when its beam has become improbable."""

from dataclasses import dataclass

import torch

from c2t.errors import at_least_one, probability
from c2t.policies.eagle2 import rerank
from c2t.policies.limits import Size, check_size, expanded
from c2t.protocols import Draft, Root
from c2t.storage.checked import check_fields
from c2t.tree import Tree, best


@dataclass(frozen=True)
class DDD:
    """EAGLE-2 that stops where the beam's summed joint probability is below `threshold`. From level `first_check`
    on, every `every` levels, they are compared. The threshold of 0.3 is a choice: the paper tunes it per model."""

    threshold: float = 0.3
    first_check: int = 5
    every: int = 2
    K: int = 10
    levels: int = 11
    N: int = 60

    proposal = "ranked"
    exact = True
    bench = ("",)
    sweep = ("N=5|12|26|60|120",)
    tune = ()

    def __post_init__(self):
        check_fields(self)
        at_least_one(self, "first_check", "every", "K", "levels", "N")
        probability(self, "threshold")
        check_size(self)

    @property
    def size(self) -> Size:
        """See `Size`."""
        return Size(self.N, expanded(self.K, self.levels))

    def __call__(self, draft: Draft, root: Root) -> Tree:
        tree = Tree.root(root.token)
        frontier = torch.zeros_like(root.token)[:, None]
        for level in range(1, self.levels + 1):
            rows = draft.expand(tree, frontier)
            children = tree.children(frontier, *rows.topk_entropy(self.K, 0))
            beam = best(children.log_joint, children.log_joint, children.alive, self.K)
            frontier = torch.where(children.alive.gather(1, beam), tree.size + beam, -1)
            tree = tree.extend(children)
            if level >= self.first_check and (level - self.first_check) % self.every == 0:
                mass = tree.log_joint.gather(1, frontier.clamp(min=0)).exp().where(frontier >= 0, 0).sum(1)
                frontier = torch.where((mass >= self.threshold)[:, None], frontier, -1)
            if not (frontier >= 0).any():
                break
        return rerank(tree, self.N).packed()
