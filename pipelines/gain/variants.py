"""Scores of a tree's nodes: learned ones, tested on domains that they did not learn from, and untrained ones.
`pipelines.gain.study` compares them."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional as F

from c2t.training.settings import MODELS
from pipelines.gain.context import PRIOR_WEIGHTS
from pipelines.gain.subtrees import DEPTHS, LEVELS, Nodes, along, ddd, eagle2, talon

NEGATIVES = 20  # per positive, as the committed classifier learns
GROWN = 40
COSTS = (0.02, 0.8)  # of a token, in accepted tokens; with NEGATIVES per positive
STEPS, BATCH, HIDDEN, RATE = 1500, 4096, 48, 1e-2
PAPER = ("joint_prob", "entropy", "depth")
LOGS = ("log_joint", "entropy", "depth")
LEVELWISE = ("log_joint", "entropy", *(f"depth_{level}" for level in range(1, DEPTHS)))
OWN = (*LOGS, "log_prob", "log_max_prob", "rank")
ALL = (*OWN, "path_gap", "path_entropy", "parent_entropy", "parent_log_prob", "sibling_gap")
# Columns of one step, of the text (`pipelines.gain.context`), and of the round: a fused kernel may carry 16 inputs.
STEP = ("log_prob", "log_max_prob", "rank", "entropy", "depth", "sibling_gap", "parent_entropy", "parent_log_prob")
COPIES = ("count_1", "count_2", "share_2", "count_3", "share_3", "count_4", "match", "nearness")
ROUND = ("root_entropy", "root_peak", "last_accepted", "last_top")


def matrix(nodes: Nodes, names: tuple[str, ...]) -> Float[np.ndarray, "n F"]:
    """Return these columns of the nodes side by side."""
    return np.stack([nodes.columns[name] for name in names], 1).astype(np.float32)


def sample(nodes: Nodes, rows: Bool[np.ndarray, " n"], rng: np.random.Generator) -> Int[np.ndarray, " m"]:
    """Return all accepted ones of these rows, and NEGATIVES others for each."""
    positive = np.flatnonzero(rows & nodes.accepted)
    others = np.flatnonzero(rows & ~nodes.accepted)
    return np.concatenate([positive, rng.choice(others, min(len(others), NEGATIVES * len(positive)), replace=False)])


def boosting(x: np.ndarray, y: np.ndarray, nodes: Nodes, chosen: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Fit gradient-boosted trees; return their score of rows."""
    model = HistGradientBoostingClassifier(
        max_iter=120, learning_rate=0.08, max_leaf_nodes=15, l2_regularization=5.0, random_state=0
    )
    return model.fit(x, y).decision_function


