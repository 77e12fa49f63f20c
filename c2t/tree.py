"""Token trees as batched columns: no node objects, and the same code for one tree, a batch of requests, or every
position of a text.

A batch has B rows (trees) of n slots. Slot 0 of each row is the root (parent -1, depth -1). Parents come before their
children. Rows may have different numbers of alive nodes.

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
    """Columns of drafted nodes; `parent` holds slots of the tree that they belong to.

    token, parent, depth: integers. rank: position among the siblings, ordered by draft probability; 0 is the first.
    log_prob, log_joint: natural logs of the draft's probability of the node and of its whole path, root excluded.
    entropy: of the draft's distribution after the parent, in nats; NaN unless the policy uses it.
    max_log_prob: log-probability of the most probable node among the siblings, itself included.
    score: value by which the policy ranks nodes. alive: False marks padding.
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
    def of(cls: type[Kind], blocks: Blocks, **fields_of_tree: Any) -> Kind:
        """Return nodes with the columns of these blocks. fields_of_tree: further fields, of a Tree."""
        log_prob, log_joint, *real = blocks.real
        score = log_joint if blocks.score is None else blocks.score
        columns = [*blocks.whole, log_prob, log_joint, *real, score, blocks.alive]
        nodes = cls(*columns, **fields_of_tree)
        vars(nodes)["blocks"] = blocks._replace(score=score)
        return nodes

    @classmethod
    def certain(
        cls,
        token: Int[Tensor, "B n"],
        parent: Int[Tensor, "B n"],
        depth: Int[Tensor, "B n"],
        log_joint: Float[Tensor, "B n"],
        alive: Bool[Tensor, "B n"],
    ) -> "Nodes":
        """Return nodes that each have probability 1 after their parents; log_joint: of their paths."""
        sure = torch.zeros_like(log_joint)
        return Nodes(token, parent, depth, torch.zeros_like(token), sure, log_joint, sure, sure, log_joint.exp(), alive)

    @cached_property
    def blocks(self) -> Blocks:
        """The columns stacked by dtype, so that one operation serves several columns."""
        whole = torch.stack([self.token, self.parent, self.depth, self.rank])
        real = torch.stack([self.log_prob, self.log_joint, self.entropy, self.max_log_prob])
        return Blocks(whole, real, self.score.contiguous(), self.alive.contiguous())

    def take(self, index: Int[Tensor, "B m"]) -> "Nodes":
        """Return the nodes at these indices, with `parent` unchanged."""
        return Nodes.of(kernels.take(self.blocks, index))

    def scored(self, score: Float[Tensor, "B n"], alive: Bool[Tensor, "B n"]) -> "Nodes":
        """Return the nodes with new values of `score` and `alive`."""
        return Nodes.of(self.blocks._replace(score=score.contiguous(), alive=alive.contiguous()))


COLUMNS = tuple(field.name for field in fields(Nodes))


@dataclass(frozen=True)
class Proposals:
    """Proposal distributions: those of the draft from which children were sampled. The residual rule needs them.

    row: for each slot, the index (of E) of the distribution of its children, which were sampled in the order of their
    ranks; -1: it has no children. A child of rank -1 was not sampled. independent: True for samples with replacement,
    where a repeated token is a dead slot with a rank of its own.
    """

    log_probs: Float[Tensor, "B E V"]
    row: Int[Tensor, "B n"]
    independent: bool

    def __repr__(self) -> str:
        return f"Proposals({tree_repr.count(self.log_probs.shape[1], 'distribution')} for each of {len(self.row)} rows)"


