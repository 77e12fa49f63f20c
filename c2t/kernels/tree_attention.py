"""Attention of a tree's tokens over the committed prefix and over their own ancestors (DySpec, appendix C).

Blocks of the mask without a bit are skipped. All query heads of one key-value head share its keys in one block of
queries, so that nothing is repeated in memory. Where there are too few blocks to fill the device, the prefix is split
among several programs, whose parts are merged by their log-sum-exp. On a GPU this is one or two Triton kernels,
elsewhere SDPA with the dense mask.
"""

import math
from typing import NamedTuple, no_type_check

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.kernels.tree_mask import WORD, TreeMask

try:
    import triton
    import triton.language as tl
except ImportError:  # the torch twin needs none
    triton = None


class Ranges(NamedTuple):
    """Rows of different sizes in a packed batch. Row r has sizes[r] of the queries, from first[r] on; of the keys its
    prefix from starts[r] on, and its tree from tails[r] on."""

    first: Int[Tensor, " B"]
    starts: Int[Tensor, " B"]
    tails: Int[Tensor, " B"]


def tree_attention(
    query: Float[Tensor, "B H n D"],
    key: Float[Tensor, "B h t D"],
    value: Float[Tensor, "B h t D"],
    mask: TreeMask,
    scale: float | None = None,
    window: int | None = None,
    slots: int | None = None,
    ranges: Ranges | None = None,
) -> Float[Tensor, "B H n D"]:
    """Return softmax(scale QK)V over each row's prefix, key slots [0, lengths[r]), and tree, the last `slots` key
    slots.

    H is a multiple of h: query head i reads key-value head i // (H / h). scale: 1 / sqrt(D) by default. window: keys
    further back than this are not seen. slots: key slots of the tree, n unless the queries are only a part of it (then
    without a window, because positions are those of the queries). ranges: queries and keys have one row, (1, H, S, D)
    and (1, h, t, D), in which the mask's rows lie where these say. The output is stored as (B, n, H, D).
    """
    assert window is None or slots is None, "a window needs the positions of all slots"
    scale = query.shape[3] ** -0.5 if scale is None else scale
    if triton is not None and query.is_cuda and query.dtype != torch.float64:
        return triton_attention(query, key, value, mask, scale, window, slots, ranges)
    if ranges is not None:
        return torch_attention_of_ranges(query, key, value, mask, scale, window, ranges)
    return torch_attention(query, key, value, mask, scale, window, slots)


def torch_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: TreeMask,
    scale: float,
    window: int | None = None,
    slots: int | None = None,
) -> Tensor:
    """Do `tree_attention` by SDPA with the dense mask; the output of padding is 0."""
    out = grouped_attention(query, key, value, mask.dense(key.shape[2], window, slots), scale)
    padding = torch.arange(query.shape[2], device=query.device) >= mask.sizes[:, None]
    return out.masked_fill(padding[:, None, :, None], 0).transpose(1, 2).contiguous().transpose(1, 2)


