"""Is a draft calibrated for what is accepted? Reliability of its probabilities by depth and data set, from recorded
trees: only children of accepted nodes count, because what hangs from a wrong token is never accepted."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.figure import Figure

from c2t.protocols import POWERS
from pipelines.gain.subtrees import Nodes
from pipelines.papers import drawing

BINS = 10
ENOUGH = 30  # tokens, for a bin to be drawn
EVERYTHING = "all"


class Reliability(NamedTuple):
    """Draft probabilities and acceptance of the tokens of one depth (1: the first drafted token) on one data set.

    first, first_accepted: mean probability of the most probable token, and the share of the rounds that accept it.
    bins: tokens, mean probability and share accepted in each tenth of probability. log_loss: (draft temperature, mean
    nats of all candidates' acceptance).
    """

    data_set: str
    depth: int
    rounds: int
    first: float
    first_accepted: float
    bins: list[tuple[int, float, float]]
    log_loss: list[tuple[float, float]]


def reliability(nodes: Nodes, sets: Sequence[str]) -> list[Reliability]:
    """Return the reliability by data set and depth, and of all sets together; sets: the one of each prompt."""
    reached = (nodes.above < 0) | nodes.accepted[nodes.above]
    own = np.array(sets)[nodes.prompt]
    parts = [
        (name, depth, reached & (nodes.depth == depth - 1) & (own == name if name != EVERYTHING else True))
        for name in (*dict.fromkeys(sets), EVERYTHING)
        for depth in range(1, int(nodes.depth.max()) + 2)
    ]
    return [of(nodes, *part) for part in parts if part[-1].any()]


def of(nodes: Nodes, name: str, depth: int, kept: Bool[np.ndarray, " n"]) -> Reliability:
    """Return the reliability of the nodes that are kept."""
    probability, accepted = np.exp(nodes.columns["log_prob"][kept]), nodes.accepted[kept].astype(float)
    first = nodes.columns["rank"][kept] == 0
    place = np.minimum((probability * BINS).astype(int), BINS - 1)
    tokens = np.bincount(place, minlength=BINS)
    sums = (np.bincount(place, values, BINS) for values in (probability, accepted))
    means = [np.divide(one, tokens, where=tokens > 0, out=np.zeros(BINS)).round(4).tolist() for one in sums]
    powers = {1.0: nodes.columns["log_prob"]} | {power: nodes.columns[f"log_prob^{power:g}"] for power in POWERS}
    losses = [(round(1 / power, 3), log_loss(values[kept], accepted)) for power, values in sorted(powers.items())]
    return Reliability(
        name,
        depth,
        int(first.sum()),
        round(float(probability[first].mean()), 4),
        round(float(accepted[first].mean()), 4),
        list(zip(tokens.tolist(), *means, strict=True)),
        losses,
    )


def log_loss(log_prob: Float[np.ndarray, " n"], accepted: Float[np.ndarray, " n"]) -> float:
    """Return the mean cross-entropy of acceptance under these probabilities, in nats."""
    log_prob = np.minimum(log_prob, -1e-6)  # a probability that rounds to 1 would make one miss infinitely dear
    return round(float(-np.where(accepted > 0, log_prob, np.log1p(-np.exp(log_prob))).mean()), 5)


def picture(found: dict[str, list[Reliability]]) -> Figure:
    """Return a figure of acceptance over probability by depth, of all sets together; a panel for each condition."""
    figure, panels = drawing.panels(len(found))
    for panel, (title, rows) in zip(panels, found.items(), strict=True):
        panel.plot([0, 1], [0, 1], color=drawing.NOTHING, linewidth=1)
        for row in rows:
            if row.data_set == EVERYTHING:
                shown = [(p, a) for tokens, p, a in row.bins if tokens >= ENOUGH]
                panel.plot(*zip(*shown, strict=True), marker="o", markersize=3, label=f"token {row.depth}")
        panel.set(xlabel="draft's probability", xlim=(0, 1), ylim=(0, 1))
        panel.set_title(title, fontsize="medium")
        panel.legend(fontsize="small", frameon=False)
    panels[0].set_ylabel("share accepted")
    return figure
