"""OPT-Tree (arXiv 2406.17276): the n nodes with the longest expected acceptance, and no level that adds little."""

from dataclasses import dataclass

import torch

from c2t.errors import InputError, at_least_one
from c2t.policies.eagle2 import rerank
from c2t.policies.limits import Size, check_size
from c2t.protocols import Draft, Root
from c2t.storage.checked import check_fields
from c2t.tree import Tree, best


@dataclass(frozen=True)
class OptTree:
    """Keeps the N - 1 most probable nodes while each level adds `delta` to the expected length. Of all nodes so far
    these n have the highest joint probability, and their sum is the expected accepted length E. Each level expands the
    selected nodes of the previous level, K children each [choice of K: only ranks beyond it are lost]. A level that
    raises E by less than `delta` is the last. A node outside the n best never has a child among them, so it need not be
    expanded.
    """

    N: int = 60
    delta: float = 0.2
    K: int = 10
    levels: int = 10

    proposal = "ranked"
    exact = True
    bench = ("",)
    sweep = ("delta=0.05,N=5|12|26|60|120",)
    tune = ()

    def __post_init__(self):
        check_fields(self)
        at_least_one(self, "N", "K", "levels")
        check_size(self)
        if not self.delta >= 0:
            raise InputError(f"OptTree: delta = {self.delta} must not be negative")

    @property
    def size(self) -> Size:
        """See `Size`."""
        return Size(self.N, self.N * self.K)

    def __call__(self, draft: Draft, root: Root) -> Tree:
        tree = Tree.root(root.token)
        frontier = torch.zeros_like(root.token)[:, None]
        expected = torch.ones_like(tree.log_joint[:, 0])  # the root, which every sum below counts
        for _ in range(self.levels):
            rows = draft.expand(tree, frontier)
            children = tree.children(frontier, *rows.topk_entropy(self.K, 0))
            log_joint, alive = (
                torch.cat(pair, 1) for pair in ((tree.log_joint, children.log_joint), (tree.alive, children.alive))
            )
            leaders = best(log_joint, log_joint, alive, self.N)
            leading = alive & torch.zeros_like(alive).scatter(1, leaders, True)
            fresh = leading[:, tree.size :]
            selected = best(children.log_joint, children.log_joint, fresh, int(fresh.sum(1).max()))
            raised = torch.where(leading, log_joint.exp(), 0).sum(1)
            growing = (raised - expected >= self.delta)[:, None] & fresh.gather(1, selected)
            frontier = torch.where(growing, tree.size + torch.arange(selected.shape[1], device=selected.device), -1)
            tree = tree.extend(children.scored(children.log_joint, fresh).take(selected))
            expected = raised
            if not growing.any():
                break
        return rerank(tree, self.N).packed()
