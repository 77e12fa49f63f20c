"""C2T, figure 2: probability, acceptance rate and their difference by entropy and rank, of the draft's distributions
after each round's root (a harvest of trees of one level and 20 nodes).

    python -m pipelines.papers.figure2 [--pair NAME] [--draft NAME] [--temperature T]
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from matplotlib.colors import CenteredNorm, LogNorm

from c2t.records.reader import read_columns
from pipelines.papers import drawing
from pipelines.papers.figures import Shown, about, fact, rounds_of, script
from pipelines.papers.study import Study
from pipelines.papers.verdicts import Conclusion, above, below

RANKS = 20
BANDS = ("0-1", "1-2", "2-3", "3-4", "4-5", "5-6", "> 6")  # nats
LOW, HIGH = slice(0, 1), slice(4, None)  # bands of low and of high entropy
ENOUGH = 30  # distributions, for a band to be judged


class Cells(NamedTuple):
    """Sums over the nodes of each cell. excess: probability - accepted; squares: of it."""

    nodes: Int[np.ndarray, "band rank"]
    probability: Float[np.ndarray, "band rank"]
    accepted: Float[np.ndarray, "band rank"]
    excess: Float[np.ndarray, "band rank"]
    squares: Float[np.ndarray, "band rank"]

    def mean(self, name: str) -> Float[np.ndarray, "band rank"]:
        """Per node; NaN where there are none."""
        return np.divide(getattr(self, name), self.nodes, where=self.nodes > 0, out=np.full(self.nodes.shape, np.nan))

    def best(self, bands: slice) -> tuple[float, float]:
        """Mean excess of the most probable nodes in these bands, and its standard error."""
        n, excess, squares = (getattr(self, name)[bands, 0].sum() for name in ("nodes", "excess", "squares"))
        mean = excess / max(n, 1)
        return mean, float(np.sqrt(max(squares / max(n, 1) - mean**2, 0) / max(n, 1)))


def cells(folder: Path) -> Cells:
    """Of a harvest of one level."""
    columns = read_columns(folder, ("rank", "joint_prob", "entropy", "accepted"))
    band = np.minimum(columns["entropy"].astype(int), len(BANDS) - 1)
    place = band * RANKS + columns["rank"]
    excess = columns["joint_prob"].astype(float) - columns["accepted"]

    def summed(weights: np.ndarray | None) -> np.ndarray:
        return np.bincount(place, weights, len(BANDS) * RANKS).reshape(len(BANDS), RANKS)

    return Cells(*map(summed, (None, columns["joint_prob"], columns["accepted"].astype(float), excess, excess**2)))


def figure(study: Study) -> Shown:
    """C2T, figure 2: bias of probabilities by entropy and rank."""
    harvest = study.harvest(K=RANKS, levels=1)
    found = cells(harvest.folder)
    probability, acceptance, bias = map(found.mean, ("probability", "accepted", "excess"))
    drawn, (first, second, third) = drawing.panels(3)
    least = 1 / max(found.nodes.max(), 10)
    for panel, values, title in ((first, probability, "probability"), (second, acceptance, "acceptance rate")):
        values = np.where(values > 0, values, np.nan)
        drawing.heatmap(panel, values, BANDS, LogNorm(least, 1), "viridis")
        panel.set_title(f"{title}, log colours", fontsize="medium")
    drawing.heatmap(third, bias, BANDS, CenteredNorm(0), "bwr")
    third.set_title("probability - acceptance rate", fontsize="medium")
    for panel in (first, second, third):
        panel.set_xlabel("rank")
        panel.set_ylabel("entropy, nats")
    ranks = (0, 1, 4, RANKS - 1)
    columns = ["entropy", "distributions", *(f"{what} {rank + 1}" for rank in ranks for what in ("p", "accepted"))]
    rows = [
        [
            name,
            int(found.nodes[band, 0]),
            *(x for rank in ranks for x in (probability[band, rank], acceptance[band, rank])),
        ]
        for band, name in enumerate(BANDS)
    ]
    matrices = {name: np.nan_to_num(values).tolist() for name, values in found._asdict().items()}
    return Shown(
        "C2T, figure 2: mean probability and acceptance rate of ranks 1, 2, 5 and 20 by entropy",
        drawn,
        columns,
        rows,
        conclusions(found),
        [rounds_of(harvest), "the paper draws its figure without numbers (LLaMA-2 7B, MT-bench)"],
        matrices,
    )


def conclusions(found: Cells) -> list[Conclusion]:
    """What section 3 reads off its figure."""
    judged = found.nodes[:, 0] >= ENOUGH
    top = found.mean("probability")[judged, 0]
    both = (found.accepted > 0) & judged[:, None]
    logs = [np.log(found.mean(name)[both]) for name in ("probability", "accepted")]
    likeness = float(np.corrcoef(*logs)[0, 1]) if both.sum() > 1 else float("nan")
    rises = [int((np.diff(found.mean(name)[judged], axis=1) > 0).sum()) for name in ("probability", "accepted")]
    return [
        fact(
            "lower entropy, more concentrated distributions",
            bool((np.diff(top) < 0).all()) if len(top) > 1 else None,
            f"mean probability of rank 1 by band: {', '.join(f'{p:.3f}' for p in top)}; holds if it falls throughout",
        ),
        fact(
            "probability and acceptance rate correlate",
            None if np.isnan(likeness) else likeness > 0.9,
            f"correlation of their logs over {int(both.sum())} cells = {likeness:.3f}, holds above 0.9",
        ),
        fact(
            "acceptance rates are less stable than probabilities",
            rises[1] > rises[0] if len(top) else None,
            f"from one rank to the next acceptance rises {rises[1]} times, probability {rises[0]} times",
        ),
        _bias("at high entropy the most probable node is underestimated", found, HIGH, below),
        _bias("at low entropy the most probable node is overestimated", found, LOW, above),
    ]


def _bias(statement: str, found: Cells, bands: slice, judge: Callable[..., Conclusion]) -> Conclusion:
    what = f"mean of probability - acceptance of rank 1 at entropy {' and '.join(BANDS[bands])}"
    if found.nodes[bands, 0].sum() < ENOUGH:
        return fact(statement, None, f"{what}: fewer than {ENOUGH} distributions")
    return judge(statement, what, about(*found.best(bands)), 0)


if __name__ == "__main__":
    script("figure2", figure)
