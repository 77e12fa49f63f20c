"""A model of transformers as it is, with hooks on its modules."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from c2t.errors import InputError
from c2t.models.target.masks import KINDS, mask_arguments
from c2t.models.target.offloaded import device_of
from c2t.study.parity.activations import Activations
from c2t.study.parity.nodes import Compared, PlainNode, tree_of
from c2t.tree import Tree


class StockModel(Compared):
    """The model after a prompt. chain: nodes are verified without a mask, as assisted generation does it.

    InputError for a model whose layers are no attention over one growing cache.
    """

    def __init__(self, model: PreTrainedModel, activations: Activations, prompt: Sequence[int], chain: bool):
        super().__init__()
        config = model.config.get_text_config(decoder=True)
        others = sorted(set(getattr(config, "layer_types", None) or ()) - set(KINDS))
        if others or getattr(model, "_is_stateful", False):
            raise InputError(
                f"{config.model_type} has layers of another kind ({', '.join(others) or 'with a state'}): their state "
                "cannot go back to an earlier token, so nothing can be compared"
            )
        self.model: Any = model
        self.activations, self.chain, self.length = activations, chain, len(prompt)
        self.device = device_of(model.get_input_embeddings())
        self.cache = DynamicCache()
        self.first = self._forward(self._on(prompt), self._on(range(self.length)))[-1]

    def step(self, token: int) -> Float[Tensor, " V"]:
        """See `Compared.step`."""
        return self._forward(self._on([token]), self._on([self.cache.get_seq_length()]))[0]

    def last_step(self, token: int) -> Float[Tensor, " V"]:
        """See `Compared.last_step`; what the modules compute is stored as the next node's."""
        with self.activations.storing():
            return self.step(token)

    def back(self, count: int) -> None:
        """See `Compared.back`."""
        self.cache.crop(-count)

    def verify(self, nodes: Sequence[PlainNode]) -> Float[Tensor, "n V"]:
        """See `Compared.verify`."""
        tree = tree_of(nodes, self.device)
        positions = tree.positions(torch.tensor([self.length], device=self.device))
        mask = {} if self.chain else {"attention_mask": self._mask(tree, positions)}
        logits = self._forward(tree.token, positions, **mask)
        self.back(len(nodes))
        return logits

    def _forward(
        self, tokens: Int[Tensor, "1 n"], positions: Int[Tensor, "1 n"], **mask: Tensor | dict[str, Tensor]
    ) -> Float[Tensor, "n V"]:
        out = self.model(input_ids=tokens, position_ids=positions, past_key_values=self.cache, use_cache=True, **mask)
        return out.logits[0].to(self.device)

    def _on(self, numbers: Sequence[int]) -> Int[Tensor, "1 n"]:
        return torch.tensor([list(numbers)], device=self.device)

    def _mask(self, tree: Tree, positions: Int[Tensor, "1 n"]) -> Tensor | dict[str, Tensor]:
        """Return the mask of a tree: each node sees the prompt and its path."""
        prompt = self._on(range(self.length))
        sees = torch.nn.functional.pad(tree.ancestors(), (self.length, 0), value=True)
        keys = torch.cat([prompt, positions], 1)
        return mask_arguments(self.model, sees, lambda: positions[:, :, None] - keys[:, None])
