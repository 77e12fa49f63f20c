"""What a learned score could gain over the joint probability: many scores, judged on domains that they did not learn
from, by cutting trees out of harvested full EAGLE-2 trees.

A node is kept if it and all its ancestors score at least a threshold, so every score gets its whole tau-gamma front
from one harvest, without running a model. Against the real policies this leaves out only children that EAGLE-2 did not
draft, and it visits the full tree's rounds; ratios between scores are what it is good for.

python -m pipelines.variants [HARVEST ...]
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
import typer
from jaxtyping import Bool, Float, Int
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional as F

from c2t import checkpoints, terminal
from c2t.fronts import RIVALS_TOGETHER, compare
from c2t.points import Point
from c2t.records import describe, read_columns, read_records

SIZES = np.geomspace(3, 120, 36)  # mean tokens of the trees that are cut out
NEGATIVES = 20  # per positive, as the committed classifier learns
STEPS, BATCH, HIDDEN, RATE = 1500, 4096, 48, 1e-2
PAPER = ("joint_prob", "entropy", "depth")
LOGS = ("log_joint", "entropy", "depth")
OWN = (*LOGS, "log_prob", "log_max_prob", "rank")
ALL = (*OWN, "path_gap", "path_entropy", "parent_entropy", "parent_log_prob", "sibling_gap")


class Nodes(NamedTuple):
    """Rows of one or several harvests. above: the parent's row, -1 under the root; fold: number of the prompt file."""

    columns: dict[str, Float[np.ndarray, " n"]]
    above: Int[np.ndarray, " n"]
    depth: Int[np.ndarray, " n"]
    tree: Int[np.ndarray, " n"]
    prompt: Int[np.ndarray, " n"]
    fold: Int[np.ndarray, " n"]
    accepted: Bool[np.ndarray, " n"]
    files: tuple[str, ...]


def along(values: np.ndarray, above: np.ndarray, depth: np.ndarray, join: Callable = np.add) -> np.ndarray:
    """Each node's value joined with those of its ancestors."""
    joined = values.astype(np.float64)
    for level in range(1, int(depth.max()) + 1):
        here = depth == level
        joined[here] = join(joined[here], joined[above[here]])
    return joined


def read_nodes(folder: Path) -> Nodes:
    """Every column that costs nothing at run time: of the node, its siblings, its parent and its path."""
    records = read_records([folder], ["prob", "peak", "rank"])
    place = read_columns(folder, ("node", "parent"))
    parent = place["parent"].astype(np.int64)
    above = np.where(parent < 0, -1, np.arange(len(parent)) - place["node"] + parent)
    joint, prob, peak = (getattr(records, name).double().numpy() for name in ("joint", "prob", "peak"))
    entropy, depth = records.entropy.double().numpy(), records.depth.numpy().astype(np.int64)
    first = above < 0
    better = np.where(records.rank.numpy() > 0, np.roll(prob, 1), prob)  # siblings stand together, by rank
    columns = {
        "joint_prob": np.exp(joint), "log_joint": joint, "entropy": entropy, "depth": depth.astype(float),
        "log_prob": prob, "log_max_prob": peak, "rank": records.rank.numpy().astype(float),
        "path_gap": along(prob - peak, above, depth), "path_entropy": along(entropy, above, depth),
        "parent_entropy": np.where(first, 0.0, entropy[above]), "parent_log_prob": np.where(first, 0.0, prob[above]),
        "sibling_gap": better - prob,
    }  # fmt: skip
    entries = describe(folder).prompts
    files = tuple(sorted({entry["file"] for entry in entries}))
    fold = np.array([files.index(entry["file"]) for entry in entries])
    prompt = records.prompt.numpy().astype(np.int64)
    tree = records.tree.numpy().astype(np.int64)
    return Nodes(columns, above, depth, tree, prompt, fold[prompt], records.accepted.numpy(), files)


def matrix(nodes: Nodes, names: tuple[str, ...]) -> Float[np.ndarray, "n F"]:
    return np.stack([nodes.columns[name] for name in names], 1).astype(np.float32)


def sample(nodes: Nodes, rows: Bool[np.ndarray, " n"], rng: np.random.Generator) -> Int[np.ndarray, " m"]:
    """All accepted rows of these, and NEGATIVES others for each."""
    positive = np.flatnonzero(rows & nodes.accepted)
    others = np.flatnonzero(rows & ~nodes.accepted)
    return np.concatenate([positive, rng.choice(others, min(len(others), NEGATIVES * len(positive)), replace=False)])


