"""Token trees as batched columns: no node objects, and the same code for one tree, a batch of requests, or every
position of a text.

Shapes: B rows (trees), n slots. Slot 0 of each row is the root (parent -1, depth -1), parents stand before their
children, and rows have different numbers of alive nodes; nothing else about a row is special.

    slot     0    1   2   3   4        root -> "a", "b";  "a" -> "c", "d"
    token    r    a   b   c   d
    parent  -1    0   0   1   1
    depth   -1    0   0   1   1
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.kernels import nodes as kernels
from c2t.kernels.nodes import Blocks, Limits
from c2t.output import tree_repr

Kind = TypeVar("Kind", bound="Nodes")


@dataclass(frozen=True, repr=False)
class Nodes:
    """Columns of drafted nodes; `parent` points into the tree that they belong to.

    token, parent, depth, rank (place among its siblings by draft probability): integers.
    log_prob, log_joint: natural logs of the node's own and of its path's draft probability (root excluded).
    entropy: nats, of the distribution that the node was drawn from (NaN where no policy asked for it).
    max_log_prob: log-probability of its most probable sibling, itself included.
    score: what the policy ranks by. alive: False marks a slot that only fills up a row of the batch.
    """

    token: Int[Tensor, "B n"]
    parent: Int[Tensor, "B n"]
    depth: Int[Tensor, "B n"]
    rank: Int[Tensor, "B n"]
    log_prob: Float[Tensor, "B n"]
    log_joint: Float[Tensor, "B n"]
    entropy: Float[Tensor, "B n"]
    max_log_prob: Float[Tensor, "B n"]
    score: Float[Tensor, "B n"]
    alive: Bool[Tensor, "B n"]

    def __repr__(self) -> str:
        rows = tree_repr.count(len(self.token), "row")
        alive = tree_repr.few(self.alive.sum(1).tolist())
        return f"{type(self).__name__}({rows}, {tree_repr.count(self.size, 'slot')}, alive: {alive})"

    @property
    def size(self) -> int:
        """Number of slots n, dead ones included."""
        return self.token.shape[1]

    def columns(self) -> dict[str, Tensor]:
        """Return all columns by name."""
        return {name: getattr(self, name) for name in COLUMNS}

    @classmethod
    def of(cls: type[Kind], blocks: Blocks, **others: Any) -> Kind:
        """Return nodes whose columns are these blocks' lines. others: what a Tree has besides."""
        log_prob, log_joint, *real = blocks.real
        score = log_joint if blocks.score is None else blocks.score
        columns = [*blocks.whole, log_prob, log_joint, *real, score, blocks.alive]
        nodes = cls(*columns, **others)
        vars(nodes)["blocks"] = blocks._replace(score=score)
        return nodes

    @cached_property
    def blocks(self) -> Blocks:
        """The columns in the form that does the same to all of them at once."""
        whole = torch.stack([self.token, self.parent, self.depth, self.rank])
        real = torch.stack([self.log_prob, self.log_joint, self.entropy, self.max_log_prob])
        return Blocks(whole, real, self.score.contiguous(), self.alive.contiguous())

    def take(self, index: Int[Tensor, "B m"]) -> "Nodes":
        """Return the nodes at these places, with `parent` unchanged."""
        return Nodes.of(kernels.take(self.blocks, index))

    def scored(self, score: Float[Tensor, "B n"], alive: Bool[Tensor, "B n"]) -> "Nodes":
        """Return the nodes with other scores and another `alive`."""
        return Nodes.of(self.blocks._replace(score=score.contiguous(), alive=alive.contiguous()))


COLUMNS = tuple(field.name for field in fields(Nodes))


@dataclass(frozen=True)
class Drawn:
    """Draft distributions that children were sampled from, which the residual rule needs.

    row: for each slot, the number of the distribution, among E, that its children were drawn from (-1: it has none), in
    the order of their ranks. independent: drawn with replacement; a token drawn again is a dead slot of its own rank. A
    rank of -1 marks a slot that was not drawn at all.
    """

    log_probs: Float[Tensor, "B E V"]
    row: Int[Tensor, "B n"]
    independent: bool

    def __repr__(self) -> str:
        return f"Drawn({tree_repr.count(self.log_probs.shape[1], 'distribution')} for each of {len(self.row)} rows)"


