"""The README's picture of one real round: the nodes that the draft proposed, those that the classifier selected for
verification, and those that the target accepted.

The embedded pair decodes PROMPT greedily with C2T; the drawn round is the first one in which the target accepts at
least ACCEPTED drafted tokens and one of them is not the draft's first choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

import torch
from jaxtyping import Int
from torch import Tensor

from c2t import C2T, SpeculativeDecoder, TreeClassifier
from c2t.models.loading.load import load_pair
from c2t.protocols import Draft, NextTokenDistributions, Root
from c2t.tree import Tree

PROMPT, BETA, K, LEVELS, ACCEPTED = "def read_lines(path):\n    ", 0.3, 3, 5, 3
NODE_WIDTH, LEAF_HEIGHT, MARGIN, LEGEND = 118, 19, 16, 26  # pixels
CHARACTER, GAP = 8, 4

Path_ = tuple[int, ...]  # the tokens from under the root to a node


class Round(NamedTuple):
    """One round: the root token, every drafted path, the paths in the verified tree, the accepted path."""

    root: int
    drafted: list[Path_]
    verified: set[Path_]
    accepted: Path_


@dataclass(frozen=True)
class RecordingDraft:
    """Draft that notes the candidates under every slot it expands."""

    draft: Draft
    candidates: list[Path_] = field(default_factory=list)

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> NextTokenDistributions:
        """See `c2t.protocols.Draft.expand`."""
        rows = self.draft.expand(tree, slots)
        tokens, _ = rows.top(K)
        for slot, children in zip(slots[0].tolist(), tokens[0].tolist(), strict=True):
            if slot >= 0:
                self.candidates.extend((*path_to(tree, slot), token) for token in children)
        return rows


@dataclass(frozen=True)
class RecordingPolicy:
    """C2T for one prompt, with a record of the root, the candidates and the tree of each round."""

    policy: C2T
    rounds: list[tuple[int, list[Path_], set[Path_]]] = field(default_factory=list)

    proposal, exact, levels = C2T.proposal, C2T.exact, LEVELS

    def __call__(self, draft: Draft, root: Root) -> Tree:
        recording = RecordingDraft(draft)
        tree = self.policy(recording, root)
        verified = {path_to(tree, slot) for slot in range(1, tree.size)}
        self.rounds.append((int(root.token[0]), recording.candidates, verified))
        return tree


def path_to(tree: Tree, slot: int) -> Path_:
    """Return the tokens from under the root to a slot of the first tree."""
    path: Path_ = ()
    while slot > 0:
        path = (int(tree.token[0, slot]), *path)
        slot = int(tree.parent[0, slot])
    return path


def rounds(decoder: SpeculativeDecoder, prompt: str, max_new_tokens: int = 64) -> list[Round]:
    """Decode a prompt with a RecordingPolicy and return its rounds.

    The accepted path is the longest path of the tree that agrees with the target's text.
    """
    text = decoder.generate(prompt, max_new_tokens=max_new_tokens).sequences[0]
    decoded, start = [], 1
    for root, drafted, verified in decoder.policy.rounds:
        length = 0
        while tuple(text[start : start + length + 1]) in verified and start + length < len(text):
            length += 1
        decoded.append(Round(root, drafted, verified, tuple(text[start : start + length])))
        start += length + 1
    return decoded


def drawn(decoded: Sequence[Round]) -> Round:
    """Return the first round with ACCEPTED accepted tokens, not all of them their parent's most probable child."""

    def first_choices(shown: Round) -> bool:
        return all(next(p for p in shown.drafted if p[:-1] == path[:-1]) == path for path in prefixes(shown.accepted))

    return next(shown for shown in decoded if len(shown.accepted) >= ACCEPTED and not first_choices(shown))


def prefixes(path: Path_) -> list[Path_]:
    """Return the path's own prefixes, shortest first, the path included."""
    return [path[: length + 1] for length in range(len(path))]


