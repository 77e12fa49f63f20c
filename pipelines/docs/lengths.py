"""The picture of acceptance lengths over the length of prompts, from the lines of `pipelines.bench lengths`."""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, log2

from pipelines.docs.card import card
from pipelines.docs.result_lines import BY_PROMPT, Line, lines, source

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 320, 50, 130, 40, 46  # pixels; the last four: margins of the plot
APART = 15  # of two names
COLOURS = ("#1f5fa8", "#c2410c", "#1a7f4b")
PALE = "#e4e7eb"


def svg(rows: Sequence[Line]) -> str:
    """Draw each way's figures as a line with its intervals."""
    sizes = sorted({row["prefix"] for row in rows})
    top = ceil(max(row["acceptance_length"][2] for row in rows))

    def x(size: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * log2(size / sizes[0]) / log2(sizes[-1] / sizes[0])

    def y(length: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (length - 1) / (top - 1)

    drawn = []
    for length in range(1, top + 1):
        drawn.append(f'<path d="M{LEFT} {y(length):.1f}H{WIDTH - RIGHT}" stroke="{PALE}"/>')
        drawn.append(f'<text x="{LEFT - 8}" y="{y(length) + 4:.1f}" text-anchor="end">{length}</text>')
    for size in sizes:
        drawn.append(f'<text x="{x(size):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{size:,}</text>')
    ways = list(dict.fromkeys(row["way"] for row in rows))
    ends = []
    for way, colour in zip(ways, COLOURS, strict=True):
        of_way = sorted((row["prefix"], row["acceptance_length"]) for row in rows if row["way"] == way)
        points = " ".join(f"{x(size):.1f},{y(length):.1f}" for size, (length, _, _) in of_way)
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for size, (length, low, high) in of_way:
            drawn.append(f'<path d="M{x(size):.1f} {y(low):.1f}V{y(high):.1f}" stroke="{colour}" opacity="0.5"/>')
            title = f"<title>{way}, {size:,} tokens: {length:.2f} ({low:.2f}-{high:.2f})</title>"
            drawn.append(f'<circle cx="{x(size):.1f}" cy="{y(length):.1f}" r="3.5" fill="{colour}">{title}</circle>')
        ends.append((y(of_way[-1][1][0]), way, colour))
    for height, (_, way, colour) in zip(apart([end for end, *_ in sorted(ends)]), sorted(ends), strict=True):
        drawn.append(f'<text x="{WIDTH - RIGHT + 10}" y="{height + 4:.1f}" style="fill: {colour}">{way}</text>')
    drawn.append(f'<text x="{LEFT - 30}" y="{TOP - 16}">acceptance length</text>')
    drawn.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">tokens before</text>')
    return card(WIDTH, HEIGHT, drawn)


def apart(heights: Sequence[float]) -> list[float]:
    """Return rising heights of names, moved down where they would touch."""
    moved = list(heights)
    for above, below in pairwise(range(len(moved))):
        moved[below] = max(moved[below], moved[above] + APART)
    return moved


def origin() -> str:
    """Return where the lines were counted, in small print."""
    line = lines("lengths.jsonl")[0]
    run = line["configuration"]
    how = f"{run['prompts']} prompts of each length, {run['max_new_tokens']} new tokens, T = {run['temperature']:g}"
    return source(line, how, f"`{run['policy']}`", BY_PROMPT)