@dataclass(frozen=True, repr=False)
class Tree(Nodes):
    """Nodes with the root in slot 0.

    capped: for each row, the number of nodes that only a size limit kept out. drawn: set if the children were sampled.
    mask: the result of `ancestors` for every row, where a policy has it ready.
    """

    capped: Int[Tensor, " B"]
    drawn: Drawn | None = None
    mask: Bool[Tensor, "n n"] | None = None

    def _repr_html_(self) -> str:
        """Return a drawing of the first row with token ids; `c2t.show` draws other rows, and token texts."""
        return tree_repr.show(self)._repr_html_()

    @classmethod
    def root(cls, token: Int[Tensor, " B"], dtype: torch.dtype = torch.float32) -> "Tree":
        """Return trees that consist of their roots."""
        return cls(token=token[:, None], **_roots(len(token), dtype, token.device))

    def children(
        self,
        slots: Int[Tensor, "B F"],
        token: Int[Tensor, "B F K"],
        log_prob: Float[Tensor, "B F K"],
        entropy: Float[Tensor, "B F"],
    ) -> Nodes:
        """Return candidate nodes under `slots` (-1: none), parent by parent and each parent's by rank. They join the
        tree only in `extend`."""
        return Nodes.of(kernels.children(self.blocks, slots, token, log_prob, entropy))

    def extend(self, nodes: Nodes, capped: Int[Tensor, " B"] | int = 0) -> "Tree":
        """Return the tree with `nodes` appended; their parents must be slots of this tree."""
        drawn = self.drawn and replace(
            self.drawn, row=torch.nn.functional.pad(self.drawn.row, (0, nodes.token.shape[1]), value=-1)
        )
        capped = self.capped if isinstance(capped, int) and capped == 0 else self.capped + capped
        return Tree.of(kernels.join(self.blocks, nodes.blocks), capped=capped, drawn=drawn)

    def admit(
        self,
        candidates: Nodes,
        score: Float[Tensor, "B n"],
        joins: Bool[Tensor, "B n"],
        expand: Bool[Tensor, "B n"] | None,
        limits: Limits,
    ) -> tuple["Tree", Int[Tensor, "B m"], bool]:
        """Return the tree with the best by score of those candidates that join, their slots where they are to be
        expanded (-1: not), and whether any is. expand: which of them a policy expands (None: all)."""
        found = kernels.admit(candidates.blocks, score, joins, expand, self.alive, limits)
        taken = kernels.take(candidates.blocks._replace(score=score.contiguous()), found.chosen)
        grown = self.extend(Nodes.of(taken._replace(alive=found.fits.contiguous())), found.capped)
        return grown, found.frontier, found.going

    def drawing(self, slots: Int[Tensor, "B F"], log_probs: Float[Tensor, "B F V"], independent: bool) -> "Tree":
        """Return the tree with these distributions noted as those that the children of `slots` (-1: none) are drawn
        from."""
        row = torch.full_like(self.token, -1) if self.drawn is None else self.drawn.row
        known = log_probs[:, :0] if self.drawn is None else self.drawn.log_probs
        number = known.shape[1] + torch.arange(slots.shape[1], device=slots.device).expand_as(slots)
        # Absent slots write into an extra column that is cut off again.
        places = torch.where(slots >= 0, slots, self.size)
        row = torch.nn.functional.pad(row, (0, 1)).scatter(1, places, number)[:, :-1]
        return replace(self, drawn=Drawn(torch.cat([known, log_probs], 1), row, independent))

    def select(self, slots: Int[Tensor, "B m"]) -> "Tree":
        """Return the tree of these slots in this order: the root first, every alive slot's parent before it."""
        drawn = self.drawn and replace(self.drawn, row=self.drawn.row.gather(1, slots))
        return Tree.of(kernels.take(self.blocks, slots, renumber=True), capped=self.capped, drawn=drawn)

    def of_rows(self, rows: Int[Tensor, " b"] | slice) -> "Tree":
        """Return the trees of these rows of the batch, in this order."""
        columns = {name: column[rows] for name, column in self.columns().items()}
        drawn = self.drawn and replace(self.drawn, log_probs=self.drawn.log_probs[rows], row=self.drawn.row[rows])
        return replace(self, **columns, capped=self.capped[rows], drawn=drawn)

    def packed(self) -> "Tree":
        """Return the tree with alive slots first, in creation order, without the tail that is dead in every row."""
        if self.alive.all():
            return self
        order = torch.sort(self.alive, dim=1, descending=True, stable=True).indices
        return self.select(order[:, : int(self.alive.sum(1).max())])

    def heavy_first(self) -> "Tree":
        """Return the tree in depth-first order, at each node the child with the largest subtree first (heavy path
        decomposition, named in DySpec). In this order a block-sparse tree mask has the fewest blocks."""
        reach = self.ancestors() & self.alive[:, :, None]
        weight = reach.sum(1)  # alive slots in each subtree
        heavier = (weight[:, None] > weight[:, :, None]) | (
            (weight[:, None] == weight[:, :, None]) & torch.ones_like(reach[0]).tril(-1)
        )
        ahead = (self.parent[:, None] == self.parent[:, :, None]) & heavier & self.alive[:, None]
        step = 1 + (ahead * weight[:, None]).sum(2)  # distance from the parent's place to the node's own
        step[:, 0] = 0
        place = torch.where(self.alive, (reach * step[:, None]).sum(2), self.size)
        return self.select(place.argsort(dim=1, stable=True))

    @property
    def sizes(self) -> Int[Tensor, " B"]:
        """Tokens that the target verifies in each row: alive nodes, root included."""
        return self.alive.sum(1)

    def positions(self, lengths: Int[Tensor, " B"]) -> Int[Tensor, "B n"]:
        """Return the absolute positions of the slots; `lengths` counts the committed tokens without the root."""
        return lengths[:, None] + self.depth + 1

    def ancestors(self) -> Bool[Tensor, "B n n"]:
        """Return mask[b, i, j]: slot j is slot i, one of its ancestors, or the root (depth + 2 ones in an alive row).

        Dead slots see themselves too.
        """
        if self.mask is not None:
            return self.mask.expand(len(self.token), -1, -1)
        return kernels.ancestors(self.parent, self.depth)

    def along_path(self, values: Float[Tensor, "B n"]) -> Float[Tensor, "B n"]:
        """Return each slot's value added up with those of its ancestors, the root's included."""
        return torch.where(self.ancestors(), values[:, None], 0.0).sum(2)

    def child(self, slot: Int[Tensor, " B"], token: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Return the alive child of `slot` that holds `token`, -1 where there is none."""
        match = self.alive & (self.parent == slot[:, None]) & (self.token == token[:, None])
        return torch.where(match.any(1), match.int().argmax(1), -1)


@lru_cache(maxsize=64)
def _roots(rows: int, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Return the columns of roots, without their tokens."""
    with torch.inference_mode(False):  # kept for whoever comes next, with gradients or without
        zero, none = (torch.zeros(rows, 1, dtype=kind, device=device) for kind in (dtype, torch.long))
        minus = none - 1
        return {
            "parent": minus,
            "depth": minus,
            "rank": none,
            "log_prob": zero,
            "log_joint": zero,
            "entropy": torch.full_like(zero, float("nan")),
            "max_log_prob": zero,
            "score": torch.ones_like(zero),
            "alive": torch.ones_like(none, dtype=torch.bool),
            "capped": none[:, 0],
        }


def best(
    score: Float[Tensor, "B n"], log_joint: Float[Tensor, "B n"], alive: Bool[Tensor, "B n"], count: int
) -> Int[Tensor, "B m"]:
    """Return the places of the `count` best alive nodes: by score, then joint probability, then creation order; dead
    ones last.

    Of equal values, which are common where a draft is certain, the first is the best: else a child could be kept and
    its parent dropped.
    """
    return kernels.best(score, None if score is log_joint else log_joint, alive, count)
