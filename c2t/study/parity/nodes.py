"""The nodes that are compared, and their logits by plain decoding: one token after its path."""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from c2t.models.target.target import check_logits
from c2t.tree import Tree


class PlainNode(NamedTuple):
    """A token of the tree. parent: its parent's number, -1 for the root. depth: 0 for the root."""

    token: int
    parent: int
    depth: int


class Compared(ABC):
    """A model after a prompt of `length` tokens, which decodes tokens one by one, and verifies several in one forward.

    first: logits after the prompt.
    """

    length: int
    first: Float[Tensor, " V"]

    def __init__(self) -> None:
        self._path: list[int] = []

    def after(self, path: Sequence[int]) -> Float[Tensor, " V"]:
        """Return the logits after the prompt and a path of tokens, each decoded alone. It must not be the beginning
        of the path before. What both begin with is not decoded again."""
        common = 0
        while common < min(len(path), len(self._path)) and path[common] == self._path[common]:
            common += 1
        self.back(len(self._path) - common)
        for token in path[common:-1]:
            self.step(token)
        self._path = list(path)
        return self.last_step(path[-1])

    def to_prompt(self) -> None:
        """Forget the path."""
        self.back(len(self._path))
        self._path = []

    @abstractmethod
    def step(self, token: int) -> Float[Tensor, " V"]:
        """Append a token; return the logits after it."""

    def last_step(self, token: int) -> Float[Tensor, " V"]:
        """Do `step` for a path's last token, the node itself."""
        return self.step(token)

    @abstractmethod
    def back(self, count: int) -> None:
        """Take the last tokens back."""

    @abstractmethod
    def verify(self, nodes: Sequence[PlainNode]) -> Float[Tensor, "n V"]:
        """Return the logits after every node, by one forward over all of them after the prompt, and forget them."""


def grow(model: Compared, count: int, branches: int) -> tuple[list[PlainNode], Float[Tensor, "n V"]]:
    """Return a tree of so many nodes and their logits by plain decoding. It grows best first by the model's own
    probabilities, so near-ties are among its nodes; a beginning of the list is a tree, too. branches: most children of
    a node, 1 for a chain."""
    nodes: list[PlainNode] = []
    paths: list[list[int]] = []
    logits: list[Tensor] = []
    # cost, a number that makes entries comparable, token, parent
    queue = [(0.0, 0, int(model.first.argmax()), -1)]
    while len(nodes) < count:
        cost, _, token, parent = heapq.heappop(queue)
        path = [*(paths[parent] if parent >= 0 else ()), token]
        after = model.after(path)
        check_logits(after[None], "model")
        nodes.append(PlainNode(token, parent, len(path) - 1))
        paths.append(path)
        logits.append(after)
        top = after.float().log_softmax(-1).topk(min(branches, len(after)))
        for rank, (log_prob, child) in enumerate(zip(*(part.tolist() for part in top), strict=True)):
            heapq.heappush(queue, (cost - log_prob, len(nodes) * branches + rank, child, len(nodes) - 1))
    model.to_prompt()
    return nodes, torch.stack(logits)


def tree_of(nodes: Sequence[PlainNode], device: torch.device) -> Tree:
    """Return the nodes as a tree, the first one as its root."""
    token, parent, depth = (torch.tensor([column], device=device) for column in zip(*nodes, strict=True))
    alive = torch.ones_like(token, dtype=torch.bool)
    certain = Tree.certain(token, parent, depth - 1, torch.zeros(token.shape, device=device), alive)
    return Tree.of(certain.blocks, capped=torch.zeros_like(token[:, 0]))
