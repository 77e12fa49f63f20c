"""The picture of a round's milliseconds by part: a bar for each policy of `python -m pipelines.bench breakdown`."""

from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

from pipelines.bench.breakdown import PARTS
from pipelines.docs.card import card

WIDTH, BAR, GAP, MARGIN, NAMES = 720, 26, 14, 16, 250  # pixels
KEY_COLUMNS, KEY_LINE = 5, 20
# Blue: the target, green: the draft; light: LM heads. Warm colours: what is no product of matrices. Grey: the rest.
COLOURS = ("#1f5fa8", "#8db8e6", "#1a7f4b", "#8fd0ab", "#c2410c", "#f59e0b", "#fbbf24", "#e879a6", "#b6bcc4")


def svg(rows: Sequence[dict[str, Any]]) -> str:
    """Draw the figures of some policies as SVG."""
    longest = max(row["watched"] for row in rows)
    scale = (WIDTH - NAMES - 70) / longest
    key_lines = -(-len(PARTS) // KEY_COLUMNS)
    height = 2 * MARGIN + len(rows) * (BAR + GAP) + key_lines * KEY_LINE
    drawn = []
    for number, row in enumerate(rows):
        x, y = float(NAMES), MARGIN + number * (BAR + GAP)
        drawn.append(f'<text x="{MARGIN}" y="{y + 18}">{escape(row["policy"])}</text>')
        for part, colour in zip(PARTS, COLOURS, strict=True):
            width = scale * row["parts"][part]
            title = f"<title>{part}: {row['parts'][part]:.2f} ms</title>"
            box = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}"'
            drawn.append(f'<rect {box} fill="{colour}">{title}</rect>')
            x += width
        drawn.append(f'<text x="{x + 6:.1f}" y="{y + 18}">{row["watched"]:.1f} ms</text>')
    below = MARGIN + len(rows) * (BAR + GAP)
    for number, (part, colour) in enumerate(zip(PARTS, COLOURS, strict=True)):
        x = MARGIN + number % KEY_COLUMNS * (WIDTH - 2 * MARGIN) // KEY_COLUMNS
        y = below + number // KEY_COLUMNS * KEY_LINE
        drawn.append(f'<rect x="{x}" y="{y + 3}" width="11" height="11" fill="{colour}"/>')
        drawn.append(f'<text x="{x + 16}" y="{y + 13}">{part}</text>')
    return card(WIDTH, height, drawn)
