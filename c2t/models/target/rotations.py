"""Rotary position embeddings as a table."""

import torch
from jaxtyping import Float
from torch import Tensor


class Rotations:
    """Cosines and sines of all positions so far asked for; each is computed once, so that it is the same in every
    forward. frequencies: of half of the dimensions that turn. scaling: what both are multiplied by."""

    def __init__(self, frequencies: Float[Tensor, " h"], scaling: float = 1.0):
        self._frequencies, self._scaling = frequencies.detach().float(), scaling
        self.cosine = self.sine = self._frequencies.new_zeros(0, len(frequencies))

    def below(self, positions: int) -> tuple[Float[Tensor, "P h"], Float[Tensor, "P h"]]:
        """Return cosines and sines of at least so many positions, for half of the dimensions that turn: the other half
        turns by the same angles."""
        self.reach(positions)
        return self.cosine, self.sine

    def reach(self, positions: int) -> None:
        """Extend the table to this number of positions, if it is shorter."""
        start = len(self.cosine)
        if positions <= start:
            return
        more = torch.arange(start, max(positions, 2 * start, 1024), device=self._frequencies.device)
        angles = more[:, None].float() * self._frequencies
        self.cosine = torch.cat([self.cosine, angles.cos() * self._scaling])
        self.sine = torch.cat([self.sine, angles.sin() * self._scaling])
