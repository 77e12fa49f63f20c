"""The target's side of a generation at random: which tokens it would choose itself, and what it accepts of a tree."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.models.target import check_logits
from c2t.sampling import Sampling, stream_key, uniform
from c2t.tree import Tree
from c2t.verify import Accepted, residual, target_only

DRAFT = -1  # the draft's number in `stream_key`: its draws are independent of the target's


class Choice:
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
        self.seen: Bool[Tensor, "B V"] | None = None
        if sampling.repetition_penalty != 1:
            # Padding repeats the row's first token, which it has seen anyway.
            real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
            self.seen = torch.zeros(len(tokens), vocabulary, dtype=torch.bool, device=tokens.device)
            self.seen.scatter_(1, torch.where(real, tokens, tokens[:, :1]), True)

    def after(self, logits: Float[Tensor, "B V"], position: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """The token at `position`, given the logits before it."""
        check_logits(logits, "target")
        return self.sampling.draw(logits, self.sequence, position, self.seen)

    def on(self, tree: Tree, logits: Float[Tensor, "B n V"], lengths: Int[Tensor, " B"], rule: str) -> Accepted:
        """The accepted paths of verified trees. Slots are asked for in the order of the path, which is how the tokens
        seen stay up to date. At temperature 0 both rules are the greedy one."""
        row = torch.arange(len(logits), device=logits.device)

        def visit(slots: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
            if self.seen is not None:
                self.seen[row, tree.token[row, slots]] = True
            return logits[row, slots]

        def position(slots: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
            return lengths + tree.depth[row, slots] + 2

        def probs(slots: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
            processed = self.sampling.process(visit(slots), self.seen)
            check_logits(processed, "target")
            return processed.double().softmax(-1)

        if rule == "target-only" or self.sampling.temperature == 0:
            return target_only(tree, lambda slots: self.after(visit(slots), position(slots)))
        seed = self.sampling.seed
        return residual(tree, probs, lambda slots, draw: uniform(seed, self.sequence, position(slots), draw))

    def key(self, position: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """The draft's random bits for the round whose root stands at `position`."""
        return stream_key(self.sampling.seed, self.sequence, position, DRAFT)

    def select(self, rows: Int[Tensor, " b"]) -> None:
        self.sequence = self.sequence[rows]
        self.seen = None if self.seen is None else self.seen[rows]


def number(count: int, sequences: Sequence[int] | None, device: torch.device) -> Int[Tensor, " B"]:
    """The numbers of the rows' random streams, 0, 1, ... by default."""
    return torch.tensor(list(range(count) if sequences is None else sequences), device=device)
