"""The target's sampler: it samples the target's tokens, and accepts a path of each tree."""

import copy
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.caches.ragged import SlotLogits
from c2t.errors import InputError, short_repr
from c2t.grammars.constraints import Constraints, paths_to
from c2t.kernels import walk
from c2t.kernels.argmax import argmax, argmax_at
from c2t.kernels.masks import AskAfter
from c2t.kernels.noise import Noise
from c2t.models.target.target import check_finite, check_logits
from c2t.sampling import ON_DEVICE, Sampling, TokenCounts, check_sequence, noise_at, stream_key, uniform
from c2t.tree import Tree
from c2t.verify import Accepted, residual, target_only

Path = Callable[[int], Int[Tensor, " d"]]  # row of the batch -> tokens from the root to a node, both included


@runtime_checkable
class Processors(Protocol):
    """The caller's logits processors, which may depend on the text before a token.

    sequence: number of each row's random stream. path: see `Path`; no tokens before the first root. temperature: by
    which they divide the logits. of_scores(): returns those of them that depend on the logits alone.
    """

    temperature: float

    def __call__(
        self, logits: Float[Tensor, "B V"], sequence: Int[Tensor, " B"], path: Path
    ) -> Float[Tensor, "B V"]: ...

    def of_scores(self) -> "Processors": ...


DRAFT = -1  # the draft's number in `stream_key`: its samples are independent of the target's


