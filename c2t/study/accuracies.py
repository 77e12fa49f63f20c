"""Accuracy of each rank at each depth of a draft, which shapes Medusa's static tree. Measured by replay."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from c2t.decoding import DraftModel
from c2t.replay.every_position import forks
from c2t.replay.lockstep import Continuation
from c2t.storage.atomic import write_text
from c2t.tree import Tree


class MeasuredAccuracies(NamedTuple):
    """Measured accuracies. rates[depth][rank]: share of the positions at which the candidate of that rank is the
    target's token."""

    rates: tuple[tuple[float, ...], ...]
    positions: int


def accuracies(drafter: DraftModel, texts: Sequence[Continuation], levels: int, ranks: int) -> MeasuredAccuracies:
    """Count, at every position of the texts, which of the draft's `ranks` most probable tokens is that of the text,
    at each of `levels` depths. The path to each depth consists of the text's tokens, so that every depth counts after a
    correct path. The texts must be `levels` tokens longer than their ends."""
    hits, positions = torch.zeros(levels, ranks, dtype=torch.long), 0
    for text in texts:
        for position, draft in forks(drafter, text):
            positions += len(position)
            with torch.inference_mode():
                tree = Tree.root(text.tokens[position])
                for depth in range(levels):
                    slot = torch.full_like(position, depth)[:, None]
                    candidates, _ = draft.expand(tree, slot).top(ranks)
                    right = text.tokens[position + depth + 1][:, None, None]
                    hits[depth] += (candidates == right)[:, 0].sum(0).cpu()
                    certain = torch.zeros(right.shape, device=right.device)
                    tree = tree.extend(tree.children(slot, right, certain, certain[..., 0]))
                draft.refuse_nan()
    return MeasuredAccuracies(tuple(map(tuple, (hits / max(positions, 1)).tolist())), positions)


def write(path: Path, measured: MeasuredAccuracies, **condition: str | int | float) -> None:
    """Write measured accuracies for `c2t.policies.medusa_tree.Accuracies.read`, with what they were measured on."""
    rates = [[round(rate, 6) for rate in ranks] for ranks in measured.rates]
    write_text(path, json.dumps({**condition, "positions": measured.positions, "accuracies": rates}, indent=1) + "\n")
