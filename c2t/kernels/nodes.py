"""Columns of tree nodes in blocks, and operations on all of them: in C on a CPU, in torch elsewhere.

After a forward the code of torch's operations is cold: a tree of two levels, column by column, took a hundred of them
and 0.8 ms (`python -m pipelines.bench breakdown`).
"""

import ctypes
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.kernels.native import kernels, structs
from c2t.kernels.pointer import pointer, pointers

_WHOLE, _REAL, _FLAG = torch.int64, torch.float32, torch.bool


class Blocks(NamedTuple):
    """Columns of n nodes in each of B rows. whole: token, parent, depth, rank. real: log_prob, log_joint, entropy,
    max_log_prob. score: None is log_joint."""

    whole: Int[Tensor, "4 B n"]
    real: Float[Tensor, "4 B n"]
    score: Float[Tensor, "B n"] | None
    alive: Bool[Tensor, "B n"]

    def new(self, slots: int) -> "Blocks":
        """Return blocks of other nodes in as many rows, not filled."""
        rows = len(self.alive)
        return Blocks(
            self.whole.new_empty(4, rows, slots),
            self.real.new_empty(4, rows, slots),
            self.score.new_empty(rows, slots),
            self.alive.new_empty(rows, slots),
        )


class Admitted(NamedTuple):
    """A level's candidates that join their trees: their indices, whether a row has that many, and their slots where
    they are to be expanded (-1: not). capped: what only limits keep out. going: whether any is to be expanded."""

    chosen: Int[Tensor, "B m"]
    fits: Bool[Tensor, "B m"]
    frontier: Int[Tensor, "B m"]
    capped: Int[Tensor, " B"]
    going: bool


def take(nodes: Blocks, index: Int[Tensor, "B m"], renumber: bool = False) -> Blocks:
    """Return the nodes at these places. renumber: their parents are among them, and `parent` says where."""
    if not _served(nodes):
        taken = Blocks(*(block.gather(-1, index.expand(*block.shape[:-1], -1)) for block in nodes))
        return taken._replace(whole=_renumbered(taken.whole, index, nodes.alive)) if renumber else taken
    index, out = index.contiguous(), nodes.new(index.shape[1])
    slots = nodes.alive.shape[1]
    room = index.new_empty(slots) if renumber else None
    given = pointer(index, _WHOLE), None if room is None else pointer(room, _WHOLE)
    if kernels().take(_struct(nodes), *given, _struct(out)):
        raise IndexError(f"a place outside of the {slots} slots")
    return out


def _renumbered(whole: Int[Tensor, "4 B m"], index: Int[Tensor, "B m"], alive: Tensor) -> Int[Tensor, "4 B m"]:
    token, parent, *others = whole
    number = torch.arange(index.shape[1], device=index.device).expand_as(index)
    new_index = index.new_zeros(alive.shape).scatter(1, index, number)
    return torch.stack([token, new_index.gather(1, parent.clamp(min=0)).where(parent >= 0, -1), *others])


def join(first: Blocks, second: Blocks) -> Blocks:
    """Return each row's nodes of the first, then those of the second."""
    if not _served(first, second):
        return Blocks(*(torch.cat(pair, -1) for pair in zip(first, second, strict=True)))
    out = first.new(first.alive.shape[1] + second.alive.shape[1])
    kernels().join(_struct(first), _struct(second), _struct(out))
    return out


def children(
    tree: Blocks,
    slots: Int[Tensor, "B F"],
    token: Int[Tensor, "B F K"],
    log_prob: Float[Tensor, "B F K"],
    entropy: Float[Tensor, "B F"],
) -> Blocks:
    """Return candidates under `slots` (-1: none), parent by parent and each parent's by rank; their score is
    None."""
    dtypes = slots.dtype, token.dtype, log_prob.dtype, entropy.dtype
    if not _served(tree) or dtypes != (torch.int64, torch.int64, torch.float32, torch.float32):
        return _torch_children(tree, slots, token, log_prob, entropy)
    F, K = token.shape[1:]
    given = [tensor.contiguous() for tensor in (slots, token, log_prob, entropy)]
    out = tree.new(F * K)
    at, *values = pointers(given, (_WHOLE, _WHOLE, _REAL, _REAL))
    if kernels().children(_struct(tree), at, F, K, *values, _struct(out)):
        raise IndexError(f"a slot outside of the tree's {tree.alive.shape[1]}")
    return out._replace(score=None)


def _torch_children(tree: Blocks, slots: Tensor, token: Tensor, log_prob: Tensor, entropy: Tensor) -> Blocks:
    def of_each_child(values: Tensor) -> Tensor:
        return values.expand(token.shape).flatten(1)

    _, _, depth, _ = tree.whole
    _, log_joint, _, _ = tree.real
    above = of_each_child(slots[..., None])
    parent, flat = above.clamp(min=0), log_prob.flatten(1)
    joint, most = log_joint.gather(1, parent) + flat, of_each_child(log_prob.amax(2, keepdim=True))
    rank = of_each_child(torch.arange(token.shape[2], device=token.device))
    whole = torch.stack([token.flatten(1), parent, depth.gather(1, parent) + 1, rank])
    real = torch.stack(
        [flat.to(joint.dtype), joint, of_each_child(entropy[..., None]).to(joint.dtype), most.to(joint.dtype)]
    )
    return Blocks(whole, real, None, tree.alive.gather(1, parent) & (above >= 0))


