"""Trees cut out of harvested full EAGLE-2 trees: the tokens that a score would verify and have accepted, without
running a model.

A node is kept if it and all its ancestors score at least a threshold, so every score gets its whole tau-gamma front
from one harvest. Against the real policies this leaves out only children that EAGLE-2 did not draft, and it visits the
full tree's rounds, so it serves to compare scores by ratios.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from c2t.records.reader import describe, read_columns, read_records
from c2t.study.points import Point

# Mean tokens of the trees that are cut out; the small ones are for drafts that seldom know anything.
SIZES = np.concatenate([np.geomspace(1.05, 2.7, 10), np.geomspace(3, 120, 30)])
DEPTHS = 11  # of the harvested trees
LEVELS = (4, 5, 6, 8, 11)  # EAGLE-2 is searched over its levels too: they are its strongest setting


class Nodes(NamedTuple):
    """Rows of a harvest. above: the parent's row, -1 under the root. position: of the root in its text. fold: number of
    the prompt file."""

    columns: dict[str, Float[np.ndarray, " n"]]
    above: Int[np.ndarray, " n"]
    depth: Int[np.ndarray, " n"]
    tree: Int[np.ndarray, " n"]
    prompt: Int[np.ndarray, " n"]
    fold: Int[np.ndarray, " n"]
    accepted: Bool[np.ndarray, " n"]
    token: Int[np.ndarray, " n"]
    position: Int[np.ndarray, " n"]
    files: tuple[str, ...]


def along(values: np.ndarray, above: np.ndarray, depth: np.ndarray, join: Callable = np.add) -> np.ndarray:
    """Return each node's value joined with those of its ancestors."""
    joined = values.astype(np.float64)
    for level in range(1, int(depth.max()) + 1):
        here = depth == level
        joined[here] = join(joined[here], joined[above[here]])
    return joined


def read_nodes(folder: Path) -> Nodes:
    """Return a harvest's nodes with every column that costs nothing at run time: of the node, its siblings, its parent
    and its path."""
    records = read_records([folder], ["log_prob", "max_log_prob", "rank"])
    place = read_columns(folder, ("node", "parent", "token", "position"))
    parent = place["parent"].astype(np.int64)
    above = np.where(parent < 0, -1, np.arange(len(parent)) - place["node"] + parent)
    joint, prob, peak = (getattr(records, name).double().numpy() for name in ("log_joint", "log_prob", "max_log_prob"))
    entropy, depth = records.entropy.double().numpy(), records.depth.numpy().astype(np.int64)
    columns = {
        "joint_prob": np.exp(joint), "log_joint": joint, "entropy": entropy, "depth": depth.astype(float),
        "log_prob": prob, "log_max_prob": peak, "rank": records.rank.numpy().astype(float),
        "path_gap": along(prob - peak, above, depth), "path_entropy": along(entropy, above, depth),
        **{f"depth_{level}": depth == level for level in range(1, DEPTHS)},
    }  # fmt: skip
    columns |= of_neighbours(columns, above)
    entries = describe(folder).prompts
    files = tuple(sorted({entry["file"] for entry in entries}))
    fold = np.array([files.index(entry["file"]) for entry in entries])
    prompt, tree = (getattr(records, name).numpy().astype(np.int64) for name in ("prompt", "tree"))
    token, position = (place[name].astype(np.int64) for name in ("token", "position"))
    accepted = records.accepted.numpy()
    return Nodes(columns, above, depth, tree, prompt, fold[prompt], accepted, token, position, files)


def of_neighbours(columns: dict[str, np.ndarray], above: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns of a node's parent and of the sibling that is ranked before it."""
    prob, first = columns["log_prob"], above < 0
    better = np.where(columns["rank"] > 0, np.roll(prob, 1), prob)  # siblings stand together, by rank
    parent = {f"parent_{name}": np.where(first, 0.0, columns[name][above]) for name in ("entropy", "log_prob")}
    return parent | {"sibling_gap": better - prob}


def cuts(nodes: Nodes, family: str, score: Float[np.ndarray, " n"]) -> list[Point]:
    """Return points for the trees of nodes whose path scores above a threshold, at thresholds that give SIZES."""
    least = along(score, nodes.above, nodes.depth, np.minimum)
    prompts, place = np.unique(nodes.prompt, return_inverse=True)
    first = np.unique(nodes.tree, return_index=True)[1]
    rounds = np.bincount(place[first], minlength=len(prompts))
    falling = np.sort(least)[::-1]
    points = []
    for size in SIZES:
        kept = least >= falling[int((size - 1) * len(first))]
        accepted = np.bincount(place, kept & nodes.accepted, len(prompts)).astype(int)
        verified = np.bincount(place, kept, len(prompts)).astype(int) + rounds
        counts = (tuple(column.tolist()) for column in (rounds, accepted, verified, np.zeros_like(rounds)))
        points.append(Point(family, f"{family}:{size:.3g}", f"{family} {size:.3g}", None, *counts))
    return points


def eagle2(nodes: Nodes, levels: int | Int[np.ndarray, " n"] = LEVELS[-1]) -> Int[np.ndarray, " n"]:
    """Return a score whose threshold keeps EAGLE-2's N best of each tree; nodes of depth `levels` or more come last."""
    return placed(nodes, -np.where(nodes.depth < levels, nodes.columns["log_joint"], -np.inf))


def ddd(nodes: Nodes, threshold: float) -> Int[np.ndarray, " n"]:
    """Return EAGLE-2's score for trees that end with the first level whose expanded nodes have a summed joint
    probability below the threshold (`c2t.policies.ddd`, here with a check at every level)."""
    expanded = np.isin(np.arange(len(nodes.above)), nodes.above)
    tree = np.unique(nodes.tree, return_inverse=True)[1]
    width = int(nodes.depth.max()) + 1
    mass = np.bincount(
        tree * width + nodes.depth, expanded * np.exp(nodes.columns["log_joint"]), (tree[-1] + 1) * width
    )
    levels = 1 + (mass.reshape(-1, width) < threshold).argmax(1)  # a tree's last level is not expanded
    return eagle2(nodes, levels[tree])


def talon(nodes: Nodes, mu: float) -> Int[np.ndarray, " n"]:
    """Return a score whose threshold keeps the whole first level and then, level by level, the nodes with at least `mu`
    times the best joint probability of their level, until N nodes are spent (`c2t.policies.talon`)."""
    joint, width = nodes.columns["log_joint"], int(nodes.depth.max()) + 1
    level = np.unique(nodes.tree, return_inverse=True)[1] * width + nodes.depth
    best = np.full(level.max() + 1, -np.inf)
    np.maximum.at(best, level, joint)
    near = along((nodes.depth == 0) | (joint - best[level] >= np.log(mu)), nodes.above, nodes.depth, np.minimum)
    return placed(nodes, np.where(near, nodes.depth, width), -joint)


def placed(nodes: Nodes, *keys: np.ndarray) -> Int[np.ndarray, " n"]:
    """Return minus the place of each node in its tree, sorted by the keys, the first one first."""
    order = np.lexsort((np.arange(len(nodes.tree)), *reversed(keys), nodes.tree))
    start = np.flatnonzero(np.r_[True, np.diff(nodes.tree[order]) > 0])
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order)) - np.repeat(start, np.diff(np.r_[start, len(order)]))
    return -place
