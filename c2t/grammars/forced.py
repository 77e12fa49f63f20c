"""Tokens that must follow a tree's leaves: a path of probability 1 each, which costs no draft forward."""

from collections.abc import Sequence
from dataclasses import replace
from heapq import nlargest
from math import log
from typing import NamedTuple

import torch

from c2t.grammars.constraints import Constraints
from c2t.grammars.row_constraint import Path
from c2t.tree import Nodes, Tree

LEAVES = 3  # most probable leaves of a tree that are continued
LEAST = 0.1  # joint probability of a leaf at least
MOST = 16  # forced nodes of a tree


class ForcedNode(NamedTuple):
    """A node to append to a row's tree."""

    token: int
    parent: int
    depth: int
    log_joint: float


class RowTree(NamedTuple):
    """A row's tree as lists, one entry a slot. sampled: its children were sampled from the draft. path: tokens
    after the root, None for a slot that is dead or may not follow its parent."""

    token: list[int]
    parent: list[int]
    depth: list[int]
    log_joint: list[float]
    alive: list[bool]
    sampled: list[bool]
    path: list[Path | None]


def completed(tree: Tree, constraints: Constraints, left: Sequence[int]) -> Tree:
    """Return the trees without candidates that may not follow, and with the tokens that must follow their most
    probable leaves. Sampled candidates stay, since the residual rule counts with them. left: tokens that each row may
    still get."""
    rows = _row_trees(tree, constraints)
    possible = [[True] * tree.size if row is None else [path is not None for path in row.path] for row in rows]
    other = any(row is not None and row.alive != follow for row, follow in zip(rows, possible, strict=True))
    if other and tree.proposals is None:
        tree = replace(tree, alive=tree.alive & torch.tensor(possible, device=tree.alive.device)).packed()
        rows = _row_trees(tree, constraints)
    nodes = [
        [] if of_row is None else forced_nodes(of_row, row, constraints, left[row]) for row, of_row in enumerate(rows)
    ]
    return tree.extend(_columns(nodes, tree)) if any(nodes) else tree


def _row_trees(tree: Tree, constraints: Constraints) -> list[RowTree | None]:
    """Return the trees of the rows with constraints. Policies of fixed size also take candidates that may not follow,
    where others are too few."""
    from_draft = torch.zeros_like(tree.alive) if tree.proposals is None else tree.proposals.row >= 0
    columns = tree.token, tree.parent, tree.depth, tree.log_joint, tree.alive, from_draft
    rows: list[RowTree | None] = []
    for row, of_row in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        if constraints.rows[row] is None:
            rows.append(None)
            continue
        token, parent, depth, log_joint, alive, sampled = of_row
        path: list[Path | None] = [()]
        for slot in range(1, tree.size):
            before = path[parent[slot]] if alive[slot] else None
            follows = before is not None and constraints.follows(row, before, token[slot])
            path.append((*before, token[slot]) if follows else None)
        rows.append(RowTree(token, parent, depth, log_joint, alive, sampled, path))
    return rows


def forced_nodes(tree: RowTree, row: int, constraints: Constraints, left: int) -> list[ForcedNode]:
    """Return the forced nodes of one row, where at most `left` tokens may follow."""
    inner = {parent for parent, alive in zip(tree.parent, tree.alive, strict=True) if alive}
    inner |= {slot for slot, sampled in enumerate(tree.sampled) if sampled}
    follow = [slot for slot, path in enumerate(tree.path) if path is not None]
    leaves = [slot for slot in follow if slot not in inner and tree.log_joint[slot] >= log(LEAST)]
    nodes: list[ForcedNode] = []
    for leaf in nlargest(LEAVES, leaves, key=tree.log_joint.__getitem__):
        above, depth, joint = leaf, tree.depth[leaf], tree.log_joint[leaf]
        room = min(MOST - len(nodes), left - depth - 2)  # the last token follows as the bonus
        for step, token in enumerate(constraints.forced(row, tree.path[leaf])[: max(room, 0)], 1):
            nodes.append(ForcedNode(token, above, depth + step, joint))
            above = len(tree.token) + len(nodes) - 1
    return nodes


def _columns(rows: Sequence[Sequence[ForcedNode]], tree: Tree) -> Nodes:
    """Return the rows' nodes as columns, padded by dead ones."""
    longest, like = max(map(len, rows)), tree.log_joint
    padded = [[*nodes, *[ForcedNode(0, 0, 0, 0.0)] * (longest - len(nodes))] for nodes in rows]
    token, parent, depth, joint = (
        torch.tensor([[node[column] for node in nodes] for nodes in padded], device=like.device) for column in range(4)
    )
    counts = torch.tensor([len(nodes) for nodes in rows], device=like.device)
    alive = torch.arange(longest, device=like.device) < counts[:, None]
    return Nodes.certain(token, parent, depth, joint.to(like), alive)
