"""Attention of a tree's tokens over the committed prefix and over their own ancestors (DySpec, appendix C), in which a
token's bits are those of plain decoding.

Every sum runs over absolute positions, upwards: blocks of KEYS of them, in parts of PART. The blocks that lie wholly in
the prefix are read for all tokens together. From there on each token goes on alone, over the prefix's last slots and
then its own ancestors, whichever holds a position; then it merges the parts. Plain decoding is a tree of one token: the
same blocks in the same order, wherever its prefix ends. No sum depends on a tile: rows of a product on tensor cores do
not depend on each other (arXiv 2511.10909), and the weights are summed by such a product, too.

On a GPU these are two Triton kernels, elsewhere SDPA with the dense mask.
"""

import math
from typing import NamedTuple, no_type_check

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.kernels.tree_mask import TreeMask

try:
    import triton
    import triton.language as tl
except ImportError:  # the torch twin needs none
    triton = None

KEYS = 32  # positions of a block
PART = 256  # positions of a part of the prefix, which one program reads


class Ranges(NamedTuple):
    """Rows of different sizes in a packed batch. Row r has sizes[r] of the queries, from first[r] on; of the keys its
    prefix from starts[r] on, and its tree from tails[r] on. longest: slots of the longest prefix, or more."""

    first: Int[Tensor, " B"]
    starts: Int[Tensor, " B"]
    tails: Int[Tensor, " B"]
    longest: int


def tree_attention(
    query: Float[Tensor, "B H n D"],
    key: Float[Tensor, "B h t D"],
    value: Float[Tensor, "B h t D"],
    mask: TreeMask,
    scale: float | None = None,
    window: int | None = None,
    ranges: Ranges | None = None,
) -> Float[Tensor, "B H n D"]:
    """Return softmax(scale QK)V over each row's prefix, key slots [0, lengths[r]), and tree, the last
    `mask.path.shape[2]` key slots.

    H is a multiple of h: query head i reads key-value head i // (H / h). scale: 1 / sqrt(D) by default. window: keys
    further back than this are not seen. ranges: queries and keys have one row, (1, H, S, D) and (1, h, t, D), in which
    the mask's rows lie where these say. The output is stored as (B, n, H, D).
    """
    scale = query.shape[3] ** -0.5 if scale is None else scale
    if triton is not None and query.is_cuda and query.dtype != torch.float64:
        return triton_attention(query, key, value, mask, scale, window, ranges)
    if ranges is not None:
        return torch_attention_of_ranges(query, key, value, mask, scale, window, ranges)
    return torch_attention(query, key, value, mask, scale, window)


def torch_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: TreeMask, scale: float, window: int | None = None
) -> Tensor:
    """Do `tree_attention` by SDPA with the dense mask."""
    return dense_attention(query, key, value, mask.dense(key.shape[2], window), mask.sizes, scale)


def torch_attention_of_ranges(
    query: Tensor, key: Tensor, value: Tensor, mask: TreeMask, scale: float, window: int | None, ranges: Ranges
) -> Tensor:
    """Do `torch_attention` row by row."""
    out = torch.empty(query.shape[0], *query.shape[2:0:-1], query.shape[3], dtype=query.dtype, device=query.device)
    for row, (first, start, tail) in enumerate(zip(*(column.tolist() for column in ranges[:3]), strict=True)):
        size = int(mask.sizes[row])
        queries, keys = slice(first, first + size), slice(start, tail + size)
        parts = query[:, :, queries], key[:, :, keys], value[:, :, keys]
        out[:, queries] = torch_attention(*parts, mask.row(row, size), scale, window).transpose(1, 2)
    return out.transpose(1, 2)


def dense_attention(
    query: Float[Tensor, "B H n D"],
    key: Float[Tensor, "B h t D"],
    value: Float[Tensor, "B h t D"],
    seen: Bool[Tensor, "B n t"],
    sizes: Int[Tensor, " B"],
    scale: float,
) -> Float[Tensor, "B H n D"]:
    """Attend by SDPA; the output of queries from sizes[r] on, which are padding, is 0. It is stored as (B, n, H, D)."""
    out = grouped_attention(query, key, value, seen, scale)
    padding = torch.arange(query.shape[2], device=query.device) >= sizes[:, None]
    return out.masked_fill(padding[:, None, :, None], 0).transpose(1, 2).contiguous().transpose(1, 2)


