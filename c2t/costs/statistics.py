"""Costs and yield of a run, from its Steps: tau, gamma and draft passes, per round and in total."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from c2t.decoding import Step
from c2t.output import tree_repr


class Counts:
    """Costs and yield of any number of rounds, from four totals that a subclass has. Means are 0 without a round."""

    rounds: int
    accepted_tokens: int  # drafted tokens that were accepted; bonus tokens are not counted
    verified_tokens: int  # in the target's forwards, roots included
    draft_forwards: int

    @property
    def tau(self) -> float:
        """Mean number of accepted drafted tokens per round, the bonus token not counted."""
        return self.accepted_tokens / self.rounds if self.rounds else 0.0

    @property
    def tau_with_bonus(self) -> float:
        """tau as EAGLE's papers count it."""
        return self.tau + 1 if self.rounds else 0.0

    @property
    def gamma(self) -> float:
        """Mean number of verified tokens per round, root included."""
        return self.verified_tokens / self.rounds if self.rounds else 0.0

    @property
    def draft_passes(self) -> float:
        """Mean number of draft forwards per round."""
        return self.draft_forwards / self.rounds if self.rounds else 0.0

    def figures(self) -> dict[str, Any]:
        """Return the means and totals by name, as result lines have them."""
        names = ("rounds", "tau", "tau_with_bonus", "gamma", "verified_tokens", "draft_passes")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Totals(Counts):
    """Counts of which only the totals are known."""

    rounds: int
    accepted_tokens: int
    verified_tokens: int
    draft_forwards: int


class RoundCounts(NamedTuple):
    """Counts of one row of a round, see `Statistics`."""

    verified: int
    accepted: int
    passes: int
    capped: int


@dataclass(repr=False)
class Statistics(Counts):
    """Counts of one prompt's rounds, or of several prompts' together (`+`).

    verified: tokens in the target's forward, root included; accepted: drafted tokens accepted; passes: draft forwards;
    one entry a round each. new_tokens: tokens of the text, after the cut; cut: tokens emitted past it; capped: nodes
    that only a size limit left out of a tree. `1 * prompts + sum(accepted + 1) - cut == new_tokens`
    holds, except for rounds that a `BatchDecoder` repeats.
    """

    prompts: int = 0
    new_tokens: int = 0
    cut: int = 0
    capped: int = 0
    verified: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Statistics({tree_repr.count(self.prompts, 'prompt')}, {self.summary()})"

    def summary(self) -> str:
        """Return tokens, rounds and means in a few words."""
        figures = f"tau {self.tau:.2f}, gamma {self.gamma:.1f}, {self.draft_passes:.1f} draft passes a round"
        return f"{tree_repr.count(self.new_tokens, 'token')} in {tree_repr.count(self.rounds, 'round')}, {figures}"

    @property
    def rounds(self) -> int:
        return len(self.accepted)

    @property
    def accepted_tokens(self) -> int:
        return sum(self.accepted)

    @property
    def verified_tokens(self) -> int:
        return sum(self.verified)

    @property
    def draft_forwards(self) -> int:
        return sum(self.passes)

    def add(self, counts: RoundCounts) -> None:
        """Count a round of this prompt."""
        self.verified.append(counts.verified)
        self.accepted.append(counts.accepted)
        self.passes.append(counts.passes)
        self.capped += counts.capped

    def figures(self) -> dict[str, Any]:
        """See `Counts.figures`; with the number of new tokens."""
        return {"new_tokens": self.new_tokens, **super().figures()}

    def __add__(self, other: "Statistics") -> "Statistics":
        return Statistics(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


class Trace:
    """Collects the Steps of a run per prompt: emitted tokens (not cut yet) and statistics."""

    def __init__(self, prompts: int):
        self.tokens: list[list[int]] = [[] for _ in range(prompts)]
        self.statistics = [Statistics(prompts=1) for _ in range(prompts)]

    def add(self, step: Step) -> None:
        new = step.by_row()
        for prompt, tokens in new:
            self.tokens[prompt] += tokens
        for (prompt, _), counts in zip(new, counts_of(step), strict=False):
            self.statistics[prompt].add(counts)

    def finish(self, ends: Sequence[int]) -> list[list[int]]:
        """Cut each prompt's tokens to its end and close the statistics; returns the texts."""
        for tokens, end, statistics in zip(self.tokens, ends, self.statistics, strict=True):
            statistics.new_tokens, statistics.cut = end, len(tokens) - end
            del tokens[end:]
        return self.tokens


def counts_of(step: Step) -> list[RoundCounts]:
    """Return the counts of each row of a round; none for the prefill, which is no round."""
    if step.tree is None or step.accepted is None:
        return []
    # In one piece: each look at a tensor waits for the device.
    columns = [step.tree.sizes, step.count - 1, step.draft_passes, step.tree.capped]
    return [RoundCounts(*row) for row in torch.stack(columns, 1).tolist()]


def total(statistics: Iterable[Statistics]) -> Statistics:
    """Add the counts of all prompts."""
    return sum(statistics, Statistics())
