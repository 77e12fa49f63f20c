"""The target's side of a generation: which tokens it draws itself, and what it accepts of a tree."""

from collections.abc import Sequence
from functools import partial
from numbers import Integral

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.errors import InputError
from c2t.models.target import check_logits
from c2t.protocols import Root
from c2t.sampling import Sampling, noise, stream_key, uniform
from c2t.tree import Tree
from c2t.verify import Accepted, longest_fork, residual, target_only

DRAFT = -1  # the draft's number in `stream_key`: its draws are independent of the target's
CANDIDATES = -2  # that of the target's further candidates


class TargetSampler:
    """The target's own next tokens: the sampling rule, each row's random stream, and the tokens it has seen."""

    def __init__(
        self,
        sampling: Sampling,
        vocabulary: int,
        tokens: Int[Tensor, "B P"],
        lengths: Int[Tensor, " B"],
        sequences: Sequence[int] | None = None,
    ):
        self.sampling = sampling
        self.sequence = number(len(tokens), sequences, tokens.device)
        self.ahead: Float[Tensor, "B V"] | None = None
        self.seen: Bool[Tensor, "B V"] | None = None
        if sampling.repetition_penalty != 1:
            # Padding repeats the row's first token, which it has seen anyway.
            real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
            self.seen = torch.zeros(len(tokens), vocabulary, dtype=torch.bool, device=tokens.device)
            self.seen.scatter_(1, torch.where(real, tokens, tokens[:, :1]), True)

    def sample(self, logits: Float[Tensor, "B V"], position: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """The token at `position`, given the logits before it."""
        check_logits(logits, "target")
        return self.sampling.draw(logits, self.sequence, position, self.seen)

    def accept(self, tree: Tree, logits: Float[Tensor, "B n V"], root: Int[Tensor, " B"], rule: str) -> Accepted:
        """The accepted paths of verified trees; root: the positions of their roots. Slots are asked for in the order of
        the path, which is how the tokens seen stay up to date. At temperature 0 the first two rules are the greedy one.
        """
        if rule == "longest-fork":
            return self._longest_fork(tree, logits, root)
        row = torch.arange(len(logits), device=logits.device)

        def visit(slots: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
            if self.seen is not None:
                self.seen[row, tree.token[row, slots]] = True
            return logits[row, slots]

        def position(slots: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
            return root + tree.depth[row, slots] + 2

        def probs(slots: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
            processed = self.sampling.process(visit(slots), self.seen)
            check_logits(processed, "target")
            return processed.double().softmax(-1)

        if rule == "target-only" or self.sampling.temperature == 0:
            return target_only(tree, lambda slots: self.sample(visit(slots), position(slots)))
        seed = self.sampling.seed
        return residual(tree, probs, lambda slots, draw: uniform(seed, self.sequence, position(slots), draw))

    def root(self, token: Int[Tensor, " B"], position: Int[Tensor, " B"]) -> Root:
        """What a policy is given for the round whose root stands at `position`."""
        key = stream_key(self.sampling.seed, self.sequence, position, DRAFT)
        return Root(token, key, None if self.ahead is None else partial(self._candidates, position + 1))

    def look_ahead(self, root: Int[Tensor, " B"], logits: Float[Tensor, "B V"]) -> None:
        """Take note of the logits after the coming root: its successors can now be proposed."""
        self.ahead = logits
        if self.seen is not None:
            self.seen.scatter_(1, root[:, None], True)

    def select(self, rows: Int[Tensor, " b"]) -> None:
        self.sequence = self.sequence[rows]
        self.seen = None if self.seen is None else self.seen[rows]
        self.ahead = None if self.ahead is None else self.ahead[rows]

    def _candidates(self, position: Int[Tensor, " B"], count: int) -> Int[Tensor, "B W"]:
        """The target's own token at `position`, then further draws without replacement from the same distribution; at
        temperature 0 the most probable tokens. -1 where the distribution has no more."""
        own = self.sample(self.ahead, position)[:, None]
        values = self.sampling.process(self.ahead, self.seen).double().scatter(1, own, float("-inf"))
        if self.sampling.temperature:
            key = stream_key(self.sampling.seed, self.sequence, position, CANDIDATES)
            values = values - (-noise(key, values.shape[1]).log()).log()  # Gumbel's trick
        further = values.topk(min(count, values.shape[1]) - 1, dim=1)
        return torch.cat([own, torch.where(further.values.isfinite(), further.indices, -1)], 1)

    def _longest_fork(self, tree: Tree, logits: Float[Tensor, "B n V"], root: Int[Tensor, " B"]) -> Accepted:
        position = tree.positions(root) + 1
        sequence = self.sequence[:, None].expand_as(position)
        seen = None
        if self.seen is not None:
            path = tree.ancestors().float() @ torch.nn.functional.one_hot(tree.token, logits.shape[2]).float()
            seen = (self.seen[:, None] | (path > 0)).flatten(0, 1)
        check_logits(logits.flatten(0, 1), "target")
        chosen = self.sampling.draw(logits.flatten(0, 1), sequence.flatten(), position.flatten(), seen)
        accepted = longest_fork(tree, chosen.unflatten(0, position.shape))
        end = tree.child(accepted.slots.gather(1, accepted.length[:, None])[:, 0], accepted.bonus)
        if self.seen is not None:
            path = tree.token.gather(1, accepted.slots.clamp(min=0))
            self.seen.scatter_(1, path, True)  # beyond a path stands the root, which is on it
        self.look_ahead(accepted.bonus, logits.gather(1, end[:, None, None].expand(-1, 1, logits.shape[2]))[:, 0])
        return accepted


def number(count: int, sequences: Sequence[int] | None, device: torch.device) -> Int[Tensor, " B"]:
    """The numbers of the rows' random streams, 0, 1, ... by default."""
    if sequences is not None and (len(sequences) != count or not all(isinstance(n, Integral) for n in sequences)):
        raise InputError(f"sequences = {list(sequences)}: give a whole number for each of the {count} prompts")
    return torch.tensor(list(range(count) if sequences is None else sequences), device=device)
