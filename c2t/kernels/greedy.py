"""The walk along trees at temperature 0, where the target takes its most probable tokens: in one C function on a CPU.

What follows a forward finds its code cold, so each operation of torch costs several times what it costs in a loop by
itself; a walk of two steps has seventy of them. The twin is `c2t.verify.target_only`.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.kernels.compiled import library


class Walk(NamedTuple):
    """Accepted paths as `c2t.verify.Accepted` has them. largest: the logits of the bonus tokens; of a row in which a
    largest logit on the way is not finite, that one, and the walk ends there."""

    slots: Int[Tensor, "B m"]
    length: Int[Tensor, " B"]
    bonus: Int[Tensor, " B"]
    largest: Float[Tensor, " B"]


@cache
def compiled() -> ctypes.CDLL | None:
    """Return the compiled function, None where it cannot be had."""
    found = library(Path(__file__).with_suffix(".c"))
    if found is not None:
        pointer, size = ctypes.c_void_p, ctypes.c_long
        found.walk.argtypes = (pointer, size, size, *[pointer] * 4, size, size, *[pointer] * 4, ctypes.c_int)
        found.walk.restype = None
    return found


def serves(logits: Float[Tensor, "S V"]) -> bool:
    """Return True if there is a C function for these logits: in float32 on a CPU, each slot's without gaps."""
    plain = logits.device.type == "cpu" and logits.dtype == torch.float32 and logits.stride(1) == 1
    return plain and compiled() is not None


def greedy_walk(
    logits: Float[Tensor, "S V"],
    place: Int[Tensor, "B n"],
    token: Int[Tensor, "B n"],
    parent: Int[Tensor, "B n"],
    alive: Bool[Tensor, "B n"],
) -> Walk:
    """Return the paths from the roots along the most probable tokens (of equal ones the lowest id). place: where the
    logits after each slot stand. Parents stand before their children."""
    columns = [each.contiguous() for each in (place, token, parent, alive)]
    rows, slots = token.shape
    path, length, bonus = torch.empty_like(columns[1]), token.new_empty(rows), token.new_empty(rows)
    largest = logits.new_empty(rows)
    trees = *(each.data_ptr() for each in columns), rows, slots
    out = (each.data_ptr() for each in (path, length, bonus, largest))
    compiled().walk(logits.data_ptr(), logits.stride(0), logits.shape[1], *trees, *out, torch.get_num_threads())
    return Walk(path[:, : int(length.max()) + 1], length, bonus, largest)