class TargetSampler:
    """Samples the target's next tokens, with one random stream per row.

    counts: of the committed text without the root; None without penalties. processors: applied to the logits before the
    sampling settings. generated: how many of each text's last tokens were generated, by default none. Raises InputError
    for a bias of a token outside the vocabulary.
    """

    def __init__(
        self,
        sampling: Sampling,
        vocabulary: int,
        tokens: Int[Tensor, "B P"],
        lengths: Int[Tensor, " B"],
        sequences: Sequence[int] | None = None,
        processors: Processors | None = None,
        generated: Sequence[int] | None = None,
    ):
        sampling.check_vocabulary(vocabulary)
        self.sampling, self.processors = sampling, processors
        self.sequence = number(len(tokens), sequences, tokens.device)
        new = torch.tensor([0] * len(tokens) if generated is None else generated, device=tokens.device)
        self.counts = sampling.count(tokens, lengths, new, vocabulary)

    def sample(
        self, logits: Float[Tensor, "B V"], position: Int[Tensor, " B"], constraints: Constraints | None = None
    ) -> Int[Tensor, " B"]:
        """Sample the token at `position` from the logits before it. constraints: of these rows."""
        if self.processors:
            logits = self._processed(logits, self.sequence, lambda row: self.sequence[:0])
        if constraints:
            logits = constraints.masked(logits, range(len(logits)), [()] * len(logits))
        return self.sample_at(logits, self.sequence, position, self.counts)

    def sample_at(
        self,
        logits: Float[Tensor, "b V"],
        sequence: Int[Tensor, " b"],
        position: Int[Tensor, " b"],
        counts: TokenCounts | None,
    ) -> Int[Tensor, " b"]:
        """Sample the tokens at `position` of these random streams; InputError for logits of NaN or infinity."""
        check_logits(logits, "target")
        return self.sampling.sample(logits, sequence, position, counts)

    def accept(
        self,
        tree: Tree,
        logits: SlotLogits,
        root: Int[Tensor, " B"],
        rule: str,
        constraints: Constraints | None = None,
    ) -> Accepted:
        """Return the accepted paths of verified trees, and count their tokens. root: the positions of the roots.
        constraints: of these rows.

        At temperature 0 both rules are the greedy one.
        """
        if self.processors is None and not self.sampling.rescores:
            ask_after = constraints.ask_required if constraints else None
            if self.sampling.temperature == 0 and (not constraints or walk.serves(logits.values)):
                return accept_greedily(tree, logits, ask_after)
            if rule == "target-only" and not self.sampling.filters and walk.serves(logits.values):
                return walked(tree, logits, self.noise(root), ask_after)
            if rule == "target-only" and walk.on_device(logits.values) and not constraints:
                return walked_on_device(tree, logits, lambda values: self._sampled(tree, values, root))
        every_row = torch.arange(len(tree.token), device=root.device)
        ancestors = cache(tree.ancestors)

        def read(rows: Int[Tensor, " b"], slots: Int[Tensor, " b"]) -> Float[Tensor, "b V"]:
            values = logits.at(rows, slots)

            def along(number: int) -> Int[Tensor, " d"]:
                row = rows[number]
                return tree.token[row, ancestors()[row, slots[number]]]

            if self.processors:
                values = self._processed(values, self.sequence[rows], along)
            if constraints:
                at = rows.tolist()
                values = constraints.masked(values, at, paths_to(tree, at, slots.tolist()))
            return values

        def position(rows: Int[Tensor, " b"], slots: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
            return root[rows] + tree.depth[rows, slots] + 2

        def counts(rows: Int[Tensor, " b"], slots: Int[Tensor, " b"]) -> TokenCounts | None:
            """Return the counts after these slots: of the text and the path from the root."""
            return self.counts and self.counts.select(rows).plus(tree.token[rows], ancestors()[rows, slots])

        def choose(rows: Int[Tensor, " b"], slots: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
            return self.sample_at(read(rows, slots), self.sequence[rows], position(rows, slots), counts(rows, slots))

        def probs(slots: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
            processed = self.sampling.process(read(every_row, slots), counts(every_row, slots))
            check_logits(processed, "target")
            return processed.double().softmax(-1)

        def uniforms(slots: Int[Tensor, " B"], number: int) -> Float[Tensor, " B"]:
            return uniform(self.sampling.seed, self.sequence, position(every_row, slots), number)

        if rule == "target-only" or self.sampling.temperature == 0:
            accepted = target_only(tree, choose)
        else:
            accepted = residual(tree, probs, uniforms)
        self.observe(tree.token.gather(1, accepted.slots.clamp(min=0)), accepted.slots >= 0)
        return accepted

    def _sampled(self, tree: Tree, logits: Float[Tensor, "S V"], root: Int[Tensor, " B"]) -> Int[Tensor, " S"]:
        """Sample the target's token after every slot. Most slots are on no path, but reading which are would wait for
        the device. A sample from logits of NaN is meaningless; the walk reports it."""
        position = (root[:, None] + tree.depth + 2).flatten()
        sequence = self.sequence[:, None].expand_as(tree.token).flatten()
        parts = (column.split(max(1, ON_DEVICE // logits.shape[1])) for column in (logits, sequence, position))
        return torch.cat([self.sampling.sample(*part) for part in zip(*parts, strict=True)])

    @property
    def stochastic(self) -> bool:
        """Return True if tokens are sampled at random."""
        return self.sampling.temperature > 0

    def key(self, root: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Return the random bits of a policy that samples its candidates; root: the positions of the roots."""
        return stream_key(self.sampling.seed, self.sequence, root, DRAFT)

    def noise(self, root: Int[Tensor, " B"]) -> Noise:
        """Return the Gumbel noise of this round's samples; root: the positions of the roots."""
        temperature = self.sampling.temperature * (self.processors.temperature if self.processors else 1)
        return noise_at(root, temperature, self.sampling.seed, self.sequence)

    def observe(self, tokens: Int[Tensor, "B m"], real: Bool[Tensor, "B m"]) -> None:
        """Count the real ones of these new tokens."""
        self.counts = self.counts and self.counts.plus(tokens, real)

    def fork(self) -> "TargetSampler":
        """Return a copy for tokens that will be rolled back. It has no processors that read texts, which cannot be."""
        other = copy.copy(self)
        other.processors = self.processors and self.processors.of_scores()
        return other

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        self.sequence = self.sequence[rows]
        self.counts = self.counts and self.counts.select(rows)

    def join(self, other: "TargetSampler") -> None:
        """Append the rows of another sampler with the same settings."""
        assert self.processors is None, "processors hold the texts of one batch only"
        self.sequence = torch.cat([self.sequence, other.sequence])
        self.counts = self.counts and self.counts.join(other.counts)

    def _processed(self, logits: Float[Tensor, "b V"], sequence: Int[Tensor, " b"], path: Path) -> Float[Tensor, "b V"]:
        """Return the logits after the caller's processors; InputError if they exclude every token."""
        check_logits(logits, "target")
        processed = self.processors(logits, sequence, path)
        if not processed.amax(-1).isfinite().all():
            raise InputError("the logits processors exclude every token, or make one infinite: take one of them out")
        return processed


def accept_greedily(tree: Tree, logits: SlotLogits, ask_after: AskAfter | None = None) -> Accepted:
    """Return the paths of the target's most probable tokens, for temperature 0 and unprocessed logits. ask_after: of
    constraints, for logits that `walk` serves."""
    if walk.serves(logits.values):
        return walked(tree, logits, ask_after=ask_after)
    if walk.on_device(logits.values):
        return walked_on_device(tree, logits, argmax)

    def choose(rows: Int[Tensor, " b"], slots: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        token, largest = argmax_at(logits.values, logits.packed_index[rows, slots])
        check_finite(largest, "target")
        return token

    return target_only(tree, choose)


def walked(tree: Tree, logits: SlotLogits, noise: Noise | None = None, ask_after: AskAfter | None = None) -> Accepted:
    """Return the accepted paths of the target-only rule; see `c2t.kernels.walk`."""
    return checked(walk.walk(logits.values, logits.packed_index, tree.token, tree.parent, tree.alive, noise, ask_after))


def walked_on_device(
    tree: Tree, logits: SlotLogits, choose: Callable[[Float[Tensor, "S V"]], Int[Tensor, " S"]]
) -> Accepted:
    """Return the accepted paths; choose(logits of all slots) returns the target's token after each slot."""
    values = logits.values[logits.packed_index.flatten()]  # of these rows only
    index = torch.arange(len(values), device=values.device).view_as(logits.packed_index)
    return checked(walk.triton_walk(values, choose(values), index, tree.token, tree.parent, tree.alive))


def checked(result: walk.Walk) -> Accepted:
    """Return the paths of a walk; InputError if a largest logit on it is not finite."""
    check_finite(result.largest.tolist(), "target")
    return Accepted(result.slots, result.length, result.bonus)


def number(count: int, sequences: Sequence[int] | None, device: torch.device) -> Int[Tensor, " B"]:
    """Return the numbers of the rows' random streams, 0, 1, ... by default."""
    if sequences is not None:
        if not isinstance(sequences, Sequence) or len(sequences) != count:
            raise InputError(
                f"sequences = {short_repr(sequences)}: give a whole number for each of the {count} prompts"
            )
        for sequence in sequences:
            check_sequence(sequence)
    return torch.tensor(list(range(count) if sequences is None else sequences), device=device)