def ancestors(parent: Int[Tensor, "B n"], depth: Int[Tensor, "B n"]) -> Bool[Tensor, "B n n"]:
    """Return mask[b, i, j]: slot j is slot i, one of its ancestors, or the root."""
    rows, size = parent.shape
    reach = torch.zeros(rows, size, size, dtype=torch.bool, device=parent.device)
    if parent.device.type == "cpu" and kernels() is not None:
        parent = parent.contiguous()
        kernels().ancestors(pointer(parent, _WHOLE), rows, size, pointer(reach, _FLAG))
        return reach
    parent = parent.clamp(min=0)  # the root stays where it is
    line = [torch.arange(size, device=parent.device).expand(rows, size)]
    for _ in range(int(depth.max()) + 1):
        line.append(parent.gather(1, line[-1]))
    return reach.scatter(2, torch.stack(line, 2), True)


def best(
    score: Float[Tensor, "B n"], second: Float[Tensor, "B n"] | None, alive: Bool[Tensor, "B n"], count: int
) -> Int[Tensor, "B m"]:
    """Return the places of the `count` best nodes, fewer if there are fewer: by score, where dead ones have -inf, then
    by `second` if there is one, then by place."""
    given = [column for column in (score, second) if column is not None]
    on_cpu = all(column.dtype == torch.float32 and column.device.type == "cpu" for column in given)
    if not on_cpu or kernels() is None:
        return _torch_best(score, second, alive, count)
    (rows, n), count = score.shape, min(count, score.shape[1])
    score, alive, index = score.contiguous(), alive.contiguous(), alive.new_empty(rows, count, dtype=torch.int64)
    second = None if second is None else second.contiguous()
    others = None if second is None else pointer(second, _REAL), pointer(alive, _FLAG)
    kernels().best(pointer(score, _REAL), *others, rows, n, count, pointer(index, _WHOLE))
    return index


def _torch_best(score: Tensor, second: Tensor | None, alive: Tensor, count: int) -> Int[Tensor, "B m"]:
    """Do `best` by stable sorts."""
    masked = torch.where(alive, score, float("-inf"))
    if second is None:
        return torch.sort(masked, dim=1, descending=True, stable=True).indices[:, :count]
    order = torch.sort(second, dim=1, descending=True, stable=True).indices
    by_score = torch.sort(masked.gather(1, order), dim=1, descending=True, stable=True).indices
    return order.gather(1, by_score[:, :count])


class Limits(NamedTuple):
    """width: candidates of a level that join at most. most: nodes of a tree, root included. strict: `width` is a limit
    too, so what it keeps out is counted."""

    width: int
    most: int
    strict: bool


def admit(
    candidates: Blocks,
    score: Float[Tensor, "B n"],
    joins: Bool[Tensor, "B n"],
    expand: Bool[Tensor, "B n"] | None,
    grown: Bool[Tensor, "B s"],
    limits: Limits,
) -> Admitted:
    """Return which candidates join the trees, the best first. joins, expand: those that a policy lets join, and those
    among them that it expands (None: all). grown: alive nodes of the trees so far."""
    joint = candidates.real[1]
    if score.is_set_to(joint):
        score = joint
    if not _served(candidates) or score.dtype != torch.float32:
        return _torch_admit(candidates, score, joint, joins, expand, grown, limits)
    (rows, n), slots = score.shape, grown.shape[1]
    wide = min(limits.width, n)
    given = [column.contiguous() for column in (score, joint, joins, candidates.alive)]
    expand, grown = None if expand is None else expand.contiguous(), grown.contiguous()
    numbers, usable = grown.new_empty(2, rows, wide, dtype=torch.int64), grown.new_empty(rows, n)
    fits, capped, going = grown.new_empty(rows, wide), numbers.new_empty(rows), ctypes.c_int()
    index, frontier = numbers
    used = kernels().admit(
        *pointers(given, (_REAL, _REAL, _FLAG, _FLAG)), None if expand is None else pointer(expand, _FLAG), rows, n,
        pointer(grown, _FLAG), slots, *limits, wide,
        *pointers((usable, index, fits, frontier, capped), (_FLAG, _WHOLE, _FLAG, _WHOLE, _WHOLE)),
        ctypes.byref(going),
    )  # fmt: skip
    return Admitted(index[:, :used], fits[:, :used], frontier[:, :used], capped, bool(going))


def _torch_admit(
    candidates: Blocks,
    score: Tensor,
    joint: Tensor,
    joins: Tensor,
    expand: Tensor | None,
    grown: Tensor,
    limits: Limits,
) -> Admitted:
    usable = joins & candidates.alive & (joint > float("-inf"))
    survivors = usable.sum(1)
    wanted = survivors.clamp(max=limits.width)
    # By row, not by slot: what a row retains must not depend on the other rows.
    room = limits.most - grown.sum(1)
    count = torch.minimum(wanted, room)
    index = best(score, None if score is joint else joint, usable, int(count.max()))
    column = torch.arange(index.shape[1], device=index.device)
    fits = column < count[:, None]
    goes = fits & (count < room)[:, None]
    if expand is not None:
        goes = goes & expand.gather(1, index)
    frontier = torch.where(goes, grown.shape[1] + column, -1)
    capped = (survivors if limits.strict else wanted) - count
    return Admitted(index, fits, frontier, capped, bool(goes.any()))


def _served(*nodes: Blocks) -> bool:
    """Return True if there is a C function for these: on a CPU, in float32."""
    floats = {block.dtype for blocks in nodes for block in (blocks.real, blocks.score)}
    return floats == {torch.float32} and nodes[0].alive.device.type == "cpu" and kernels() is not None


def _struct(nodes: Blocks) -> ctypes.Structure:
    return structs.nodes(*pointers(nodes, (_WHOLE, _REAL, _REAL, _FLAG)), *nodes.alive.shape)
