"""Domino's head on a block drafter: a recurrent network over the path's tokens corrects the logits of later depths.

    z = GRU(embed(p), z);  logits_k = base_k + U silu(W concat(h_k, z))

p: the token before the one that slot k speaks of; z: the state of the path to it, zeros before the root.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


def domino_layers(hidden: int, state: int, rank: int, draft_vocab: int) -> dict[str, nn.Module]:
    """Return the layers of a Domino head under its names. state: size of z; rank: of what U reads."""
    first, last = nn.Linear(hidden + state, rank, bias=False), nn.Linear(rank, draft_vocab, bias=False)
    return {"prefix_gru": nn.GRU(hidden, state, bias=False), "embed_proj": nn.Sequential(first, nn.SiLU(), last)}


class DominoHead:
    """Domino's head in layers of a block drafter, `embed_tokens` and those of `domino_layers`; see
    `c2t.models.drafts.markov.SequentialHead`."""

    def __init__(self, drafter: Any, first_depth: int):
        self.drafter, self.first_depth = drafter, first_depth
        self.state_size: int = drafter.prefix_gru.hidden_size

    @property
    def out(self) -> nn.Linear:
        return self.drafter.embed_proj[2]

    def embedded(self, previous: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]:
        """See `SequentialHead.embedded`."""
        return self.drafter.embed_tokens(previous)

    def step(
        self, embedded: Float[Tensor, "*S H"], hidden: Float[Tensor, "*S H"], state: Float[Tensor, "*S z"]
    ) -> tuple[Float[Tensor, "*S r"], Float[Tensor, "*S z"]]:
        """See `SequentialHead.step`."""
        gru, (first, activation, _) = self.drafter.prefix_gru, self.drafter.embed_proj
        read, state = embedded.to(hidden).flatten(0, -2), state.to(hidden).flatten(0, -2)
        new = torch.gru_cell(read, state, gru.weight_ih_l0, gru.weight_hh_l0).view(*hidden.shape[:-1], -1)
        return activation(first(torch.cat([hidden, new], -1))), new