@dataclass(frozen=True, repr=False)
class Tree(Nodes):
    """Nodes with the root in slot 0.

    capped: for each row, the number of nodes that only a size limit excluded. proposals: None unless children were
    sampled. mask: the result of `ancestors`, if all rows share it and the policy has computed it.
    """

    capped: Int[Tensor, " B"]
    proposals: Proposals | None = None
    mask: Bool[Tensor, "n n"] | None = None

    def _repr_html_(self) -> str:
        """Return a picture of the first row with token ids; `c2t.show` can show other rows and token texts."""
        return tree_repr.show(self)._repr_html_()

    @classmethod
    def root(cls, token: Int[Tensor, " B"], dtype: torch.dtype = torch.float32) -> "Tree":
        """Return trees of one node each, the root."""
        return cls(token=token[:, None], **_roots(len(token), dtype, token.device))

    def children(
        self,
        slots: Int[Tensor, "B F"],
        token: Int[Tensor, "B F K"],
        log_prob: Float[Tensor, "B F K"],
        entropy: Float[Tensor, "B F"],
    ) -> Nodes:
        """Return K candidate nodes under each of `slots` (-1: none), ordered by parent, then by rank.

        They are not part of the tree before `extend`.
        """
        return Nodes.of(kernels.children(self.blocks, slots, token, log_prob, entropy))

    def extend(self, nodes: Nodes, capped: Int[Tensor, " B"] | int = 0) -> "Tree":
        """Return the tree with `nodes` appended; their parents must be slots of this tree."""
        proposals = self.proposals and replace(
            self.proposals, row=torch.nn.functional.pad(self.proposals.row, (0, nodes.token.shape[1]), value=-1)
        )
        capped = self.capped if isinstance(capped, int) and capped == 0 else self.capped + capped
        return Tree.of(kernels.join(self.blocks, nodes.blocks), capped=capped, proposals=proposals)

    def admit(
        self,
        candidates: Nodes,
        score: Float[Tensor, "B n"],
        joins: Bool[Tensor, "B n"],
        expand: Bool[Tensor, "B n"] | None,
        limits: Limits,
    ) -> tuple["Tree", Int[Tensor, "B m"], bool]:
        """Add the best candidates by score. Return the tree, the slots to expand next (-1: none), and whether there are
        any.

        joins: candidates that may join the tree. expand: candidates that the policy expands (None: all).
        """
        admission = kernels.admit(candidates.blocks, score, joins, expand, self.alive, limits)
        taken = kernels.take(candidates.blocks._replace(score=score.contiguous()), admission.chosen)
        grown = self.extend(Nodes.of(taken._replace(alive=admission.fits.contiguous())), admission.capped)
        return grown, admission.frontier, admission.going

    def with_proposals(self, slots: Int[Tensor, "B F"], log_probs: Float[Tensor, "B F V"], independent: bool) -> "Tree":
        """Return the tree with these proposal distributions added for the children of `slots` (-1: none)."""
        row = torch.full_like(self.token, -1) if self.proposals is None else self.proposals.row
        earlier = log_probs[:, :0] if self.proposals is None else self.proposals.log_probs
        number = earlier.shape[1] + torch.arange(slots.shape[1], device=slots.device).expand_as(slots)
        # Absent slots write into an extra column that is cut off again.
        columns = torch.where(slots >= 0, slots, self.size)
        row = torch.nn.functional.pad(row, (0, 1)).scatter(1, columns, number)[:, :-1]
        return replace(self, proposals=Proposals(torch.cat([earlier, log_probs], 1), row, independent))

    def select(self, slots: Int[Tensor, "B m"]) -> "Tree":
        """Return the tree of these slots in this order. The root must come first, and alive slots after their
        parents."""
        proposals = self.proposals and replace(self.proposals, row=self.proposals.row.gather(1, slots))
        return Tree.of(kernels.take(self.blocks, slots, renumber=True), capped=self.capped, proposals=proposals)

    def of_rows(self, rows: Int[Tensor, " b"] | slice) -> "Tree":
        """Return the trees of these rows of the batch, in this order."""
        columns = {name: column[rows] for name, column in self.columns().items()}
        proposals = self.proposals and replace(
            self.proposals, log_probs=self.proposals.log_probs[rows], row=self.proposals.row[rows]
        )
        return replace(self, **columns, capped=self.capped[rows], proposals=proposals)

    def packed(self) -> "Tree":
        """Return the tree with alive slots first, in creation order, without trailing slots that are dead in all
        rows."""
        if self.alive.all():
            return self
        order = torch.sort(self.alive, dim=1, descending=True, stable=True).indices
        return self.select(order[:, : int(self.alive.sum(1).max())])

    def heavy_first(self) -> "Tree":
        """Return the tree in depth-first order, children with larger subtrees first (heavy path decomposition, DySpec).

        In this order a block-sparse tree mask has the fewest blocks.
        """
        reach = self.ancestors() & self.alive[:, :, None]
        weight = reach.sum(1)  # alive slots in each subtree
        heavier = (weight[:, None] > weight[:, :, None]) | (
            (weight[:, None] == weight[:, :, None]) & torch.ones_like(reach[0]).tril(-1)
        )
        earlier_siblings = (self.parent[:, None] == self.parent[:, :, None]) & heavier & self.alive[:, None]
        step = 1 + (earlier_siblings * weight[:, None]).sum(2)  # from the parent's position to the node's
        step[:, 0] = 0
        position = torch.where(self.alive, (reach * step[:, None]).sum(2), self.size)
        return self.select(position.argsort(dim=1, stable=True))

    @property
    def sizes(self) -> Int[Tensor, " B"]:
        """Number of tokens that the target verifies in each row: alive nodes, root included."""
        return self.alive.sum(1)

    def positions(self, lengths: Int[Tensor, " B"]) -> Int[Tensor, "B n"]:
        """Return the absolute positions of the slots. lengths: committed tokens of each row, without the root."""
        return lengths[:, None] + self.depth + 1

    def ancestors(self) -> Bool[Tensor, "B n n"]:
        """Return the tree attention mask: mask[b, i, j] is True if slot j is slot i or one of its ancestors.

        An alive slot's line has depth + 2 ones. A dead slot sees at least itself.
        """
        if self.mask is not None:
            return self.mask.expand(len(self.token), -1, -1)
        return kernels.ancestors(self.parent, self.depth)

    def along_path(self, values: Float[Tensor, "B n"]) -> Float[Tensor, "B n"]:
        """Return the sum of the values of each slot and its ancestors, root included."""
        return torch.where(self.ancestors(), values[:, None], 0.0).sum(2)

    def child(self, slot: Int[Tensor, " B"], token: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Return the alive child of `slot` that holds `token`, -1 where there is none."""
        match = self.alive & (self.parent == slot[:, None]) & (self.token == token[:, None])
        return torch.where(match.any(1), match.int().argmax(1), -1)


@lru_cache(maxsize=64)
def _roots(rows: int, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Return the columns of roots, without their tokens."""
    with torch.inference_mode(False):  # cached for callers with and without gradients
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
    """Return the indices of the `count` best nodes: by score, then joint probability, then creation order; dead ones
    last.

    Ties are common where a draft is certain. The first of equal nodes must win: otherwise a child could be selected
    without its parent.
    """
    return kernels.best(score, None if score is log_joint else log_joint, alive, count)