def torch_attention_of_ranges(
    query: Tensor, key: Tensor, value: Tensor, mask: TreeMask, scale: float, window: int | None, ranges: Ranges
) -> Tensor:
    """Do `torch_attention` row by row."""
    out = torch.empty(query.shape[0], *query.shape[2:0:-1], query.shape[3], dtype=query.dtype, device=query.device)
    for row, (first, start, tail) in enumerate(zip(*(column.tolist() for column in ranges), strict=True)):
        size = int(mask.sizes[row])
        row_mask = TreeMask(*(column[row : row + 1] for column in mask))
        row_mask = row_mask._replace(bits=row_mask.bits[:, :size], positions=row_mask.positions[:, :size])
        queries, keys = slice(first, first + size), slice(start, tail + size)
        attended = torch_attention(query[:, :, queries], key[:, :, keys], value[:, :, keys], row_mask, scale, window)
        out[:, queries] = attended.transpose(1, 2)
    return out.transpose(1, 2)


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
    slots: int | None = None,
    ranges: Ranges | None = None,
    splits: int | None = None,
) -> Tensor:
    """Do `tree_attention` in Triton. splits: programs that share a prefix, a power of two (default: enough to fill the
    device)."""
    (rows, n), (_, heads, _, dim) = mask.positions.shape, query.shape
    blocks = blocking(heads // key.shape[1], dim, query.element_size())
    grid = (triton.cdiv(n, blocks["NODES"]), rows * key.shape[1])
    slots = slots or n
    start = key.shape[2] - slots
    splits = splits or fill(grid[0] * grid[1], start // (rows if ranges else 1), query.device)
    out = query.new_empty(query.shape[0], query.shape[2], heads, dim)
    part, weight = out, out  # one split writes the result itself
    if splits > 1:
        part = torch.empty(splits, *out.shape, dtype=torch.float32, device=out.device)
        weight = torch.empty(splits, *out.shape[:3], dtype=torch.float32, device=out.device)
    spans = ranges or Ranges(mask.lengths, mask.lengths, mask.lengths)  # not read
    strides = (stride for tensor in (query, key, value) for stride in tensor.stride()[:3])
    _attend[(*grid, splits)](
        *(query, key, value, part, weight, *mask, *spans, *strides),
        *(n, slots, key.shape[1], start, mask.bits.shape[2], out.shape[0] * out.shape[1], scale / math.log(2)),
        WINDOW=window or 0,
        RANGES=ranges is not None,
        SPLITS=splits,
        PRECISION="interpreter" if query.device.type == "cpu" else "ieee",
        **blocks,
    )
    if splits > 1:
        queries = weight[0].numel()
        _merge[(triton.cdiv(queries, 16),)](part, weight, out, queries, SPLITS=splits, DIM=dim, TILE=16)
    return out.transpose(1, 2)


def blocking(group: int, dim: int, itemsize: int) -> dict[str, int]:
    """Return the sizes of the kernel's blocks. A block of queries is `NODES` slots x `PADDED` heads; wide rows leave
    shared memory for fewer of them, and for fewer keys."""
    padded, wide = triton.next_power_of_2(group), dim * itemsize
    nodes = max(1, min(WORD, (128 if wide <= 256 else 64 if wide <= 512 else 32) // padded))
    sizes = {"GROUP": group, "PADDED": padded, "NODES": nodes, "KEYS": 64 if wide <= 256 else 32, "DIM": dim}
    return {**sizes, "num_warps": 8 if nodes * padded * dim >= 128 * 128 else 4, "num_stages": 2}


def fill(programs: int, prefix: int, device: torch.device) -> int:
    """Return the number of programs to split a prefix among: a power of two that fills the device, with at least 256
    keys for each."""
    units = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    wanted = min(-(-units // programs), max(1, prefix // 256), 64)
    return 1 << (wanted - 1).bit_length()


if triton is not None:  # no_type_check keeps run-time checkers of annotations out of the kernels' source

    @triton.jit
    @no_type_check
    def _dot(a, b, PRECISION: tl.constexpr):
        if PRECISION == "interpreter":  # it multiplies the bits of bfloat16 numbers instead of the numbers
            product = tl.dot(a.to(tl.float32), b.to(tl.float32))
        else:
            product = tl.dot(a, b, input_precision=PRECISION)
        return product

    @triton.jit
    @no_type_check
    def _absorb(q, keys, values, seen, scale, peak, total, acc, PRECISION: tl.constexpr):
        """Add a block of keys to a block of queries by online softmax, in powers of two."""
        score = _dot(q, tl.trans(keys), PRECISION) * scale
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)  # a query that has seen nothing yet
        weight, fade = tl.exp2(score - shift[:, None]), tl.exp2(peak - shift)
        acc = acc * fade[:, None] + _dot(weight.to(values.dtype), values, PRECISION)
        return higher, total * fade + tl.sum(weight, 1), acc

    @triton.jit
    @no_type_check
    def _keys(key, value, slot, there, k_slot, v_slot, dim):
        """Load keys and values of some slots, zeros where there are none."""
        keys = tl.load(key + slot[:, None] * k_slot + dim, mask=there[:, None], other=0.0)
        return keys, tl.load(value + slot[:, None] * v_slot + dim, mask=there[:, None], other=0.0)

    # fmt: off
    @triton.jit(do_not_specialize=["n", "slots", "start", "words", "tokens"])
    @no_type_check
    def _attend(
        query, key, value, part, weight, bits, block, count, lengths, sizes, positions, first_query, starts, tails,
        q_row, q_head, q_node, k_row, k_head, k_slot, v_row, v_head, v_slot, n, slots, kv_heads, start, words,
        tokens, scale, WINDOW: tl.constexpr, RANGES: tl.constexpr, SPLITS: tl.constexpr, GROUP: tl.constexpr,
        PADDED: tl.constexpr, NODES: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr, PRECISION: tl.constexpr,
    ):
        """Attend from one block of NODES tree slots x GROUP query heads of one key-value head to one share of the
        prefix."""
        first, split = tl.program_id(0) * NODES, tl.program_id(2)
        row, head = tl.program_id(1) // kv_heads, tl.program_id(1) % kv_heads
        m, dim, bit = tl.arange(0, NODES * PADDED), tl.arange(0, DIM), tl.arange(0, 32)
        node, q_index = first + m // PADDED, head * GROUP + m % PADDED
        size = tl.load(sizes + row)
        real = (node < size) & (m % PADDED < GROUP)
        position = tl.load(positions + row * n + node, mask=real, other=0)
        key += head.to(tl.int64) * k_head
        value += head.to(tl.int64) * v_head
        if RANGES:
            out_first, out_end = tl.load(first_query + row), size
            query += out_first * q_node
            here = tl.load(starts + row)
            key += here * k_slot
            value += here * v_slot
            start, slots = (tl.load(tails + row) - here).to(tl.int32), size  # the next slots are another row's
        else:
            out_first, out_end = row.to(tl.int64) * n, n
            query += row.to(tl.int64) * q_row
            key += row.to(tl.int64) * k_row
            value += row.to(tl.int64) * v_row
        q = tl.load(query + (q_index * q_head + node * q_node)[:, None] + dim, mask=real[:, None], other=0.0)
        peak = tl.full([NODES * PADDED], float("-inf"), tl.float32)
        total = tl.zeros([NODES * PADDED], tl.float32)
        acc = tl.zeros([NODES * PADDED, DIM], tl.float32)

        length = tl.where(first < size, tl.load(lengths + row), 0)  # a block of padding looks at nothing
        start_of_window = tl.maximum(length - WINDOW + 1, 0) if WINDOW else 0  # the root looks back furthest
        share = tl.cdiv(tl.cdiv(length - start_of_window, SPLITS), KEYS) * KEYS
        begin = start_of_window + split * share
        end = tl.minimum(begin + share, length)
        for base in range(begin, end, KEYS):
            slot = base + tl.arange(0, KEYS)
            keys, values = _keys(key, value, slot, slot < end, k_slot, v_slot, dim)
            seen = real[:, None] & (slot < end) & ((position[:, None] - slot < WINDOW) if WINDOW else True)
            peak, total, acc = _absorb(q, keys, values, seen, scale, peak, total, acc, PRECISION)

        blocks = row * words + first // 32
        for i in range(0, tl.where(split == SPLITS - 1, tl.load(count + blocks), 0)):  # the last share has the tree
            word = tl.load(block + blocks * words + i)
            slot = word * 32 + bit
            keys, values = _keys(key, value, start + slot, slot < slots, k_slot, v_slot, dim)
            seen = ((tl.load(bits + (row * n + node) * words + word, mask=real, other=0)[:, None] >> bit) & 1) != 0
            if WINDOW:
                seen &= position[:, None] - tl.load(positions + row * n + slot, mask=slot < n, other=0) < WINDOW
            peak, total, acc = _absorb(q, keys, values, seen, scale, peak, total, acc, PRECISION)

        where = (split * tokens + out_first + node) * kv_heads * GROUP + q_index
        stored = (node < out_end) & (m % PADDED < GROUP)
        acc /= tl.maximum(total, 1e-30)[:, None]
        tl.store(part + where.to(tl.int64)[:, None] * DIM + dim, acc.to(part.dtype.element_ty), mask=stored[:, None])
        if SPLITS > 1:
            tl.store(weight + where, peak + tl.log2(tl.maximum(total, 1e-30)), mask=stored)
    # fmt: on

    @triton.jit
    @no_type_check
    def _merge(part, weight, out, queries, SPLITS: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr):
        """Merge the splits' parts of TILE queries, weighted by the sums of their softmaxes."""
        query, dim = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, DIM)
        there = query < queries
        shares = tl.load(weight + tl.arange(0, SPLITS)[:, None] * queries + query, mask=there, other=0.0)
        peak = tl.max(shares, 0)
        peak = tl.where(peak == float("-inf"), 0.0, peak)  # padding
        total = tl.maximum(tl.sum(tl.exp2(shares - peak), 0), 1e-30)
        merged = tl.zeros([TILE, DIM], tl.float32)
        for split in range(SPLITS):
            index = (split * queries + query).to(tl.int64)
            share = tl.exp2(tl.load(weight + index, mask=there, other=0.0) - peak) / total
            merged += share[:, None] * tl.load(part + index[:, None] * DIM + dim, mask=there[:, None], other=0.0)
        where = out + query.to(tl.int64)[:, None] * DIM + dim
        tl.store(where, merged.to(out.dtype.element_ty), mask=there[:, None])
