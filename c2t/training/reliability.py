"""The reliability picture: how often tokens are accepted that a classifier gives a probability."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from c2t.output import plot_style
from c2t.training.metrics import Validation

BINS, RESAMPLES, LEVEL = 10, 1000, 0.95


class Reliability(NamedTuple):
    """Rows of validation in bins of like probability: mean probability, share accepted, and its 95 % interval by a
    bootstrap over trees, whose nodes depend on each other. error: mean distance of both, weighed by rows."""

    probability: Float[Tensor, " b"]
    accepted: Float[Tensor, " b"]
    low: Float[Tensor, " b"]
    high: Float[Tensor, " b"]
    error: float


def reliability(probability: Float[Tensor, " v"], validation: Validation, seed: int = 0) -> Reliability:
    """Return the reliability of probabilities for the validation rows, in bins of as many accepted tokens each: most
    rows are improbable, and bins of as many rows would all lie near 0."""
    probability, accepted = probability.double(), validation.accepted.double()
    edges = probability[validation.accepted].quantile(torch.linspace(0, 1, BINS + 1).double()).unique()
    bins = torch.bucketize(probability, edges[1:-1], right=True)
    trees, count = int(validation.tree.max()) + 1, max(len(edges) - 1, 1)
    sums = torch.zeros(3, trees, count, dtype=torch.float64)  # rows, accepted ones, probabilities
    for total, values in zip(sums, (torch.ones_like(accepted), accepted, probability), strict=True):
        total.index_put_((validation.tree, bins), values, accumulate=True)
    generator, shares = torch.Generator().manual_seed(seed), []
    for _ in range(RESAMPLES):
        sampled = torch.randint(trees, (trees,), generator=generator)
        times = torch.bincount(sampled, minlength=trees).double()
        shares.append((times @ sums[1]) / (times @ sums[0]))
    resampled, (rows, hits, mass) = torch.stack(shares), sums.sum(1)
    low, high = resampled.nanquantile(torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2]).double(), 0)
    error = float((mass - hits).abs().sum() / rows.sum())
    return Reliability(mass / rows, hits / rows, low, high, error)


def picture(result: Reliability, name: str) -> Figure:
    """Plot the bins with their intervals and the diagonal, on logarithmic axes."""
    with plot_style.style():
        figure = Figure(figsize=(4.6, 4.2), layout="constrained")
        panel = figure.subplots()
        x, y = result.probability.numpy(), result.accepted.numpy()
        low, high = (y - result.low.numpy()).clip(0), (result.high.numpy() - y).clip(0)
        least = max(min(x.min(), y[y > 0].min(initial=1.0)) / 2, 1e-6)
        panel.plot([least, 1], [least, 1], color=plot_style.PALE, marker="", linewidth=1)
        panel.text(
            0.3, 0.12, "calibrated", color=plot_style.PALE, rotation=45, fontsize="small", ha="center", va="center"
        )
        panel.errorbar(x, y, (low, high), color=plot_style.COLOURS[0], marker="o", capsize=2)
        panel.set(xscale="log", yscale="log", xlim=(least, 1.2), ylim=(least, 1.2), aspect="equal")
        panel.set(xlabel=f"probability by {name}", ylabel="share accepted (95 % interval)")
        panel.set_title(f"Off by {result.error:.4f} on average")
    return figure
