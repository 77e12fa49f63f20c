"""The figure of a draft's reliability: the share of its tokens that are accepted, over their probability."""

from typing import Any, NamedTuple

from matplotlib.figure import Figure

from c2t.output import plot_style

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


def picture(conditions: dict[str, list[list[Any]]]) -> Figure:
    """Return a figure of acceptance over probability by depth, of all sets together; a panel for each condition.

    conditions: rows of Reliability by the panel's title.
    """
    columns = min(3, len(conditions))
    rows_of_panels = -(-len(conditions) // columns)
    with plot_style.style():
        figure = Figure(figsize=(4.4 * columns, 3.5 * rows_of_panels), layout="constrained")
        panels = [figure.add_subplot(rows_of_panels, columns, number) for number in range(1, len(conditions) + 1)]
    for panel, (title, rows) in zip(panels, conditions.items(), strict=True):
        panel.plot([0, 1], [0, 1], color="0.8", linewidth=1)
        for row in (Reliability(*row) for row in rows):
            if row.data_set == EVERYTHING:
                shown = [(p, a) for tokens, p, a in row.bins if tokens >= ENOUGH]
                panel.plot(*zip(*shown, strict=True), marker="o", markersize=3, label=f"token {row.depth}")
        panel.set(xlabel="draft's probability", xlim=(0, 1), ylim=(0, 1))
        panel.set_title(title, fontsize="medium")
        panel.legend(fontsize="small", frameon=False)
    panels[0].set_ylabel("share accepted")
    return figure