def grouped_attention(
    query: Float[Tensor, "B H n D"],
    key: Float[Tensor, "B h t D"],
    value: Float[Tensor, "B h t D"],
    mask: Bool[Tensor, "B n t"],
    scale: float | None = None,
) -> Float[Tensor, "B H n D"]:
    """Run SDPA with the query heads of a group side by side, so that no key is repeated."""
    group = query.shape[1] // key.shape[1]
    folded = query.reshape(query.shape[0], key.shape[1], group * query.shape[2], query.shape[3])
    mask = mask[:, None].repeat(1, 1, group, 1) if group > 1 else mask[:, None]
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(folded, key, value, attn_mask=mask, scale=scale).reshape(query.shape)


def triton_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: TreeMask,
    scale: float,
    window: int | None = None,
    ranges: Ranges | None = None,
    keys: int = KEYS,
    part: int = PART,
    tile: int | None = None,
) -> Tensor:
    """Do `tree_attention` in Triton. keys, part: bits depend on these two; tests make them small. tile: queries of a
    program that reads the prefix, on which no bit depends (default: as many as are fast)."""
    (rows, n), (_, heads, _, dim) = mask.positions.shape, query.shape
    group = heads // key.shape[1]
    start = key.shape[2] - mask.path.shape[2]
    parts = max(1, triton.cdiv(ranges.longest if ranges else start, part))
    out = query.new_empty(query.shape[0], query.shape[2], heads, dim)
    new = query.new_empty
    peaks, totals = (new(parts, *out.shape[:3], dtype=torch.float32) for _ in range(2))
    sums = new(parts, *out.shape, dtype=torch.float32)
    spans = ranges[:3] if ranges else (mask.lengths,) * 3  # not read
    strides = [stride for tensor in (query, key, value) for stride in tensor.stride()[:3]]
    tokens = out.shape[0] * out.shape[1]
    given = (mask.lengths, mask.sizes, mask.positions, *spans[:2], *strides)
    given += (n, key.shape[1], tokens, scale / math.log(2))
    options = {
        "WINDOW": window or 0,
        "RANGES": ranges is not None,
        "GROUP": group,
        "KEYS": keys,
        "PART": part,
        "DIM": dim,
        "PRECISION": "interpreter" if query.device.type == "cpu" else "ieee",
        "num_stages": 2,
        "enable_fp_fusion": False,  # both kernels round alike
    }
    sizes = blocking(group, dim * query.element_size(), tile)
    grid = (triton.cdiv(n, sizes["NODES"]), rows * key.shape[1])
    _prefix[(*grid, parts)](query, key, value, peaks, totals, sums, *given, **sizes, **options)
    _tail[(n, rows * key.shape[1])](
        *(query, key, value, peaks, totals, sums, mask.path, out),
        *(*given, spans[2], start, mask.path.shape[2]),
        ROWS=max(16, triton.next_power_of_2(group)),
        num_warps=2,
        **options,
    )
    return out.transpose(1, 2)


