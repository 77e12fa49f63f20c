"""The draft's probabilities against acceptance: figure 2 of C2T, figure 6 of EAGLE-2."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from c2t.records.reader import read_columns
from c2t.study.interval import Interval
from pipelines.papers.report import Report, Reproduction, rounds_of
from pipelines.papers.study import Study
from pipelines.papers.verdicts import Conclusion, above, below, fact

RANKS = 20
BANDS = ("0-1", "1-2", "2-3", "3-4", "4-5", "5-6", "> 6")  # nats
LOW, HIGH = slice(0, 1), slice(4, None)  # bands of low and of high entropy
ENOUGH = 30  # least distributions of a band, or tokens of an interval of confidence, to be judged


class Cells(NamedTuple):
    """Sums over the nodes of each cell. excess: sum of probability - accepted. squares: sum of its squares."""

    nodes: Int[np.ndarray, "band rank"]
    probability: Float[np.ndarray, "band rank"]
    accepted: Float[np.ndarray, "band rank"]
    excess: Float[np.ndarray, "band rank"]
    squares: Float[np.ndarray, "band rank"]

    def mean(self, name: str) -> Float[np.ndarray, "band rank"]:
        """Return the mean over the nodes of each cell; NaN where there are none."""
        return np.divide(getattr(self, name), self.nodes, where=self.nodes > 0, out=np.full(self.nodes.shape, np.nan))

    def best(self, bands: slice) -> tuple[float, float]:
        """Return the mean excess of the most probable nodes in these bands, and its standard error."""
        n, excess, squares = (getattr(self, name)[bands, 0].sum() for name in ("nodes", "excess", "squares"))
        mean = excess / max(n, 1)
        return mean, float(np.sqrt(max(squares / max(n, 1) - mean**2, 0) / max(n, 1)))


def cells(folder: Path) -> Cells:
    """Sum the nodes of a harvest of one level by cell."""
    columns = read_columns(folder, ("rank", "joint_prob", "entropy", "accepted"))
    band = np.minimum(columns["entropy"].astype(int), len(BANDS) - 1)
    index = band * RANKS + columns["rank"]
    excess = columns["joint_prob"].astype(float) - columns["accepted"]

    def summed(weights: np.ndarray | None) -> np.ndarray:
        return np.bincount(index, weights, len(BANDS) * RANKS).reshape(len(BANDS), RANKS)

    return Cells(*map(summed, (None, columns["joint_prob"], columns["accepted"].astype(float), excess, excess**2)))


def figure2(study: Study) -> Report:
    """C2T, figure 2: probability, acceptance rate and their difference by entropy and rank.

    Of the draft's distributions after each round's root: a harvest of trees of one level and 20 nodes.
    """
    harvest = study.harvest(K=RANKS, levels=1)
    sums = cells(harvest.folder)
    probability, acceptance = map(sums.mean, ("probability", "accepted"))
    ranks = (0, 1, 4, RANKS - 1)
    columns = ["entropy", "distributions", *(f"{what} {rank + 1}" for rank in ranks for what in ("p", "accepted"))]
    rows = [
        [
            name,
            int(sums.nodes[band, 0]),
            *(x for rank in ranks for x in (probability[band, rank], acceptance[band, rank])),
        ]
        for band, name in enumerate(BANDS)
    ]
    matrices = {name: np.nan_to_num(values).tolist() for name, values in sums._asdict().items()}
    return Report(
        "C2T, figure 2: mean probability and acceptance rate of ranks 1, 2, 5 and 20 by entropy",
        columns,
        rows,
        of_bias(sums),
        [rounds_of(harvest), "the paper's figure has no numbers (LLaMA-2 7B, MT-bench)"],
        matrices,
    )


def of_bias(sums: Cells) -> list[Conclusion]:
    """Judge section 3's statements on its figure."""
    judged = sums.nodes[:, 0] >= ENOUGH
    top = sums.mean("probability")[judged, 0]
    both = (sums.accepted > 0) & judged[:, None]
    logs = [np.log(sums.mean(name)[both]) for name in ("probability", "accepted")]
    likeness = float(np.corrcoef(*logs)[0, 1]) if both.sum() > 1 else float("nan")
    rises = [int((np.diff(sums.mean(name)[judged], axis=1) > 0).sum()) for name in ("probability", "accepted")]
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
        _bias("at high entropy the most probable node is underestimated", sums, HIGH, below),
        _bias("at low entropy the most probable node is overestimated", sums, LOW, above),
    ]