def node_heights(shown: Round) -> dict[Path_, float]:
    """Return the height of every path's node, the root's () included: leaves stand one below the other, parents between
    their children."""
    children: dict[Path_, list[Path_]] = {}
    for path in shown.drafted:
        children.setdefault(path[:-1], []).append(path)
    heights: dict[Path_, float] = {}

    def height(path: Path_) -> float:
        below = [height(child) for child in children.get(path, [])]
        leaves = sum(not children.get(lower) for lower in heights)
        heights[path] = (below[0] + below[-1]) / 2 if below else float(leaves)
        return heights[path]

    height(())
    return heights


def label(text: str) -> str:
    """Return a token's text on one line, with its spaces and line ends visible."""
    return text.replace("\n", "⏎").replace(" ", "·")


STYLE = """text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #8a8f98; }
text.verified { fill: #1f2328; font-weight: 700; } text.accepted { fill: #0a6b2d; font-weight: 700; }
path { fill: none; stroke: #d5d9de; } path.verified { stroke: #57606a; stroke-width: 1.6; }
path.accepted { stroke: #1a9c46; stroke-width: 3; }"""


def svg(shown: Round, names: dict[int, str]) -> str:
    """Draw a round as SVG, on a white card so that it can be read in a light and in a dark theme."""
    heights = node_heights(shown)
    accepted = {(), *prefixes(shown.accepted)}
    width = MARGIN * 2 + NODE_WIDTH * (1 + max(map(len, heights)))
    height = MARGIN * 2 + LEGEND + LEAF_HEIGHT * (1 + max(heights.values()))

    def kind(path: Path_) -> str:
        return "accepted" if path in accepted else "verified" if path in shown.verified else "drafted"

    def name(path: Path_) -> str:
        return label(names[path[-1] if path else shown.root])

    def at(path: Path_) -> tuple[float, float]:
        return MARGIN + NODE_WIDTH * len(path), MARGIN + LEGEND + LEAF_HEIGHT * (heights[path] + 0.7)

    lines, words = [], []
    for path in sorted(heights, key=lambda path: (("drafted", "verified", "accepted").index(kind(path)), path)):
        x, y = at(path)
        words.append(f'<text class="{kind(path)}" x="{x:.0f}" y="{y:.1f}">{escape(name(path))}</text>')
        if path:
            start, height_before = at(path[:-1])
            start += CHARACTER * len(name(path[:-1])) + GAP
            middle, end = (start + x - GAP) / 2, x - GAP
            a, b = height_before - GAP, y - GAP  # the middle of the letters
            curve = f"M{start:.0f} {a:.1f}C{middle:.0f} {a:.1f} {middle:.0f} {b:.1f} {end:.0f} {b:.1f}"
            lines.append(f'<path class="{kind(path)}" d="{curve}"/>')
    legend = (
        ("drafted", 0, f"{len(shown.drafted)} drafted"),
        ("verified", 110, f"{len(shown.verified)} verified"),
        ("accepted", 220, f"{len(shown.accepted)} accepted"),
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}">',
            f"<style>{STYLE}</style>",
            f'<rect width="{width}" height="{height:.0f}" rx="8" fill="#ffffff"/>',
            *(f'<text class="{kind}" x="{MARGIN + x}" y="{MARGIN + 6}">{text}</text>' for kind, x, text in legend),
            *lines,
            *words,
            "</svg>\n",
        ]
    )


def draw(out: Path) -> Round:
    """Decode, choose the round and write its picture; return the round."""
    pair = load_pair("tiny", dtype=torch.float32)
    policy = RecordingPolicy(C2T(TreeClassifier.from_pretrained("tiny"), beta=BETA, K=K, levels=LEVELS))
    shown = drawn(rounds(SpeculativeDecoder(pair, policy), PROMPT))
    tokens = {shown.root, *(token for path in shown.drafted for token in path)}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(svg(shown, {token: pair.tokenizer.decode([token]) for token in tokens}), encoding="utf-8")
    return shown
