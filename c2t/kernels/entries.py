"""Entries of a draft's round, the slots of its trees that were expanded: what each of them sees, and the text before
them. In C for float32 on a CPU, in torch elsewhere: after a forward every operation of torch finds its code cold.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.kernels.native import kernels, structs
from c2t.kernels.pointer import pointer, pointers

_WHOLE, _REAL, _FLAG = torch.int64, torch.float32, torch.bool


class Columns(NamedTuple):
    """Columns of a tree that entries are made from."""

    token: Int[Tensor, "B n"]
    parent: Int[Tensor, "B n"]
    depth: Int[Tensor, "B n"]
    alive: Bool[Tensor, "B n"]


class Entries(NamedTuple):
    """Expanded slots of the trees, -1 for none, and the keys of the cache that each entry sees: those of the prefix,
    then one for each entry."""

    slots: Int[Tensor, "B E"]
    sight: Bool[Tensor, "B E t"]


class Level(NamedTuple):
    """New entries: their tokens, their parents' states, their positions. asked: rows with an entry that is alive. used:
    how many are to be computed: those that are not -1, on CUDA all."""

    tokens: Int[Tensor, "B F"]
    features: Float[Tensor, "B F H"]
    positions: Int[Tensor, "B F"]
    asked: Bool[Tensor, " B"]
    used: int


class Following(NamedTuple):
    """Steps of text after a prefix: positions, what each sees of prefix and text, and how many are real."""

    positions: Int[Tensor, "B n"]
    sight: Bool[Tensor, "B n t"]
    real: int


def descend(
    previous: Entries,
    hidden: Float[Tensor, "B E H"],
    tree: Columns,
    slots: Int[Tensor, "B F"],
    lengths: Int[Tensor, " B"],
) -> tuple[Entries, Level]:
    """Append a level's slots (-1: none), whose parents are among the previous entries; return all entries and the new
    ones. hidden: states of the previous entries. lengths: tokens of the prefix that the draft has read. IndexError for
    a slot outside of the tree (elsewhere than in C, torch's own error)."""
    if hidden.dtype != torch.float32 or hidden.device.type != "cpu" or kernels() is None:
        return _torch_descend(previous, hidden, tree, slots, lengths)
    (rows, E, keys), F, H = previous.sight.shape, slots.shape[1], hidden.shape[2]
    inputs = [tensor.contiguous() for tensor in (*tree, slots, lengths, *previous, hidden)]
    columns, (at, read, *before, states) = inputs[: len(tree)], inputs[len(tree) :]
    joined = Entries(slots.new_empty(rows, E + F), previous.sight.new_empty(rows, E + F, keys + F))
    new = slots.new_empty(2, rows, F), hidden.new_empty(rows, F, H), previous.sight.new_empty(rows)
    (tokens, positions), features, asked = new
    used = kernels().descend(
        structs.columns(*pointers(columns, (_WHOLE, _WHOLE, _WHOLE, _FLAG)), *tree.token.shape),
        *pointers((at, read), (_WHOLE, _WHOLE)),
        structs.entries(*pointers(before, (_WHOLE, _FLAG)), E, keys),
        pointer(states, _REAL),
        structs.entries(*pointers(joined, (_WHOLE, _FLAG)), E + F, keys + F),
        structs.level(*pointers((tokens, positions, features, asked), (_WHOLE, _WHOLE, _REAL, _FLAG)), F, H),
    )
    if used < 0:
        raise IndexError(f"a slot outside of the tree's {tree.token.shape[1]}")
    return joined, Level(tokens, features, positions, asked, used)


def _torch_descend(
    previous: Entries, hidden: Tensor, tree: Columns, slots: Tensor, lengths: Tensor
) -> tuple[Entries, Level]:
    used, slots = slots >= 0, slots.clamp(min=0)
    parent = (tree.parent.gather(1, slots)[..., None] == previous.slots[:, None]).int().argmax(-1)[..., None]
    features = hidden.gather(1, parent.expand(-1, -1, hidden.shape[2]))
    # What the parents see, and the new entries themselves, which no older one sees.
    seen = torch.cat([previous.sight, previous.sight.gather(1, parent.expand(-1, -1, previous.sight.shape[2]))], 1)
    entry = torch.arange(seen.shape[1], device=slots.device)
    itself = entry[:, None] == entry[previous.sight.shape[1] :]
    sight = torch.cat([seen, itself.expand(len(slots), -1, -1)], 2)
    joined = Entries(torch.cat([previous.slots, torch.where(used, slots, -1)], 1), sight)
    asked = (used & tree.alive.gather(1, slots)).any(1)
    positions = lengths[:, None] + tree.depth.gather(1, slots)  # a child of the root comes next
    count = used.numel() if used.is_cuda else int(used.sum())  # to count on CUDA waits for the device
    return joined, Level(tree.token.gather(1, slots), features, positions, asked, count)


def follow(lengths: Int[Tensor, " B"], prefix: int, count: Int[Tensor, " B"], steps: int) -> Following:
    """Return positions and sight of `steps` tokens of text after each row's prefix, which has lengths[r] of `prefix`
    keys; count[r] of them are real. IndexError if a row has more keys than `prefix`."""
    rows = len(count)
    if count.device.type != "cpu" or kernels() is None:
        return _torch_follow(lengths, prefix, count, steps)
    positions = count.new_empty(rows, steps)
    sight = count.new_empty(rows, steps, prefix + steps, dtype=torch.bool)
    lengths, count = lengths.contiguous(), count.contiguous()
    given, out = (
        pointers(pair, (_WHOLE, kind)) for pair, kind in (((lengths, count), _WHOLE), ((positions, sight), _FLAG))
    )
    real = kernels().follow(*given, rows, steps, prefix, *out)
    if real < 0:
        raise IndexError(f"a row whose prefix is longer than the {prefix} keys of all")
    return Following(positions, sight, real)


def _torch_follow(lengths: Tensor, prefix: int, count: Tensor, steps: int) -> Following:
    step, key = (torch.arange(many, device=count.device) for many in (steps, prefix))
    causal = (step[:, None] >= step).expand(len(count), -1, -1)
    owned = (key < lengths[:, None])[:, None].expand(-1, steps, -1)
    real = int(count.clamp(max=steps).sum())
    return Following(lengths[:, None] + step, torch.cat([owned, causal], 2), real)
