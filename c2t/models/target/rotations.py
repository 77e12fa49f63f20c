"""Rotary position embeddings as a table."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from c2t.models.target.stock import LLAMA_ROTARY, is_stock_module


class Rotations:
    """Cosines and sines of all positions so far asked for; each is computed once, so that it is the same in every
    forward."""

    @staticmethod
    def serves(rotary: nn.Module) -> bool:
        """Return True for transformers' own module whose frequencies do not depend on the text's length."""
        return rotary.rope_type in ("default", "linear", "llama3") and is_stock_module(rotary, LLAMA_ROTARY)

    def __init__(self, rotary: nn.Module, dim: int):
        self._rotary, self._half = rotary, dim // 2
        self.cosine = self.sine = torch.zeros(0, self._half, dtype=torch.float32, device=rotary.inv_freq.device)

    def below(self, positions: int) -> tuple[Float[Tensor, "P h"], Float[Tensor, "P h"]]:
        """Return cosines and sines of at least so many positions, for half of a head's dimensions: the other half turns
        by the same angles."""
        self.reach(positions)
        return self.cosine, self.sine

    def reach(self, positions: int) -> None:
        """Extend the table to this number of positions, if it is shorter."""
        if positions <= len(self.cosine):
            return
        table = torch.arange(max(positions, 2 * len(self.cosine), 1024), device=self.cosine.device)
        like = torch.zeros(1, dtype=torch.float32, device=table.device)
        cosine, sine = self._rotary(like, table[None])
        self.cosine, self.sine = cosine[0, :, : self._half].contiguous(), sine[0, :, : self._half].contiguous()
