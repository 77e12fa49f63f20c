"""The target's tokens and the walk along trees that accepts them: in one C function each on a CPU, and the walk in one
Triton kernel on a GPU.

After a forward on a CPU the code of torch's operations is cold: each takes several times as long as in a loop, and a
walk of two steps has seventy of them. On a GPU each step of torch's walk waits for the device. The
twins are `c2t.verify.target_only` and `c2t.sampling.gumbel_max`.
"""

from typing import NamedTuple, no_type_check

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.kernels.masks import AskAfter, asked
from c2t.kernels.native import kernels
from c2t.kernels.noise import Noise
from c2t.kernels.pointer import pointer, pointers

try:
    import triton
    import triton.language as tl
except ImportError:  # the torch twin needs none
    triton = None


class Walk(NamedTuple):
    """Accepted paths as `c2t.verify.Accepted` has them. largest: the chosen token's logit after each path, on the CPU;
    in C the most probable one's. Of a row in which one on the way is not finite, it is that one, and the walk ends
    there."""

    slots: Int[Tensor, "B m"]
    length: Int[Tensor, " B"]
    bonus: Int[Tensor, " B"]
    largest: Float[Tensor, " B"]


def serves(logits: Float[Tensor, "S V"]) -> bool:
    """Return True if there are C functions for these logits: in float32 on a CPU, each slot's without gaps."""
    plain = logits.is_cpu and logits.dtype == torch.float32 and logits.stride(1) == 1
    return plain and kernels() is not None


def on_device(logits: Float[Tensor, "S V"]) -> bool:
    """Return True if the Triton kernel can walk along these logits."""
    return triton is not None and logits.is_cuda


def draw(logits: Float[Tensor, "B V"], key: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Sample a token of each row by the random numbers of its key. No logit is NaN, and one in each row is finite."""
    key = key.contiguous()
    token = torch.empty_like(key)
    given = pointer(logits, torch.float32, rows=True), logits.stride(0), logits.shape[1]
    keys, tokens = pointers((key, token), [torch.int64] * 2)
    kernels().draw(*given, keys, len(key), tokens, torch.get_num_threads())
    return token


def walk(
    logits: Float[Tensor, "S V"],
    index: Int[Tensor, "B n"],
    token: Int[Tensor, "B n"],
    parent: Int[Tensor, "B n"],
    alive: Bool[Tensor, "B n"],
    noise: Noise | None = None,
    ask_after: AskAfter | None = None,
) -> Walk:
    """Return the paths from the roots along the target's tokens: its samples, or without `noise` the most probable
    ones (of equal ones the lowest id). index: the row of logits after each slot. Parents stand before their
    children. ask_after: of a constraint; it is asked for the tokens of the paths only."""
    columns = [column.contiguous() for column in (index, token, parent, alive)]
    rows, slots = token.shape
    streams = [column.contiguous() for column in noise or ()]
    path, length, bonus = torch.empty_like(columns[1]), token.new_empty(rows), token.new_empty(rows)
    largest = logits.new_empty(rows)
    whole, real = torch.int64, torch.float32
    trees = *pointers(columns, (whole, whole, whole, torch.bool)), rows, slots
    rule = pointers(streams, (real, whole, whole)) if streams else (None,) * 3
    out = pointers((path, length, bonus, largest), (whole, whole, whole, real))
    given = pointer(logits, real, rows=True), logits.stride(0), logits.shape[1]
    with asked(ask_after) as constraint:
        longest = kernels().walk(*given, *trees, *rule, constraint, *out, torch.get_num_threads())
    if longest < 0:
        raise MemoryError("no memory for the logits that a constraint allows")
    return Walk(path[:, :longest], length, bonus, largest)


def triton_walk(
    logits: Float[Tensor, "S V"],
    chosen: Int[Tensor, " S"],
    index: Int[Tensor, "B n"],
    token: Int[Tensor, "B n"],
    parent: Int[Tensor, "B n"],
    alive: Bool[Tensor, "B n"],
) -> Walk:
    """Do `walk` in one launch along the tokens that the target has chosen after each of the S slots; waits for the
    device once, for the paths' lengths."""
    rows, slots = token.shape
    index, token, parent, alive = (column.contiguous() for column in (index, token, parent, alive))
    path, bonus = torch.empty_like(token), token.new_empty(rows)
    ends = logits.new_empty(rows, 2, dtype=torch.float64)
    if rows:
        _walk[(rows,)](
            *(logits, chosen, index, token, parent, alive, path, bonus, ends, logits.stride(0), slots),
            TILE=triton.next_power_of_2(slots),
        )
    length, largest = ends.cpu().T
    longest = 1 + int(length.max()) if rows else 0
    return Walk(path[:, :longest], ends[:, 0].long(), bonus, largest)


if triton is not None:  # no_type_check keeps run-time checkers of annotations out of the kernel's source
    # fmt: off
    @triton.jit(do_not_specialize=["slots"])
    @no_type_check
    def _walk(
        logits, chosen, index, token, parent, alive, path, bonus, ends, stride, slots, TILE: tl.constexpr
    ):
        """Walk along one tree."""
        row = tl.program_id(0).to(tl.int64)
        index, path = index + row * slots, path + row * slots
        slot = tl.arange(0, TILE)
        inside = slot < slots
        tokens = tl.load(token + row * slots + slot, mask=inside, other=-1)
        parents = tl.load(parent + row * slots + slot, mask=inside, other=-1)
        real = tl.load(alive + row * slots + slot, mask=inside, other=0) != 0
        tl.store(path + slot, tl.where(slot == 0, 0, -1).to(tl.int64), mask=inside)
        tl.debug_barrier()  # the walk stores into the same places
        here, length, going = 0, 0, row >= 0
        last, value = tl.zeros([], tl.int64), tl.zeros([], tl.float64)
        while going:
            at = tl.load(index + here)
            last = tl.load(chosen + at)
            value = tl.load(logits + at * stride + last).to(tl.float64)
            child = tl.min(tl.where((parents == here) & (tokens == last) & real, slot, TILE), 0)
            going = (child < TILE) & (tl.abs(value) < float("inf"))  # not with NaN
            here = tl.where(going, child, here)
            length += going.to(tl.int32)
            tl.store(path + length, here.to(tl.int64), mask=going)
        tl.store(bonus + row, last)
        tl.store(ends + 2 * row, length.to(tl.float64))
        tl.store(ends + 2 * row + 1, value)
    # fmt: on
