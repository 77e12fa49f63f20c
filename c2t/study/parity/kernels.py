"""c2t's target: packed layers on a CPU where a model has them, a recorded forward, or transformers' layers."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.cuda_graphs.target import StaticTarget
from c2t.models.target.target import Target
from c2t.study.parity.nodes import Compared, PlainNode, tree_of
from c2t.tree import Tree


class OwnTarget(Compared):
    """A target's session after a prompt."""

    def __init__(self, target: Target | StaticTarget, prompt: Sequence[int]):
        super().__init__()
        self.length, self.device = len(prompt), target.device
        self.session = target.session()
        tokens, length = torch.tensor([list(prompt)]), torch.tensor([self.length])
        self.first = self.session.prefill(tokens.to(self.device), length.to(self.device)).logits.values[0]

    def step(self, token: int) -> Float[Tensor, " V"]:
        """See `Compared.step`: a round of plain decoding."""
        logits = self.session.verify(Tree.root(self._on([token]))).logits.padded()[0, 0]
        self.session.commit(self._on([[0]]), self._on([1]))
        return logits

    def back(self, count: int) -> None:
        """See `Compared.back`."""
        self.session.cache.rewind(self._on([count]))

    def verify(self, nodes: Sequence[PlainNode]) -> Float[Tensor, "n V"]:
        """See `Compared.verify`."""
        logits = self.session.verify(tree_of(nodes, self.device)).logits.padded()[0]
        self.session.cache.drop()
        return logits

    def _on(self, numbers: Sequence) -> Int[Tensor, "..."]:
        return torch.tensor(numbers, device=self.device)
