"""Tokens that must follow a tree's leaves: a path of probability 1 each, which costs no draft forward."""

from collections.abc import Sequence
from dataclasses import replace
from heapq import nlargest
from typing import NamedTuple

import torch

from c2t.grammars.constraints import Constraints, paths_to
from c2t.tree import Nodes, Tree

LEAVES = 3  # most probable leaves of a tree that are continued
LEAST = 0.1  # joint probability of a leaf that is worth it
MOST = 16  # forced nodes of a tree


class ForcedNode(NamedTuple):
    """A node to append to a row's tree."""

    token: int
    parent: int
    depth: int
    log_joint: float


def completed(tree: Tree, constraints: Constraints, left: Sequence[int]) -> Tree:
    """Return the trees without candidates that may not follow, and with the tokens that must follow their most
    probable leaves. left: tokens that each row may still get."""
    possible = tree.alive & (tree.log_joint > float("-inf"))
    if not bool((possible == tree.alive).all()):
        tree = replace(tree, alive=possible).packed()
    rows = [forced_nodes(tree, row, constraints, most) for row, most in enumerate(left)]
    return tree.extend(_columns(rows, tree)) if any(rows) else tree


def forced_nodes(tree: Tree, row: int, constraints: Constraints, left: int) -> list[ForcedNode]:
    """Return the forced nodes of one row."""
    if constraints.rows[row] is None:
        return []
    parent, depth, joint, alive = (
        column[row].tolist() for column in (tree.parent, tree.depth, tree.log_joint.exp(), tree.alive)
    )
    inner = {parent[slot] for slot in range(tree.size) if alive[slot]}
    leaves = [slot for slot in range(tree.size) if alive[slot] and slot not in inner and joint[slot] >= LEAST]
    nodes: list[ForcedNode] = []
    for leaf in nlargest(LEAVES, leaves, key=joint.__getitem__):
        (path,) = paths_to(tree, [row], [leaf])
        above, room = leaf, min(MOST - len(nodes), left - depth[leaf] - 2)  # the last token follows as the bonus
        for step, token in enumerate(constraints.forced(row, path)[: max(room, 0)]):
            nodes.append(ForcedNode(token, above, depth[leaf] + 1 + step, float(tree.log_joint[row, leaf])))
            above = tree.size + len(nodes) - 1
    return nodes


def _columns(rows: Sequence[Sequence[ForcedNode]], tree: Tree) -> Nodes:
    """Return the rows' nodes as columns, padded by dead ones."""
    longest, like = max(map(len, rows)), tree.log_joint
    padded = [[*nodes, *[ForcedNode(0, 0, 0, 0.0)] * (longest - len(nodes))] for nodes in rows]
    token, parent, depth, joint = (
        torch.tensor([[node[column] for node in nodes] for nodes in padded], device=like.device) for column in range(4)
    )
    joint = joint.to(like)
    certain = torch.zeros_like(joint)
    counts = torch.tensor([len(nodes) for nodes in rows], device=like.device)
    alive = torch.arange(longest, device=like.device) < counts[:, None]
    return Nodes(
        token=token,
        parent=parent,
        depth=depth,
        rank=torch.zeros_like(token),
        log_prob=certain,
        log_joint=joint,
        entropy=certain,
        max_log_prob=certain,
        score=joint.exp(),
        alive=alive,
    )
