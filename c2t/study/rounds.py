"""Sizes of the forwards of the target and of the draft in each round of a run, and its new tokens."""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

import torch

from c2t.decoding import Step
from c2t.models.loading.load import Pair
from c2t.protocols import Policy
from c2t.replay.lockstep import Continuation, replay
from c2t.study.evaluate import BATCH


class Round(NamedTuple):
    """One round of `rows` prompts decoded together.

    verified: tokens of all rows in the target's forward, roots included. widths: the same in each draft forward, the
    first of which reads the tokens that the round before accepted; empty where nothing was drafted.
    accepted: drafted tokens, of all rows. new: tokens added to all rows, without those past the end of a text.
    """

    rows: int
    verified: int
    widths: tuple[int, ...]
    accepted: int
    new: int


RECORD = ("slots",)  # Steps must record these for the widths of draft forwards


def widths(step: Step) -> list[tuple[int, ...]]:
    """Return, for each row, the tokens in each draft forward below the root; none where they were not recorded."""
    levels = step.extra["draft"].slots[1:] if "draft" in step.extra else ()
    if not levels:
        return [()] * len(step.rows)
    levels = torch.stack([(slots >= 0).sum(1) for slots in levels], 1)
    return [tuple(width for width in row if width) for row in levels.tolist()]


def replayed(
    pair: Pair,
    policy: Policy,
    texts: Sequence[Continuation],
    seed: int,
    batch: int = BATCH,
    temperature: float = 0.0,
    progress: Callable[[int], None] = lambda done: None,
) -> list[list[Round]]:
    """Return the rounds that each text takes alone, by exact replay. The texts must be those of the prompts numbered
    from 0 on, sampled with this seed and temperature.

    With a budget they are the rounds in a batch of `batch` texts, which share it; rounds of other policies do not
    depend on the batch.
    """
    rounds: list[list[Round]] = []
    size = batch if getattr(policy, "shared", False) else BATCH
    for start in range(0, len(texts), size):
        part = texts[start : start + size]
        random_streams = {"seed": seed, "sequences": range(start, start + len(part)), "temperature": temperature}
        steps = replay(pair.draft, policy, part, **random_streams, record=RECORD)
        rounds += by_prompt(steps, [text.end - text.prompt for text in part])
        progress(len(rounds))
    return rounds


def together(prompts: Sequence[Sequence[Round]]) -> list[Round]:
    """Return the rounds of prompts decoded as one batch, from the rounds of each alone; a row that is done leaves the
    batch."""
    batch = []
    for rows in zip_longest(*prompts):
        count, verified, widths, accepted, new = zip(*(row for row in rows if row is not None), strict=True)
        levels = tuple(map(sum, zip_longest(*widths, fillvalue=0)))
        batch.append(Round(sum(count), sum(verified), levels, sum(accepted), sum(new)))
    return batch


def by_prompt(steps: Iterator[Step], ends: Sequence[int]) -> list[list[Round]]:
    """Return the rounds of each prompt from the Steps of a run over all; ends: new tokens of each text."""
    rounds: list[list[Round]] = [[] for _ in ends]
    emitted, observed = [0] * len(ends), [0] * len(ends)
    for step in steps:
        prompts, counts = step.rows.tolist(), step.count.tolist()
        if step.tree is None:
            settled = step.position.tolist()
        else:
            settled, levels = list(counts), widths(step)
            passes, sizes = step.draft_passes.tolist(), step.tree.sizes.tolist()
            for row, prompt in enumerate(prompts):
                drafted = passes[row] or levels[row]  # a draft without a model makes no forward
                forwards = (observed[prompt], *levels[row]) if drafted else ()
                new = max(0, min(counts[row], ends[prompt] - emitted[prompt]))
                rounds[prompt].append(Round(1, sizes[row], forwards, counts[row] - 1, new))
                settled[row] += 0 if drafted else observed[prompt]  # the next draft forward reads these, too
        for prompt, count, taken in zip(prompts, counts, settled, strict=True):
            emitted[prompt] += count
            observed[prompt] = taken
    return rounds
