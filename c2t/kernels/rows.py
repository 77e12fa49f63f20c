"""Log-sum-exp of next-token logits, their most probable tokens, and the entropy over the M most probable ones (C2T,
equation 3), in one pass over the vocabulary: all that a level of a tree needs.

On a GPU every row is split into chunks of the vocabulary. One kernel reduces a chunk to at most M logits, a second one
merges the chunks; in both, one program finds the most probable tokens while another one finds the M-th largest logit,
by bisection on the bits of the floats. Equal logits contribute equally, so it does not matter which of those at the
threshold are counted. On a CPU a function in C does the same (rows.c), and torch where that cannot be compiled.
"""

from typing import NamedTuple, no_type_check

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.kernels.native import kernels
from c2t.kernels.pointer import pointer, pointers
from c2t.kernels.torch_rows import torch_entropy, torch_log_norm, torch_top

try:
    import triton
    import triton.language as tl
except ImportError:  # the torch twin needs none
    triton = None

CHUNK, CHUNKS = 4096, 32  # logits in a chunk, unless that makes more chunks of a row than this
MANTISSA = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}  # float32 bits that a type never uses


class TopK(NamedTuple):
    """Results for R distributions, in nats.

    token, log_prob: the k most probable tokens, most probable first and equal ones by lowest id. entropy: over the m
    most probable tokens, not renormalised. log_norm: log-sum-exp of the logits.
    """

    token: Int[Tensor, "*R K"]
    log_prob: Float[Tensor, "*R K"]
    entropy: Float[Tensor, "*R"]
    log_norm: Float[Tensor, "*R"]


def rank(logits: Float[Tensor, "*R V"], k: int, m: int | None, log_norm: Float[Tensor, "*R"] | None = None) -> TopK:
    """Return the k <= V most probable tokens of each distribution and its entropy over the m most probable ones.

    k = 0 ranks no token. m: None is the whole vocabulary; 0 computes no entropy (NaN). log_norm: the log-sum-exp if it
    is known already, which saves a pass where there is no kernel.

    Half-precision logits are read as float32; -inf is a token without probability. A NaN makes the row's log_norm NaN,
    and with it all probabilities.
    """
    if triton is not None and logits.is_cuda and logits.dtype in MANTISSA:
        return triton_rank(logits, k, m)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if logits.dtype == torch.float32 and logits.device.type == "cpu" and not logits.requires_grad and kernels():
        return compiled_rank(logits, k, m)
    log_norm = torch_log_norm(logits) if log_norm is None else log_norm
    return TopK(*torch_top(logits, log_norm, k), torch_entropy(logits, log_norm, m), log_norm)


def compiled_rank(logits: Float[Tensor, "*R V"], k: int, m: int | None) -> TopK:
    """Do `rank` in C; logits are in float32 on a CPU."""
    batch, vocabulary, logits = logits.shape[:-1], logits.shape[-1], logits.contiguous()
    ranked = TopK(
        logits.new_empty(*batch, k, dtype=torch.int64),
        logits.new_empty(*batch, k),
        logits.new_empty(batch),
        logits.new_empty(batch),
    )
    most = -1 if m is None or m >= vocabulary else m
    real = torch.float32
    rows, out = ranked.log_norm.numel(), pointers(ranked, (torch.int64, real, real, real))
    kernels().rank_rows(pointer(logits, real), rows, vocabulary, k, most, *out, torch.get_num_threads())
    return ranked


