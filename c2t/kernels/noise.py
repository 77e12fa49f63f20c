"""The Gumbel noise of the target's sampling, added to a draft's logits: in C on a CPU (noise.c). The twin is in
`c2t.sessions.coupled`, which says why."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.kernels.compiled import changeable
from c2t.kernels.native import kernels
from c2t.kernels.pointer import pointer, pointers


class Noise(NamedTuple):
    """Origin of the Gumbel noise of a round's samples: the rows' temperatures, 0 where the target is greedy, the keys
    of their random streams (`c2t.sampling.stream_of`), and the positions of their roots."""

    temperature: Float[Tensor, " B"]
    stream: Int[Tensor, " B"]
    root: Int[Tensor, " B"]


def serves(logits: Float[Tensor, "*S w"]) -> bool:
    """Return True if `add_noise` can change these logits: in float32 on a CPU with a compiler."""
    return changeable(logits) and kernels() is not None


def add_noise(
    logits: Float[Tensor, "*S w"],
    ids: Int[Tensor, " v"] | None,
    oov_ids: Int[Tensor, "B E"] | None,
    row: Int[Tensor, " S"],
    position: Int[Tensor, " S"],
    noise: Noise,
) -> None:
    """Add the noise of the samples at these positions of these rows' texts to logits, in place.

    ids: the tokens that the logits are of; None for all. oov_ids: those of each text, after them.
    """
    whole, real = torch.int64, torch.float32
    of_texts, more = (None, 0) if oov_ids is None else (pointer(oov_ids, whole), oov_ids.shape[1])
    given = [column.contiguous() for column in (row, position, *noise[:2])]
    kernels().add_noise(
        *(pointer(logits, real), len(row), logits.shape[-1] - more, None if ids is None else pointer(ids, whole)),
        *(of_texts, more, *pointers(given, (whole, whole, real, whole))),
        torch.get_num_threads(),
    )
