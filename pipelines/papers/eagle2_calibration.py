"""EAGLE-2, figure 6: how often drafted tokens are accepted, by the draft's confidence in them (their own probability).

    python -m pipelines.papers.eagle2_calibration [--pair NAME] [--draft NAME] [--temperature T]

A token whose parent is not accepted cannot be accepted whatever it is, so only tokens under accepted ones count.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from c2t.records.reader import read_columns
from pipelines.papers import drawing
from pipelines.papers.figures import Shown, fact, rounds_of, script
from pipelines.papers.study import Study

BINS = 20
ENOUGH = 30  # tokens, for an interval of confidence to be judged
PAPER = {0: "about 0.04", BINS - 1: "about 0.98"}  # Vicuna 7B, Alpaca


class Bins(NamedTuple):
    """Intervals of confidence: tokens in each, their mean confidence, and the share accepted; NaN where empty."""

    tokens: Int[np.ndarray, " bins"]
    confidence: Float[np.ndarray, " bins"]
    acceptance: Float[np.ndarray, " bins"]


def bins(folder: Path) -> Bins:
    """Of the nodes of a harvest whose parents are roots or accepted."""
    columns = read_columns(folder, ("node", "parent", "joint_prob", "accepted"))
    parent = columns["parent"].astype(np.int64)
    above = np.maximum(np.arange(len(parent)) - columns["node"] + parent, 0)  # the parent's row
    counted = (parent < 0) | columns["accepted"][above]
    confidence = columns["joint_prob"] / np.where(parent < 0, 1, columns["joint_prob"][above])
    confidence, accepted = confidence[counted].astype(float), columns["accepted"][counted].astype(float)
    place = np.clip((confidence * BINS).astype(int), 0, BINS - 1)
    tokens = np.bincount(place, minlength=BINS)

    def mean(values: np.ndarray) -> np.ndarray:
        sums = np.bincount(place, values, BINS)
        return np.divide(sums, tokens, where=tokens > 0, out=np.full(BINS, np.nan))

    return Bins(tokens, mean(confidence), mean(accepted))


def figure(study: Study) -> Shown:
    """EAGLE-2, figure 6: calibration of the draft."""
    harvest = study.harvest()
    found = bins(harvest.folder)
    judged = found.tokens >= ENOUGH
    drawn, (panel,) = drawing.panels(1)
    panel.plot([0, 1], [0, 1], "r--", linewidth=1)
    panel.scatter(found.confidence[~judged], found.acceptance[~judged], color=drawing.NOTHING, label=f"< {ENOUGH}")
    panel.plot(found.confidence[judged], found.acceptance[judged], marker="o", markersize=4, label="tokens")
    panel.set(xlabel="draft confidence", ylabel="acceptance rate", xlim=(0, 1), ylim=(0, 1))
    panel.grid(alpha=0.3)
    x, y = found.confidence[judged], found.acceptance[judged]
    likeness = float(np.corrcoef(x, y)[0, 1]) if len(x) > 2 else None
    gap = float(np.abs(x - y).mean()) if len(x) else None
    rows = [
        [f"{place / BINS:.2f}-{(place + 1) / BINS:.2f}", int(found.tokens[place]), *means, PAPER.get(place)]
        for place, means in enumerate(zip(found.confidence.tolist(), found.acceptance.tolist(), strict=True))
    ]
    return Shown(
        "EAGLE-2, figure 6: acceptance rate by the draft's confidence",
        drawn,
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
                f"{_text(found.acceptance[0])} and {_text(found.acceptance[-1])}, holds within 0.03 of the paper's",
            ),
        ],
        [rounds_of(harvest)],
    )


def _text(value: float | None) -> str:
    return "unknown" if value is None or np.isnan(value) else f"{value:.3f}"


if __name__ == "__main__":
    script("eagle2_calibration", figure)