def chunk_size(vocabulary: int) -> int:
    """Return the smallest power of two, CHUNK or more, that splits the vocabulary into at most CHUNKS chunks."""
    return max(CHUNK, 1 << (-(-vocabulary // CHUNKS) - 1).bit_length())


def triton_rank(logits: Float[Tensor, "*R V"], k: int, m: int | None, chunk: int | None = None) -> TopK:
    """Do `rank` in two kernels, without waiting for the device. chunk: a power of two, at least k."""
    batch, vocabulary = logits.shape[:-1], logits.shape[-1]
    logits = logits.reshape(-1, vocabulary)
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, chunk = len(logits), chunk or chunk_size(vocabulary)
    whole = m is None or m >= vocabulary
    m = 0 if whole else m
    filtered = 0 < m < chunk
    parts, width, padded = -(-vocabulary // chunk), triton.next_power_of_2(max(k, 1)), triton.next_power_of_2(max(m, 1))
    new = logits.new_empty
    sums = new(rows, parts, 3, dtype=torch.float32)
    best = new(rows, parts, width, dtype=torch.int64)
    values = new(rows, parts * padded, dtype=torch.float32) if filtered else logits
    out = TopK(
        new(rows, k, dtype=torch.int64),
        new(rows, k, dtype=torch.float32),
        new(rows, dtype=torch.float32),
        new(rows, dtype=torch.float32),
    )
    unused = MANTISSA[logits.dtype]
    if rows:
        _reduce[(rows, parts, 1 + filtered)](
            logits, best, values, sums, logits.stride(0), vocabulary,
            CHUNK=chunk, K=k, WIDTH=width, M=m if filtered else 0, KEPT=padded, WHOLE=whole, UNUSED=unused,
            num_warps=8,
        )  # fmt: skip
        tile = triton.next_power_of_2(values.shape[1])
        _merge[(rows, 1 + (m > 0))](
            best, values, sums, *out, values.stride(0), values.shape[1], parts,
            PARTS=triton.next_power_of_2(parts), K=k, WIDTH=width, M=m, TILE=tile, WHOLE=whole, UNUSED=unused,
            num_warps=min(max(tile // 512, 4), 32) if m else 4,
        )  # fmt: skip
    return TopK(*(column.reshape(*batch, *column.shape[1:]) for column in out))


if triton is not None:  # no_type_check keeps run-time checkers of annotations out of the kernels' source

    @triton.jit
    @no_type_check
    def order_of(x):
        """Map float32 to int32 so that they compare alike, with 0.0 and -0.0 equal."""
        bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
        return bits ^ ((bits >> 31) & 0x7FFFFFFF)

    @triton.jit
    @no_type_check
    def value_of(order):
        """Return the float32 that `order_of` maps to this order."""
        return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)

    @triton.jit
    @no_type_check
    def _largest(key, K: tl.constexpr, WIDTH: tl.constexpr):
        """Return the K largest of distinct keys, largest first, filled up to WIDTH."""
        slot = tl.arange(0, WIDTH)
        keys = tl.full([WIDTH], -0x7FFFFFFFFFFFFFFF, tl.int64)
        for i in range(K):
            largest = tl.max(key, 0)
            keys = tl.where(slot == i, largest, keys)
            key = tl.where(key == largest, -0x7FFFFFFFFFFFFFFF, key)
        return keys

    @triton.jit
    @no_type_check
    def _threshold(order, M):
        """Return the largest t such that at least M of these are >= t; M is at most their number."""
        low = tl.min(order, 0).to(tl.int64)
        high = tl.max(order, 0).to(tl.int64) + 1
        while high - low > 1:  # at least M are >= low, fewer are >= high
            middle = (low + high) >> 1
            count = tl.sum((order >= middle.to(tl.int32)).to(tl.int32), 0)
            low = tl.where(count >= M, middle, low)
            high = tl.where(count > M, high, tl.where(count == M, middle + 1, middle))
        return low.to(tl.int32)

    @triton.jit
    @no_type_check
    def _ordered(x, inside, UNUSED: tl.constexpr):
        """Return orders of logits without the bits that their type never uses; those outside of the row come last."""
        return tl.where(inside, order_of(x) >> UNUSED, -0x7FFFFFFF)

    # fmt: off
    @triton.jit
    @no_type_check
    def _reduce(
        logits, best, values, sums, stride, vocabulary,
        CHUNK: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, KEPT: tl.constexpr,
        WHOLE: tl.constexpr, UNUSED: tl.constexpr,
    ):
        """Reduce one chunk of one row to its largest logit, the sums relative to it, its K best (order, then id, in one
        integer), and its M largest logits."""
        row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
        index = row * tl.num_programs(1) + part
        token = part * CHUNK + tl.arange(0, CHUNK)
        inside = token < vocabulary
        x = tl.load(logits + row * stride + token, mask=inside, other=float("-inf")).to(tl.float32)
        if tl.program_id(2) == 0:
            peak = tl.max(x, 0)
            shift = x - tl.where(peak == float("-inf"), 0.0, peak)
            weight = tl.exp(shift)
            tl.store(sums + index * 3, peak)
            tl.store(sums + index * 3 + 1, tl.sum(weight, 0))
            if WHOLE:
                tl.store(sums + index * 3 + 2, tl.sum(tl.where(weight == 0, 0.0, weight * shift), 0))
            if K > 0:
                key = tl.where(inside, (order_of(x).to(tl.int64) << 32) | (0x7FFFFFFF - token), -0x7FFFFFFFFFFFFFFF)
                tl.store(best + index * WIDTH + tl.arange(0, WIDTH), _largest(key, K, WIDTH))
        elif M > 0:
            order = _ordered(x, inside, UNUSED)
            last = _threshold(order, M)
            above = order > last
            values += index * KEPT
            tl.store(values + tl.cumsum(above.to(tl.int32), 0) - 1, x, mask=above)
            slot = tl.arange(0, KEPT)
            equal = tl.max(tl.where(order == last, x, float("-inf")), 0)
            rest = slot >= tl.sum(above.to(tl.int32), 0)
            tl.store(values + slot, tl.where(slot < M, equal, float("-inf")), mask=rest)

    @triton.jit
    @no_type_check
    def _merge(
        best, values, sums, token, log_prob, entropy, log_norm, stride, count, parts,
        PARTS: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, TILE: tl.constexpr,
        WHOLE: tl.constexpr, UNUSED: tl.constexpr,
    ):
        """Merge the results of a row's chunks."""
        row, part = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS)
        there, sums = part < parts, sums + (row * parts + part) * 3
        peaks, total = tl.load(sums, mask=there, other=float("-inf")), tl.load(sums + 1, mask=there, other=0.0)
        peak = tl.max(peaks, 0)
        shift = tl.where(peaks == float("-inf"), 0.0, peaks - peak)
        total *= tl.exp(shift)
        scale = tl.sum(total, 0)
        norm = tl.where(peak == float("-inf"), 0.0, peak) + tl.log(scale)
        if tl.program_id(1) == 0:
            tl.store(log_norm + row, norm)
            if WHOLE:
                weighted = tl.load(sums + 2, mask=there, other=0.0) * tl.exp(shift) + total * shift
                tl.store(entropy + row, tl.log(scale) - tl.sum(weighted, 0) / scale)
            elif M == 0:
                tl.store(entropy + row, float("nan"))
            if K > 0:
                index, rank = tl.arange(0, PARTS * WIDTH), tl.arange(0, WIDTH)
                inside = index < parts * WIDTH
                keys = tl.load(best + row * parts * WIDTH + index, mask=inside, other=-0x7FFFFFFFFFFFFFFF)
                key = _largest(keys, K, WIDTH)
                tl.store(token + row * K + rank, 0x7FFFFFFF - (key & 0xFFFFFFFF), mask=rank < K)
                tl.store(log_prob + row * K + rank, value_of((key >> 32).to(tl.int32)) - norm, mask=rank < K)
        elif M > 0:
            slot = tl.arange(0, TILE)
            x = tl.load(values + row * stride + slot, mask=slot < count, other=float("-inf")).to(tl.float32)
            order = _ordered(x, slot < count, UNUSED)
            last = _threshold(order, M)
            missing = M - tl.sum((order > last).to(tl.int32), 0)
            p, at = tl.exp(x - norm), tl.max(tl.where(order == last, x, float("-inf")), 0) - norm
            nats = tl.sum(tl.where((order > last) & (p != 0), p * (norm - x), 0.0), 0)
            nats -= tl.where((missing == 0) | (tl.exp(at) == 0), 0.0, missing * tl.exp(at) * at)
            tl.store(entropy + row, nats)
    # fmt: on
