"""The target's sampler for a batch whose rows have different sampling settings; all rows share one forward."""

import copy
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.caches.ragged import SlotLogits
from c2t.grammars.constraints import Constraints
from c2t.kernels.noise import Noise
from c2t.sampling import Sampling
from c2t.tree import Tree
from c2t.verification.sampler import TargetSampler, number
from c2t.verify import Accepted

Rows = Int[Tensor, " b"] | slice


class MixedSampler:
    """One `TargetSampler` for each different `Sampling`, over the rows of the batch that have it.

    samplers, rows: the samplers, and the rows of each in ascending order. order: each row's index in the concatenation
    of `rows`. generated: see `TargetSampler`.
    """

    def __init__(
        self,
        samplings: Sequence[Sampling],
        vocabulary: int,
        tokens: Int[Tensor, "B P"],
        lengths: Int[Tensor, " B"],
        sequences: Sequence[int] | None = None,
        generated: Sequence[int] | None = None,
    ):
        generated = [0] * len(tokens) if generated is None else generated
        sequence, device = number(len(tokens), sequences, tokens.device).tolist(), tokens.device
        self.samplers: list[TargetSampler] = []
        self.rows: list[Int[Tensor, " b"]] = []
        for sampling in dict.fromkeys(samplings):
            rows = [row for row, setting in enumerate(samplings) if setting == sampling]
            numbers, new = ([column[row] for row in rows] for column in (sequence, generated))
            self.samplers.append(
                TargetSampler(sampling, vocabulary, tokens[rows], lengths[rows], numbers, generated=new)
            )
            self.rows.append(torch.tensor(rows, device=device))
        self._sort()

    def sample(
        self, logits: Float[Tensor, "B V"], position: Int[Tensor, " B"], constraints: Constraints | None = None
    ) -> Int[Tensor, " B"]:
        """See `TargetSampler.sample`."""
        parts = [
            sampler.sample(logits[rows], position[rows], constraints and constraints.of(rows))
            for sampler, rows in self._parts()
        ]
        return torch.cat(parts)[self.order]

    def accept(
        self,
        tree: Tree,
        logits: SlotLogits,
        root: Int[Tensor, " B"],
        rule: str,
        constraints: Constraints | None = None,
    ) -> Accepted:
        """See `TargetSampler.accept`."""
        parts = [
            sampler.accept(
                tree.of_rows(rows), logits.select(rows), root[rows], rule, constraints and constraints.of(rows)
            )
            for sampler, rows in self._parts()
        ]
        longest = max(part.slots.shape[1] for part in parts)
        pad = torch.nn.functional.pad
        slots = [pad(part.slots, (0, longest - part.slots.shape[1]), value=-1) for part in parts]
        columns = slots, [part.length for part in parts], [part.bonus for part in parts]
        return Accepted(*(torch.cat(column)[self.order] for column in columns))

    @property
    def stochastic(self) -> bool:
        """See `TargetSampler.stochastic`."""
        return any(sampler.stochastic for sampler in self.samplers)

    def key(self, root: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """See `TargetSampler.key`."""
        return torch.cat([sampler.key(root[rows]) for sampler, rows in self._parts()])[self.order]

    def noise(self, root: Int[Tensor, " B"]) -> Noise:
        """See `TargetSampler.noise`; greedy rows have temperature 0."""
        parts = [sampler.noise(root[rows]) for sampler, rows in self._parts()]
        return Noise(*(torch.cat(column)[self.order] for column in zip(*parts, strict=True)))

    def fork(self) -> "MixedSampler":
        """See `TargetSampler.fork`."""
        other = copy.copy(self)
        other.samplers = [sampler.fork() for sampler in self.samplers]
        return other

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        matches = [rows[:, None] == old for old in self.rows]
        self.rows = [match.any(1).nonzero()[:, 0] for match in matches]
        for sampler, match, selected in zip(self.samplers, matches, self.rows, strict=True):
            sampler.select(match[selected].int().argmax(1))
        self.samplers = [sampler for sampler, selected in zip(self.samplers, self.rows, strict=True) if len(selected)]
        self.rows = [selected for selected in self.rows if len(selected)]
        self._sort()

    def join(self, other: "MixedSampler") -> None:
        """Append the rows of another sampler."""
        count = sum(map(len, self.rows))
        samplings = [sampler.sampling for sampler in self.samplers]
        for sampler, rows in zip(other.samplers, other.rows, strict=True):
            if sampler.sampling in samplings:
                index = samplings.index(sampler.sampling)
                self.samplers[index].join(sampler)
                self.rows[index] = torch.cat([self.rows[index], rows + count])
            else:
                self.samplers.append(sampler)
                self.rows.append(rows + count)
        self._sort()

    def _sort(self) -> None:
        self.order = torch.cat(self.rows).argsort()

    def _parts(self) -> Iterator[tuple[TargetSampler, Rows]]:
        """Yield the samplers and their rows; a single sampler gets a slice of all rows, which copies nothing."""
        whole = len(self.samplers) == 1
        for sampler, rows in zip(self.samplers, self.rows, strict=True):
            yield sampler, slice(None) if whole else rows