def blocking(group: int, row: int, tile: int | None = None) -> dict[str, int]:
    """Return the sizes of the blocks of queries that read the prefix: `NODES` slots x `PADDED` heads. row: bytes of a
    key; wide ones leave shared memory for fewer queries."""
    padded = triton.next_power_of_2(group)
    # Two warps keep products of up to 64 rows on the instruction (mma.sync) that the tail's 16 rows are for.
    return {
        "PADDED": padded,
        "NODES": max(1, (tile or (64 if row <= 256 else 32 if row <= 512 else 16)) // padded),
        "num_warps": 2,
    }


if triton is not None:  # no_type_check keeps run-time checkers of annotations out of the kernels' source

    @triton.jit
    @no_type_check
    def _dot(a, b, onto, PRECISION: tl.constexpr):
        """Add a product to an accumulator, as an operand of the product itself."""
        if PRECISION == "interpreter":  # it multiplies the bits of bfloat16 numbers instead of the numbers
            product = tl.dot(a.to(tl.float32), b.to(tl.float32), onto)
        else:
            product = tl.dot(a, b, onto, input_precision=PRECISION)
        return product

    @triton.jit
    @no_type_check
    def _absorb(q, keys, values, seen, scale, peak, total, acc, PRECISION: tl.constexpr):
        """Add a block of keys to a block of queries by online softmax, in powers of two."""
        score = tl.zeros([q.shape[0], keys.shape[0]], tl.float32)
        score = _dot(q, tl.trans(keys), score, PRECISION) * scale
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)  # a query that has seen nothing yet
        fade = tl.exp2(peak - shift)[:, None]
        weight = tl.exp2(score - shift[:, None]).to(values.dtype)
        ones = tl.full([keys.shape[0], 16], 1.0, tl.float32).to(values.dtype)  # a tile's sum depends on its layout
        return higher, _dot(weight, ones, total * fade, PRECISION), _dot(weight, values, acc * fade, PRECISION)

    @triton.jit
    @no_type_check
    def _keys(key, value, slot, there, k_slot, v_slot, dim):
        """Load keys and values of some slots, zeros where there are none."""
        keys = tl.load(key + slot[:, None] * k_slot + dim, mask=there[:, None], other=0.0)
        return keys, tl.load(value + slot[:, None] * v_slot + dim, mask=there[:, None], other=0.0)

    # fmt: off
    @triton.jit(do_not_specialize=["n", "tokens"])
    @no_type_check
    def _prefix(
        query, key, value, peaks, totals, sums, lengths, sizes, positions, first_query, starts,
        q_row, q_head, q_node, k_row, k_head, k_slot, v_row, v_head, v_slot, n, kv_heads, tokens, scale,
        PADDED: tl.constexpr, NODES: tl.constexpr, WINDOW: tl.constexpr, RANGES: tl.constexpr, GROUP: tl.constexpr,
        KEYS: tl.constexpr, PART: tl.constexpr, DIM: tl.constexpr, PRECISION: tl.constexpr,
    ):
        """Attend from NODES slots x GROUP query heads of one key-value head to the whole blocks of one part of the
        prefix; write the softmax's state: peak, sum of weights and sum of weighted values."""
        first, part = tl.program_id(0) * NODES, tl.program_id(2)
        row, head = tl.program_id(1) // kv_heads, tl.program_id(1) % kv_heads
        m, dim = tl.arange(0, NODES * PADDED), tl.arange(0, DIM)
        node, q_index = first + m // PADDED, head * GROUP + m % PADDED
        size = tl.load(sizes + row)
        real = (node < size) & (m % PADDED < GROUP)
        position = tl.load(positions + row * n + node, mask=real, other=0)
        key += head.to(tl.int64) * k_head
        value += head.to(tl.int64) * v_head
        if RANGES:
            out_first = tl.load(first_query + row)
            query += out_first * q_node
            key += tl.load(starts + row) * k_slot
            value += tl.load(starts + row) * v_slot
        else:
            out_first = row.to(tl.int64) * n
            query += row.to(tl.int64) * q_row
            key += row.to(tl.int64) * k_row
            value += row.to(tl.int64) * v_row
        length = tl.where(first < size, tl.load(lengths + row), 0)  # a block of padding looks at nothing
        begin, end = part * PART, tl.minimum((part + 1) * PART, length // KEYS * KEYS)
        if WINDOW:  # the root looks back furthest
            begin = tl.maximum(begin, tl.maximum(length - WINDOW + 1, 0) // KEYS * KEYS)
        stored = real & (begin < end)
        q = tl.load(query + (q_index * q_head + node * q_node)[:, None] + dim, mask=real[:, None], other=0.0)
        peak = tl.full([NODES * PADDED], float("-inf"), tl.float32)
        total = tl.zeros([NODES * PADDED, 16], tl.float32)
        acc = tl.zeros([NODES * PADDED, DIM], tl.float32)
        for base in range(begin, end, KEYS):
            slot = base + tl.arange(0, KEYS)
            keys, values = _keys(key, value, slot, slot < end, k_slot, v_slot, dim)
            seen = real[:, None] & (slot < end) & ((position[:, None] - slot < WINDOW) if WINDOW else True)
            peak, total, acc = _absorb(q, keys, values, seen, scale, peak, total, acc, PRECISION)
        where = ((part * tokens + out_first + node) * kv_heads * GROUP + q_index).to(tl.int64)
        tl.store(peaks + where, peak, mask=stored)
        tl.store(totals + where, tl.max(total, 1), mask=stored)
        tl.store(sums + where[:, None] * DIM + dim, acc, mask=stored[:, None])

    @triton.jit(do_not_specialize=["n", "tokens", "start", "steps"])
    @no_type_check
    def _tail(
        query, key, value, peaks, totals, sums, path, out, lengths, sizes, positions, first_query, starts,
        q_row, q_head, q_node, k_row, k_head, k_slot, v_row, v_head, v_slot, n, kv_heads, tokens, scale,
        tails, start, steps,
        ROWS: tl.constexpr, WINDOW: tl.constexpr, RANGES: tl.constexpr, GROUP: tl.constexpr, KEYS: tl.constexpr,
        PART: tl.constexpr, DIM: tl.constexpr, PRECISION: tl.constexpr,
    ):
        """Finish one slot x GROUP query heads: its remaining positions, then the parts in ascending order."""
        node, row, head = tl.program_id(0), tl.program_id(1) // kv_heads, tl.program_id(1) % kv_heads
        m, dim = tl.arange(0, ROWS), tl.arange(0, DIM)
        q_index, size, length = head * GROUP + m, tl.load(sizes + row), tl.load(lengths + row)
        key += head.to(tl.int64) * k_head
        value += head.to(tl.int64) * v_head
        if RANGES:
            out_first, out_end = tl.load(first_query + row), size
            query += out_first * q_node
            here = tl.load(starts + row)
            key += here * k_slot
            value += here * v_slot
            start = (tl.load(tails + row) - here).to(tl.int32)
        else:
            out_first, out_end = row.to(tl.int64) * n, n
            query += row.to(tl.int64) * q_row
            key += row.to(tl.int64) * k_row
            value += row.to(tl.int64) * v_row
        mine = (m < GROUP) & (node < size)
        q = tl.load(query + (q_index * q_head + node * q_node)[:, None] + dim, mask=mine[:, None], other=0.0)
        position = tl.load(positions + row * n + node, mask=node < size, other=-1)
        whole = length // KEYS * KEYS  # from here on positions are this slot's alone
        ancestors = path + (row * n + node).to(tl.int64) * steps

        best = tl.full([ROWS], float("-inf"), tl.float32)
        weights, acc = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, DIM], tl.float32)
        seen_from = tl.maximum(position - WINDOW + 1, 0) if WINDOW else 0
        looked_back = tl.maximum(length - WINDOW + 1, 0) // KEYS * KEYS if WINDOW else 0  # where the prefix was begun
        for part in range(seen_from // PART, tl.cdiv(position + 1, PART)):
            where = ((part * tokens + out_first + node) * kv_heads * GROUP + q_index).to(tl.int64)
            begun = mine & (tl.maximum(part * PART, looked_back) < tl.minimum((part + 1) * PART, whole))
            peak = tl.load(peaks + where, mask=begun, other=float("-inf"))
            total = tl.zeros([ROWS, 16], tl.float32) + tl.load(totals + where, mask=begun, other=0.0)[:, None]
            added = tl.load(sums + where[:, None] * DIM + dim, mask=begun[:, None], other=0.0)
            end = tl.minimum((part + 1) * PART, position + 1)
            for base in range(tl.maximum(part * PART, whole), end, KEYS):
                absolute = base + tl.arange(0, KEYS)
                there = absolute < end
                slot = tl.load(ancestors + absolute - length, mask=there & (absolute >= length), other=0)
                slot = tl.where(absolute < length, absolute, start + slot)
                keys, values = _keys(key, value, slot, there, k_slot, v_slot, dim)
                seen = mine[:, None] & there & ((position - absolute < WINDOW) if WINDOW else True)
                peak, total, added = _absorb(q, keys, values, seen, scale, peak, total, added, PRECISION)
            higher = tl.maximum(best, peak)
            shift = tl.where(higher == float("-inf"), 0.0, higher)
            old, new = tl.exp2(best - shift), tl.exp2(peak - shift)
            best, weights = higher, weights * old + tl.max(total, 1) * new
            acc = acc * old[:, None] + added * new[:, None]
        result = acc / tl.maximum(weights, 1e-30)[:, None]
        stored = (m < GROUP) & (node < out_end)
        where = ((out_first + node) * kv_heads * GROUP + q_index).to(tl.int64)
        tl.store(out + where[:, None] * DIM + dim, result.to(out.dtype.element_ty), mask=stored[:, None])
    # fmt: on
