"""The target's sampler where rows of one batch have different settings: their forward is one, their draws are not."""

import copy
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.caches.ragged import SlotLogits
from c2t.kernels.noise import Noise
from c2t.sampling import Sampling
from c2t.tree import Tree
from c2t.verification.sampler import TargetSampler, number
from c2t.verify import Accepted

Rows = Int[Tensor, " b"] | slice


class MixedSampler:
    """A `TargetSampler` for each different `Sampling`, over the rows of the batch that have it.

    samplers, rows: the samplers, and the rows of each, in rising order. order: the place of each row of the batch
    among the rows of all samplers, one sampler's after the other's.
    """

    def __init__(
        self,
        samplings: Sequence[Sampling],
        vocabulary: int,
        tokens: Int[Tensor, "B P"],
        lengths: Int[Tensor, " B"],
        sequences: Sequence[int] | None = None,
    ):
        sequence, device = number(len(tokens), sequences, tokens.device).tolist(), tokens.device
        self.samplers: list[TargetSampler] = []
        self.rows: list[Int[Tensor, " b"]] = []
        for sampling in dict.fromkeys(samplings):
            rows = [row for row, its in enumerate(samplings) if its == sampling]
            own = [sequence[row] for row in rows]
            self.samplers.append(TargetSampler(sampling, vocabulary, tokens[rows], lengths[rows], own))
            self.rows.append(torch.tensor(rows, device=device))
        self._sort()

    def sample(self, logits: Float[Tensor, "B V"], position: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """See `TargetSampler.sample`."""
        return torch.cat([sampler.sample(logits[rows], position[rows]) for sampler, rows in self._parts()])[self.order]

    def accept(self, tree: Tree, logits: SlotLogits, root: Int[Tensor, " B"], rule: str) -> Accepted:
        """See `TargetSampler.accept`."""
        parts = [
            sampler.accept(tree.of_rows(rows), logits.select(rows), root[rows], rule) for sampler, rows in self._parts()
        ]
        longest = max(part.slots.shape[1] for part in parts)
        pad = torch.nn.functional.pad
        slots = [pad(part.slots, (0, longest - part.slots.shape[1]), value=-1) for part in parts]
        columns = slots, [part.length for part in parts], [part.bonus for part in parts]
        return Accepted(*(torch.cat(column)[self.order] for column in columns))

    @property
    def draws(self) -> bool:
        """See `TargetSampler.draws`."""
        return any(sampler.draws for sampler in self.samplers)

    def key(self, root: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """See `TargetSampler.key`."""
        return torch.cat([sampler.key(root[rows]) for sampler, rows in self._parts()])[self.order]

    def noise(self, root: Int[Tensor, " B"]) -> Noise:
        """See `TargetSampler.noise`; of greedy rows the temperature is 0."""
        parts = [sampler.noise(root[rows]) for sampler, rows in self._parts()]
        return Noise(*(torch.cat(column)[self.order] for column in zip(*parts, strict=True)))

    def fork(self) -> "MixedSampler":
        """See `TargetSampler.fork`."""
        other = copy.copy(self)
        other.samplers = [sampler.fork() for sampler in self.samplers]
        return other

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        places = [rows[:, None] == own for own in self.rows]
        self.rows = [place.any(1).nonzero()[:, 0] for place in places]
        for sampler, place, own in zip(self.samplers, places, self.rows, strict=True):
            sampler.select(place[own].int().argmax(1))
        self.samplers = [sampler for sampler, own in zip(self.samplers, self.rows, strict=True) if len(own)]
        self.rows = [own for own in self.rows if len(own)]
        self._sort()

    def join(self, other: "MixedSampler") -> None:
        """Append the rows of another sampler behind one's own."""
        count = sum(map(len, self.rows))
        known = [sampler.sampling for sampler in self.samplers]
        for sampler, rows in zip(other.samplers, other.rows, strict=True):
            if sampler.sampling in known:
                place = known.index(sampler.sampling)
                self.samplers[place].join(sampler)
                self.rows[place] = torch.cat([self.rows[place], rows + count])
            else:
                self.samplers.append(sampler)
                self.rows.append(rows + count)
        self._sort()

    def _sort(self) -> None:
        self.order = torch.cat(self.rows).argsort()

    def _parts(self) -> Iterator[tuple[TargetSampler, Rows]]:
        """Yield the samplers and their rows; a sampler that has all rows takes them as they are, without a copy."""
        whole = len(self.samplers) == 1
        for sampler, rows in zip(self.samplers, self.rows, strict=True):
            yield sampler, slice(None) if whole else rows
