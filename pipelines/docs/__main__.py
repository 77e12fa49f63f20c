"""Render every table and measured number of README and docs from data/results; `tree` draws the picture of one tree.

python -m pipelines.docs [tables|tree]
"""

from typing import Annotated, Literal

import typer

from pipelines.docs.pages import ROOT, pages, render
from pipelines.docs.tables import PARTS
from pipelines.docs.tree import draw

PICTURE = ROOT / "docs" / "images" / "tree.svg"


def main(what: Annotated[Literal["tables", "tree"], typer.Argument(help="What to render.")] = "tables") -> None:
    """Render the tables of README and docs, or the picture of one tree."""
    if what == "tree":
        one = draw(PICTURE)
        print(f"{PICTURE}: {len(one.drafted)} drafted, {len(one.kept)} kept, {len(one.accepted)} accepted")
        return
    for page in pages():
        text = page.read_text(encoding="utf-8")
        page.write_text(render(text, PARTS), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