def _bias(statement: str, sums: Cells, bands: slice, judge: Callable[..., Conclusion]) -> Conclusion:
    what = f"mean of probability - acceptance of rank 1 at entropy {' and '.join(BANDS[bands])}"
    if sums.nodes[bands, 0].sum() < ENOUGH:
        return fact(statement, None, f"{what}: fewer than {ENOUGH} distributions")
    mean, error = sums.best(bands)
    return judge(statement, what, Interval(mean, mean - 1.96 * error, mean + 1.96 * error), 0)


BINS = 20
CALIBRATION = {0: "about 0.04", BINS - 1: "about 0.98"}  # Vicuna 7B, Alpaca


class Bins(NamedTuple):
    """Intervals of confidence: tokens in each, their mean confidence, and the share accepted; NaN where empty."""

    tokens: Int[np.ndarray, " bins"]
    confidence: Float[np.ndarray, " bins"]
    acceptance: Float[np.ndarray, " bins"]


def bins(folder: Path) -> Bins:
    """Sort nodes of a harvest into bins of confidence: those whose parents are roots or accepted."""
    columns = read_columns(folder, ("node", "parent", "joint_prob", "accepted"))
    parent = columns["parent"].astype(np.int64)
    above = np.maximum(np.arange(len(parent)) - columns["node"] + parent, 0)  # the parent's row
    counted = (parent < 0) | columns["accepted"][above]
    confidence = columns["joint_prob"] / np.where(parent < 0, 1, columns["joint_prob"][above])
    confidence, accepted = confidence[counted].astype(float), columns["accepted"][counted].astype(float)
    index = np.clip((confidence * BINS).astype(int), 0, BINS - 1)
    tokens = np.bincount(index, minlength=BINS)

    def mean(values: np.ndarray) -> np.ndarray:
        sums = np.bincount(index, values, BINS)
        return np.divide(sums, tokens, where=tokens > 0, out=np.full(BINS, np.nan))

    return Bins(tokens, mean(confidence), mean(accepted))


def eagle2_figure6(study: Study) -> Report:
    """EAGLE-2, figure 6: how often drafted tokens are accepted, by the draft's confidence in them.

    A token whose parent is not accepted cannot be accepted whatever it is, so only tokens under accepted ones count.
    """
    harvest = study.harvest()
    binned = bins(harvest.folder)
    judged = binned.tokens >= ENOUGH
    x, y = binned.confidence[judged], binned.acceptance[judged]
    likeness = float(np.corrcoef(x, y)[0, 1]) if len(x) > 2 else None
    gap = float(np.abs(x - y).mean()) if len(x) else None
    rows = [
        [f"{index / BINS:.2f}-{(index + 1) / BINS:.2f}", int(binned.tokens[index]), *means, CALIBRATION.get(index)]
        for index, means in enumerate(zip(binned.confidence.tolist(), binned.acceptance.tolist(), strict=True))
    ]
    return Report(
        "EAGLE-2, figure 6: acceptance rate by the draft's confidence",
        ["confidence", "tokens", "mean confidence", "acceptance rate", "paper"],
        rows,
        [
            fact(
                "confidence and acceptance rate correlate strongly",
                None if likeness is None else likeness > 0.9,
                f"correlation over intervals of {ENOUGH} tokens or more = {_text(likeness)}, holds above 0.9",
            ),
            fact(
                "confidence approximates the acceptance rate with small errors",
                None if gap is None else gap < 0.05,
                f"mean distance of the two over these intervals = {_text(gap)}, holds below 0.05",
            ),
            fact(
                "below 0.05 about 0.04 are accepted, above 0.95 about 0.98",
                bool(abs(y[0] - 0.04) < 0.03 and abs(y[-1] - 0.98) < 0.03) if judged[[0, -1]].all() else None,
                f"{_text(binned.acceptance[0])} and {_text(binned.acceptance[-1])}, holds within 0.03 of the paper's",
            ),
        ],
        [rounds_of(harvest)],
    )


def _text(value: float | None) -> str:
    return "unknown" if value is None or np.isnan(value) else f"{value:.3f}"


REPORTS = {"figure2": Reproduction(figure2), "eagle2-figure6": Reproduction(eagle2_figure6)}
