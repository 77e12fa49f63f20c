"""The card of smollm2: its tables of the heads' agreement, from what provenance.json says about their trainings."""

import json
from pathlib import Path

from c2t.storage.paths import PROVENANCE

BEGIN, END = "\n`draft` (", "\n\n## Limits\n"  # of the tables in README.md
TABLE = """
`{part}` (last logged step: {last}):

| tokens of texts | answers' positions learned | {names} |
| --- | --- | {rule} |
{rows}
"""


def table(part: str, rounds: list[dict], logged: str) -> str:
    """Return the rounds of a head."""
    columns = [
        (kind, name)
        for kind in ("heldout", "bench")
        for name in dict.fromkeys(name for line in reversed(rounds) for name in line[kind])
    ]
    cells = [
        [f"{line['written']:,}", f"{line['positions']:,}" + ", mean" * line.get("mean", False)]
        + [f"{line[kind][name]:.3f}" if name in line[kind] else "" for kind, name in columns]
        for line in rounds
    ]
    return TABLE.format(
        part=part,
        last=logged,
        names=" | ".join(f"{'validation' if kind == 'heldout' else kind}: {name}" for kind, name in columns),
        rule=" | ".join(["---"] * len(columns)),
        rows="\n".join(f"| {' | '.join(row)} |" for row in cells),
    )


def write_card(out: Path) -> None:
    """Write the tables into the README.md of the pair's folder."""
    provenance, card = json.loads((out / PROVENANCE).read_text()), (out / "README.md").read_text()
    tables = (table(part, rounds, provenance["logged"][part]) for part, rounds in provenance["rounds"].items())
    (out / "README.md").write_text(card[: card.index(BEGIN)] + "".join(tables) + card[card.index(END) :])
