"""Render every table and measured number of README and docs from data/results; `tree` draws the picture of one tree,
`bars` that of a round's milliseconds, `lengths` acceptance lengths over the prompt's length, `figures` speeds over the
batch size and a draft's reliability.

python -m pipelines.docs [tables|tree|bars|lengths|figures]
"""

from typing import Annotated, Literal

import typer

from c2t.output import plot_style
from c2t.study.plots import plot_batches
from pipelines.docs import bars, findings, lengths
from pipelines.docs.batches import batch_figure, batch_speeds
from pipelines.docs.pages import ROOT, pages, render
from pipelines.docs.result_lines import lines
from pipelines.docs.tables import PARTS
from pipelines.docs.tree import draw

PICTURE = ROOT / "docs" / "images" / "tree.svg"
BARS = ROOT / "docs" / "images" / "round.svg"
LENGTHS = ROOT / "docs" / "images" / "lengths.svg"


def main(
    what: Annotated[
        Literal["tables", "tree", "bars", "lengths", "figures"], typer.Argument(help="What to render.")
    ] = "tables",
) -> None:
    """Render the tables of README and docs, or one of their pictures."""
    if what == "tree":
        shown = draw(PICTURE)
        print(
            f"{PICTURE}: {len(shown.drafted)} drafted, {len(shown.verified)} verified, {len(shown.accepted)} accepted"
        )
        return
    if what == "bars":
        BARS.write_text(bars.svg([line["figures"] for line in lines("breakdown.jsonl")]), encoding="utf-8")
        return
    if what == "lengths":
        LENGTHS.write_text(lengths.svg([line["figures"] for line in lines("lengths.jsonl")]), encoding="utf-8")
        return
    if what == "figures":
        for pair, rows in batch_speeds().items():
            if batch_figure(pair).exists():  # tiny has none: no tree is faster there
                plot_batches(rows, f"{pair}: tokens/s over the batch size", batch_figure(pair))
        plot_style.save(findings.picture(), ROOT / "docs" / "images" / "reliability.png", dpi=80)
        return
    for page in pages():
        text = page.read_text(encoding="utf-8")
        page.write_text(render(text, PARTS), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
