"""Trees and rounds in a notebook (a small drawing) and in a REPL (an indented list).

A tree holds only token ids; `show` names them by a tokenizer. Token texts come from a model, so they are escaped.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from c2t.errors import InputError, check_whole, plain, short_repr

MOST_NODES = 64  # nodes that are drawn of one tree; EAGLE-2's full trees have 1011
MOST_ROWS = 4  # rows of a batch that a line lists one by one
LONGEST = 14  # characters that are shown of a token
LETTER, LINE, GAP, MARGIN = 7.3, 19, 34, 10  # pixels: width of a letter, height of a leaf, between columns, around all
GREEN = "#1b9150"  # colour of accepted tokens: readable on white and on black; they are also bold, for print in grey
VISIBLE = {" ": "\u00b7", "\n": "\u21b5", "\t": "\u2192"}


class Node(NamedTuple):
    """One drawn node. parent: its index in the drawing, -1 for the root. accepted: True on the accepted path."""

    text: str
    parent: int
    depth: int
    probability: float
    joint: float
    accepted: bool


@dataclass(frozen=True, repr=False)
class Picture:
    """One tree of a batch. nodes: depth first, the root in front. left_out: how many further nodes the tree has."""

    title: str
    nodes: tuple[Node, ...] = ()
    left_out: int = 0

    def __repr__(self) -> str:
        lines = [self.title]
        for node in self.nodes:
            figure = f"  {node.probability:.2f}" if node.depth >= 0 else ""
            lines.append(f"{'* ' if node.accepted else '  '}{'  ' * (node.depth + 1)}{node.text}{figure}")
        return "\n".join(lines + self._rest())

    def _repr_html_(self) -> str:
        body = [f"<div>{escape(self.title)}</div>"]
        if self.nodes:
            body.append(self._svg())
        body += [f"<div>{line}</div>" for line in self._rest()]
        return f'<div style="font: 13px sans-serif; overflow-x: auto">{"".join(body)}</div>'

    def _rest(self) -> list[str]:
        return [f"and {self.left_out:,} less probable nodes"] if self.left_out else []

    def _svg(self) -> str:
        """Draw the tree from left to right, in the colour of the surrounding text, for light and dark themes."""
        heights, columns = self._heights(), self._columns()
        lines, words = [], []
        for index, node in enumerate(self.nodes):
            x, y = columns[node.depth + 1], MARGIN + LINE * (heights[index] + 0.5)
            style = f'fill="{GREEN}" font-weight="700"' if node.accepted else 'fill="currentColor"'
            said = (
                f"probability {node.probability:.3f}, of its path {node.joint:.3g}" if node.depth >= 0 else "the root"
            )
            words.append(f'<text x="{x:.0f}" y="{y + 4:.1f}" {style}>{escape(node.text)}<title>{said}</title></text>')
            if node.parent >= 0:
                up = self.nodes[node.parent]
                start = columns[up.depth + 1] + LETTER * len(up.text) + 4
                above, middle = MARGIN + LINE * (heights[node.parent] + 0.5), (start + x - 4) / 2
                curve = f"M{start:.0f} {above:.1f}C{middle:.0f} {above:.1f} {middle:.0f} {y:.1f} {x - 4:.0f} {y:.1f}"
                colour = GREEN if node.accepted else "currentColor"
                width = 1 + 2 * node.probability + node.accepted
                opacity = 1 if node.accepted else 0.4
                lines.append(f'<path d="{curve}" stroke="{colour}" stroke-width="{width:.1f}" opacity="{opacity}"/>')
        width = max(columns[n.depth + 1] + LETTER * len(n.text) for n in self.nodes) + MARGIN
        height = 2 * MARGIN + LINE * (max(heights) + 1)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" role="img" '
            f'aria-label="{escape(self.title)}" font-family="ui-monospace, Menlo, Consolas, monospace" '
            f'font-size="12"><g fill="none">{"".join(lines)}</g>{"".join(words)}</svg>'
        )

    def _heights(self) -> list[float]:
        """Return each node's vertical position: leaves one per line, a parent in the middle of its children."""
        children: list[list[int]] = [[] for _ in self.nodes]
        for index, node in enumerate(self.nodes[1:], 1):
            children[node.parent].append(index)
        heights, leaf = [0.0] * len(self.nodes), 0
        for index, below in enumerate(children):
            if not below:
                heights[index], leaf = float(leaf), leaf + 1
        for index in reversed(range(len(self.nodes))):  # children come after their parent
            if below := children[index]:
                heights[index] = (heights[below[0]] + heights[below[-1]]) / 2
        return heights

    def _columns(self) -> list[float]:
        """Return the left edge of each depth, the root's first."""
        edges = [float(MARGIN)]
        for depth in range(max(node.depth for node in self.nodes) + 1):
            longest = max(len(node.text) for node in self.nodes if node.depth == depth - 1)
            edges.append(edges[-1] + LETTER * longest + GAP)
        return edges