def boosting(x: np.ndarray, y: np.ndarray, nodes: Nodes, chosen: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    model = HistGradientBoostingClassifier(max_iter=120, learning_rate=0.08, max_leaf_nodes=15, l2_regularization=5.0)
    return model.fit(x, y).decision_function


def logistic(x: np.ndarray, y: np.ndarray, nodes: Nodes, chosen: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y).decision_function


def network(loss: str) -> Callable:
    """Two layers of HIDDEN units on standardised inputs. Losses: bce; reach: BCE weighted by the joint probability of
    the parent, that is by how likely the node matters; rank: every accepted node against others of its own tree."""

    def fit(x: np.ndarray, y: np.ndarray, nodes: Nodes, chosen: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        torch.manual_seed(0)
        mean, scale = x.mean(0), x.std(0) + 1e-6
        inputs, wanted = torch.from_numpy((x - mean) / scale), torch.from_numpy(y).float()
        parent = np.where(nodes.above[chosen] < 0, 0.0, nodes.columns["log_joint"][nodes.above[chosen]])
        weight = torch.from_numpy(np.exp(0.5 * parent)).float() if loss == "reach" else torch.ones(len(y))
        rivals = torch.from_numpy(_rivals(nodes.tree[chosen], y))
        model = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
        optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
        schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.02, STEPS)
        for _ in range(STEPS):
            if loss == "rank":
                pair = rivals[torch.randint(len(rivals), (BATCH,))]
                value = F.softplus(model(inputs[pair[:, 1]]) - model(inputs[pair[:, 0]])).mean()
            else:
                rows = torch.randint(len(y), (BATCH,))
                value = F.binary_cross_entropy_with_logits(model(inputs[rows])[:, 0], wanted[rows], weight[rows])
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            schedule.step()

        @torch.no_grad()
        def score(rows: np.ndarray) -> np.ndarray:
            return model(torch.from_numpy((rows - mean) / scale))[:, 0].numpy()

        return score

    return fit


def _rivals(tree: np.ndarray, accepted: np.ndarray) -> Int[np.ndarray, "p 2"]:
    """Pairs of rows of the same tree, the first accepted, the second not."""
    order = np.argsort(tree, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(tree[order])) + 1)
    pairs = [np.stack(np.meshgrid(g[accepted[g]], g[~accepted[g]]), -1).reshape(-1, 2) for g in groups]
    return np.concatenate(pairs)


# name -> (features, how they are learned)
VARIANTS: dict[str, tuple[tuple[str, ...], Callable]] = {
    "paper's network": (PAPER, network("bce")),
    "network, log P": (LOGS, network("bce")),
    "network, log P, own p, max p, rank": (OWN, network("bce")),
    "network, all 11": (ALL, network("bce")),
    "network, all 11, weighted by reach": (ALL, network("reach")),
    "network, all 11, ranked in the tree": (ALL, network("rank")),
    "logistic, log P": (LOGS, logistic),
    "logistic, all 11": (ALL, logistic),
    "boosted trees, log P alone": (("log_joint",), boosting),
    "boosted trees, log P": (LOGS, boosting),
    "boosted trees, all 11": (ALL, boosting),
}


def scores(nodes: Nodes) -> Iterator[tuple[str, Float[np.ndarray, " n"]]]:
    """Each variant's score of every node, by the model that has not seen the node's prompt file."""
    rng = np.random.default_rng(0)
    parts = [(nodes.fold != fold, nodes.fold == fold) for fold in range(len(nodes.files))]
    samples = [sample(nodes, seen, rng) for seen, _ in parts]
    for name, (features, fit) in VARIANTS.items():
        score, x = np.zeros(len(nodes.above)), matrix(nodes, features)
        for (_, unseen), chosen in zip(parts, samples, strict=True):
            score[unseen] = fit(x[chosen], nodes.accepted[chosen], nodes, chosen)(x[unseen])
        yield name, score


def cuts(nodes: Nodes, family: str, score: Float[np.ndarray, " n"]) -> list[Point]:
    """The trees of nodes whose path scores above a threshold, for thresholds that give SIZES."""
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


def eagle2(nodes: Nodes) -> Float[np.ndarray, " n"]:
    """Minus the place in its tree by joint probability: a threshold on it keeps EAGLE-2's N best of each tree."""
    order = np.lexsort((np.arange(len(nodes.tree)), -nodes.columns["log_joint"], nodes.tree))
    start = np.flatnonzero(np.r_[True, np.diff(nodes.tree[order]) > 0])
    place = np.empty(len(order))
    place[order] = np.arange(len(order)) - np.repeat(start, np.diff(np.r_[start, len(order)]))
    return -place


def main(
    data: Annotated[list[Path] | None, typer.Argument(help="Harvests.", show_default="data/harvest/tiny")] = None,
) -> None:
    for folder in data or [checkpoints.harvest_of("tiny")]:
        nodes = read_nodes(folder)
        rivals = cuts(nodes, "joint probability", nodes.columns["log_joint"]) + cuts(nodes, "eagle2", eagle2(nodes))
        deepest = max(point.tau for point in rivals)
        taus = [tau for tau in np.arange(1, 8, 0.5) if tau < deepest]
        lines = []
        for name, score in scores(nodes):
            found = compare([*cuts(nodes, name, score), *rivals], name, taus).ratios[RIVALS_TOGETHER]
            shown = ["-" if r.ratio is None else f"{r.ratio:.2f} ({r.low or 0:.2f}-{r.high or 0:.2f})" for r in found]
            lines.append([name, *shown])
        title = f"{folder}: gamma over that of the better rival (threshold on P, EAGLE-2's N best) at equal tau"
        terminal.table(title, ["score", *(f"tau {tau:g}" for tau in taus)], lines)


if __name__ == "__main__":
    typer.run(main)