def logistic(x: np.ndarray, y: np.ndarray, nodes: Nodes, chosen: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Fit a logistic regression on standardised inputs; return its score of rows."""
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y).decision_function


def network(loss: str) -> Callable:
    """Return a fit of two layers of HIDDEN units on standardised inputs.

    Losses: "bce"; "reach": BCE weighted by the square root of the parent's joint probability, that is by how likely the
    node matters; "rank": every accepted node against others of its own tree; "budget": accepted length minus the cost
    of the tokens kept by a soft threshold, at costs within COSTS.
    """

    def fit(x: np.ndarray, y: np.ndarray, nodes: Nodes, chosen: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        torch.manual_seed(0)
        mean, scale = x.mean(0), x.std(0) + 1e-6
        inputs, wanted = torch.from_numpy((x - mean) / scale), torch.from_numpy(y).float()
        parent = np.where(nodes.above[chosen] < 0, 0.0, nodes.columns["log_joint"][nodes.above[chosen]])
        weight = torch.from_numpy(np.exp(0.5 * parent)).float() if loss == "reach" else torch.ones(len(y))
        rivals = torch.from_numpy(_rivals(nodes.tree[chosen], y)) if loss == "rank" else None
        model = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
        optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
        schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.02, STEPS)
        for _ in range(STEPS):
            if loss == "rank":
                pair = rivals[torch.randint(len(rivals), (BATCH,))]
                value = F.softplus(model(inputs[pair[:, 1]]) - model(inputs[pair[:, 0]])).mean()
            else:
                rows = torch.randint(len(y), (BATCH,))
                logit = model(inputs[rows])[:, 0]
                value = F.binary_cross_entropy_with_logits(logit, wanted[rows], weight[rows])
                if loss == "budget":
                    cost = torch.empty(BATCH).uniform_(*np.log(COSTS)).exp()
                    value = ((cost - wanted[rows]) * torch.sigmoid(logit - torch.logit(cost))).mean() / cost.mean()
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
    """Return pairs of rows of the same tree, the first accepted, the second not."""
    order = np.argsort(tree, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(tree[order])) + 1)
    pairs = [np.stack(np.meshgrid(g[accepted[g]], g[~accepted[g]]), -1).reshape(-1, 2) for g in groups]
    return np.concatenate(pairs)


class Variant(NamedTuple):
    """Learned score. features: columns. fit: function that learns it. conditional: it is learned from children of
    accepted nodes.

    A path's score is learned from all nodes (some of those not accepted are left out). A conditional one is the
    probability that a node is accepted if its parent is, learned from the children of accepted nodes and multiplied
    along the path: fewer rows, but each of them informs. grown: number of further fits, each from the nodes that trees
    of the score so far (of GROWN tokens) would choose from.
    """

    features: tuple[str, ...]
    fit: Callable
    conditional: bool = False
    grown: int = 0


VARIANTS = {
    "paper's network": Variant(PAPER, network("bce")),
    "network, log P": Variant(LOGS, network("bce")),
    "network, log P, own p, max p, rank": Variant(OWN, network("bce")),
    "network, all 11": Variant(ALL, network("bce")),
    "network, all 11, weighted by reach": Variant(ALL, network("reach")),
    "network, all 11, ranked in the tree": Variant(ALL, network("rank")),
    "network, all 11, length under a budget": Variant(ALL, network("budget")),
    "network, log P, each depth": Variant(LEVELWISE, network("bce")),
    "paper's network, on trees it grew": Variant(PAPER, network("bce"), grown=2),
    "network, log P, on trees it grew": Variant(LOGS, network("bce"), grown=2),
    "network, all 11, on trees it grew": Variant(ALL, network("bce"), grown=2),
    "logistic, log P": Variant(LOGS, logistic),
    "logistic, all 11": Variant(ALL, logistic),
    "boosted trees, log P alone": Variant(("log_joint",), boosting),
    "boosted trees, log P": Variant(LOGS, boosting),
    "boosted trees, log P, root": Variant((*LOGS, *ROUND), boosting),
    "boosted trees, all 11": Variant(ALL, boosting),
    "boosted trees, all 11, root": Variant((*ALL, *ROUND), boosting),
    "network, all 11, copies": Variant((*ALL, *COPIES), network("bce")),
    "boosted trees, all 11, copies": Variant((*ALL, *COPIES), boosting),
    "conditional: logistic, own 8": Variant(STEP, logistic, conditional=True),
    "conditional: logistic, own 8, copies": Variant((*STEP, *COPIES), logistic, conditional=True),
    "conditional: network, own 8": Variant(STEP, network("bce"), conditional=True),
    "conditional: network, own 5": Variant(MODELS["c2t-conditional"].features, network("bce"), conditional=True),
    "conditional: network, own 8, copies": Variant((*STEP, *COPIES), network("bce"), conditional=True),
    "conditional: boosted trees, own p alone": Variant(("log_prob",), boosting, conditional=True),
    "conditional: boosted trees, own p, max p, rank": Variant(
        ("log_prob", "log_max_prob", "rank"), boosting, conditional=True
    ),
    "conditional: boosted trees, own 8": Variant(STEP, boosting, conditional=True),
    "conditional: boosted trees, own 8, root": Variant((*STEP, *ROUND), boosting, conditional=True),
    "conditional: boosted trees, own p, match": Variant(("log_prob", "match"), boosting, conditional=True),
    "conditional: boosted trees, own 8, count_1": Variant((*STEP, "count_1"), boosting, conditional=True),
    "conditional: boosted trees, own 8, count_3": Variant((*STEP, "count_3"), boosting, conditional=True),
    "conditional: boosted trees, own 8, match": Variant((*STEP, "match"), boosting, conditional=True),
    "conditional: boosted trees, own 8, copies": Variant((*STEP, *COPIES), boosting, conditional=True),
    "conditional: boosted trees, own 8, copies, root": Variant((*STEP, *COPIES, *ROUND), boosting, conditional=True),
}


def learned(nodes: Nodes, variant: Variant) -> Float[np.ndarray, " n"]:
    """Return the score of every node, by the model that has not seen the node's prompt file."""
    rng = np.random.default_rng(0)
    score, x = np.zeros(len(nodes.above)), matrix(nodes, variant.features)
    reached = (nodes.above < 0) | nodes.accepted[nodes.above]
    for fold in range(len(nodes.files)):
        seen, unseen = nodes.fold != fold, nodes.fold == fold
        chosen = np.flatnonzero(seen & reached) if variant.conditional else sample(nodes, seen, rng)
        model = variant.fit(x[chosen], nodes.accepted[chosen], nodes, chosen)
        for _ in range(variant.grown):
            chosen = sample(nodes, seen & asked(nodes, model(x), seen), rng)
            model = variant.fit(x[chosen], nodes.accepted[chosen], nodes, chosen)
        score[unseen] = model(x[unseen])
    return of_path(variant, score, nodes)


def transferred(variant: Variant, source: Nodes, nodes: Nodes) -> Float[np.ndarray, " n"]:
    """Return the score of every node, by the model that learned from all nodes of `source`."""
    chosen = np.flatnonzero((source.above < 0) | source.accepted[source.above])
    if not variant.conditional:
        chosen = sample(source, np.ones(len(source.above), bool), np.random.default_rng(0))
    model = variant.fit(matrix(source, variant.features)[chosen], source.accepted[chosen], source, chosen)
    return of_path(variant, model(matrix(nodes, variant.features)), nodes)


def of_path(variant: Variant, score: Float[np.ndarray, " n"], nodes: Nodes) -> Float[np.ndarray, " n"]:
    """Return what nodes are ranked by: a conditional score is a logit, whose probabilities multiply along the path."""
    return along(-np.logaddexp(0, -score), nodes.above, nodes.depth) if variant.conditional else score


def asked(nodes: Nodes, score: Float[np.ndarray, " n"], rows: Bool[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Return a mask of the nodes that trees cut out by this score choose from: children of the nodes that they keep.
    The trees have GROWN tokens on average in `rows`."""
    least = along(score, nodes.above, nodes.depth, np.minimum)
    trees = len(np.unique(nodes.tree[rows]))
    kept = least >= np.sort(least[rows])[::-1][GROWN * trees - 1]
    return (nodes.above < 0) | kept[nodes.above]


def bonus(nodes: Nodes, nats: float) -> Float[np.ndarray, " n"]:
    """Return log P plus `nats` for each token of the path and each token before it that it followed earlier too."""
    step = nodes.columns["log_prob"] + nats * (nodes.columns["match"] - 1).clip(0)
    return along(step, nodes.above, nodes.depth)


def narrow(nodes: Nodes, width: int) -> Float[np.ndarray, " n"]:
    """Return log P with a first level of `width` nodes; nodes of the first level beyond them come last."""
    dropped = (nodes.depth == 0) & (nodes.columns["rank"] >= width)
    return nodes.columns["log_joint"] - 1e3 * dropped


# Scores that rank nodes by the draft alone, and further ones without training.
RIVALS: dict[str, Callable[[Nodes], np.ndarray]] = {
    "threshold on P": lambda nodes: nodes.columns["log_joint"],
    **{f"EAGLE-2, {levels} levels": partial(eagle2, levels=levels) for levels in LEVELS},
    **{f"DDD, {threshold}": partial(ddd, threshold=threshold) for threshold in (0.03, 0.1, 0.3)},
    **{f"TALON, {mu}": partial(talon, mu=mu) for mu in (0.01, 0.03, 0.1, 0.3)},
}
UNTRAINED: dict[str, Callable[[Nodes], np.ndarray]] = {
    **RIVALS,
    **{
        f"threshold on P, {slope:+g} nats a level": lambda nodes, slope=slope: (
            nodes.columns["log_joint"] + slope * nodes.columns["depth"]
        )
        for slope in (-0.3, -0.15, 0.15, 0.3)
    },
    **{f"threshold on P, first level of {width}": partial(narrow, width=width) for width in (2, 3, 5)},
    **{
        f"P mixed with copies, doubt {prior_weight}": lambda nodes, prior_weight=prior_weight: nodes.columns[
            f"mixed_{prior_weight}"
        ]
        for prior_weight in PRIOR_WEIGHTS
    },
    **{f"P with {nats} nats a copied token": partial(bonus, nats=nats) for nats in (0.1, 0.2)},
}


def scores(nodes: Nodes, names: Iterable[str]) -> Iterator[tuple[str, Float[np.ndarray, " n"]]]:
    """Yield the name and every node's value of these scores."""
    for name in names:
        yield name, UNTRAINED[name](nodes) if name in UNTRAINED else learned(nodes, VARIANTS[name])