def show(shown: Any, tokenizer: Any = None, row: int = 0) -> Picture:
    """Return a drawing of one row of a Tree or a Step: an image in a notebook, an indented list in a REPL.

    tokenizer: names the tokens; by default the Step's, or none, which shows ids. Raises InputError for a row that does
    not exist, and for what is neither a Tree nor a Step.
    """
    step = shown if hasattr(shown, "accepted") and hasattr(shown, "tokens") else None
    tree = step.tree if step is not None else shown
    if step is None and not hasattr(tree, "log_joint"):
        raise InputError(f"show draws a Tree or a Step, and not {type(shown).__name__}")
    rows = len(step.rows if step is not None else tree.token)
    check_whole("row", row)
    if not 0 <= row < rows:
        raise InputError(f"row = {row}: there are {rows} rows, counted from 0")
    if tokenizer is not None and not hasattr(tokenizer, "decode"):
        raise InputError(f"tokenizer = {short_repr(tokenizer)} names no tokens: give one that decodes, or none")
    if tokenizer is None and step is not None:
        tokenizer = step.extra.get("tokenizer")
    name = namer(tokenizer)
    where = f"row {row} of {rows}: " if rows > 1 else ""
    if tree is None:
        return Picture(f"{where}the prompt's own forward; the first token is {name(int(step.tokens[row, 0]))}")
    size = int(tree.alive[row].sum())
    title, path = f"{where}{count(size - 1, 'drafted token')}", []
    if step is not None and step.accepted is not None:
        length, bonus = int(step.accepted.length[row]), name(int(step.accepted.bonus[row]))
        path = step.accepted.slots[row, : length + 1].tolist()
        title += f", {length} accepted (green); then the target's own {bonus}"
    nodes = nodes_of(tree, row, path, name)
    return Picture(title, nodes, size - len(nodes))


def nodes_of(tree: Any, row: int, path: Collection[int], name: Callable[[int], str]) -> tuple[Node, ...]:
    """Return the nodes to draw: the accepted path and the most probable others, MOST_NODES at most, depth first."""
    columns = ("token", "parent", "depth", "log_prob", "log_joint", "alive")
    token, parent, depth, probability, joint, alive = (getattr(tree, column)[row] for column in columns)
    token, parent, depth, alive = (column.tolist() for column in (token, parent, depth, alive))
    probability, joint = (logs.double().exp().tolist() for logs in (probability, joint))
    by_joint = sorted(
        (slot for slot in range(len(token)) if alive[slot]), key=lambda slot: (slot not in path, -joint[slot])
    )
    chosen = {0}
    for slot in by_joint:
        if len(chosen) < MOST_NODES and parent[slot] in chosen:
            chosen.add(slot)
    below: dict[int, list[int]] = {}
    for slot in sorted(chosen - {0}, reverse=True):
        below.setdefault(parent[slot], []).append(slot)
    nodes: list[Node] = []
    numbers, waiting = {-1: -1}, [0]
    while waiting:
        slot = waiting.pop()
        numbers[slot] = len(nodes)
        up = numbers[parent[slot]]
        nodes.append(Node(name(token[slot]), up, depth[slot], probability[slot], joint[slot], slot in path))
        waiting += below.get(slot, [])
    return tuple(nodes)


def namer(tokenizer: Any) -> Callable[[int], str]:
    """Return a function that names a token id: its text with visible blanks; without a tokenizer, the number."""
    if tokenizer is None:
        return str
    return lambda token: label(tokenizer.decode([token]))


def label(text: str) -> str:
    """Return a token's text on one line: visible blanks, escaped control characters, at most LONGEST characters."""
    text = plain("".join(VISIBLE.get(character, character) for character in text))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "\u2026"


def round_line(step: Any) -> str:
    """Return a round (`c2t.decoding.Step`) in one line."""
    rows = count(len(step.rows), "row")
    if step.tree is None or step.accepted is None:
        return f"Step({rows}, prefill)"
    verified, accepted, passes = (
        few(numbers.tolist()) for numbers in (step.tree.sizes, step.accepted.length, step.draft_passes)
    )
    return f"Step({rows}, tokens verified: {verified}; accepted: {accepted}; draft passes: {passes})"


def few(values: Sequence[int]) -> str:
    """Return the values of a batch's rows in words; for many rows, the smallest and the largest."""
    if len(values) > 1 and min(values) == max(values):
        return f"{values[0]} each"
    if len(values) <= MOST_ROWS:
        return " and ".join(filter(None, (", ".join(map(str, values[:-1])), "".join(map(str, values[-1:])))))
    return f"{min(values)} to {max(values)}"


def count(number: int, what: str) -> str:
    """Return a number with its noun, in the plural where it is not one."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
