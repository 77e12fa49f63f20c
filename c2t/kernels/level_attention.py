"""Attention of one level of a tree, while it is drafted, over the committed prefix and over the ancestors, which a bit
mask names: 32 slots to a word.

All query heads of one key-value head share its keys in one block of queries, so that nothing is repeated in memory.
Where there are too few blocks to fill the device, the prefix is split among several programs, whose parts are merged by
their log-sum-exp: a draft's bits may depend on that, a target's not (`c2t.kernels.tree_attention`). On a GPU these are
one or two Triton kernels, elsewhere SDPA with the dense mask.
"""

import math
from typing import NamedTuple, no_type_check

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.kernels.tree_attention import dense_attention, triton

if triton is not None:
    import triton.language as tl

    from c2t.kernels.tree_attention import _absorb, _keys

WORD = 32  # tree slots in a word of the bit mask


class LevelMask(NamedTuple):
    """Visibility for one level's n slots of each row's tree, after a prefix of lengths[r] keys.

    bits[r, i]: slots that slot i sees, slot j being bit j % 32 of word j // 32. sizes: slots from there on are padding,
    whose output is 0.
    """

    bits: Int[Tensor, "B n W"]
    lengths: Int[Tensor, " B"]
    sizes: Int[Tensor, " B"]

    def dense(self, keys: int, slots: int) -> Bool[Tensor, "B n t"]:
        """Return the same as a Boolean mask over `keys` slots, of which the tree has the last `slots`."""
        key = torch.arange(keys - slots, device=self.bits.device)
        slot = torch.arange(slots, device=self.bits.device)
        prefix = (key < self.lengths[:, None])[:, None].expand(-1, self.bits.shape[1], -1)
        return torch.cat([prefix, (self.bits[:, :, slot // WORD] >> (slot % WORD) & 1).bool()], 2)


def ancestor_bits(parent: Int[Tensor, "B n"]) -> Int[Tensor, "B n W"]:
    """Return `Tree.ancestors` as words of 32 bits, by pointer doubling: each slot sees itself, its ancestors and the
    root."""
    rows, size = parent.shape
    words = -(-size // WORD)
    slot = torch.arange(size, device=parent.device)
    itself = (slot[:, None] // WORD == torch.arange(words, device=parent.device)).int() << (slot[:, None] % WORD).int()
    bits, jump = itself.expand(rows, size, words), parent
    for _ in range(max(1, size - 1).bit_length()):
        further = bits.gather(1, jump.clamp(min=0)[..., None].expand(rows, size, words))
        bits = bits | torch.where(jump[..., None] >= 0, further, 0)
        jump = torch.where(jump >= 0, jump.gather(1, jump.clamp(min=0)), -1)
    return bits


def level_attention(
    query: Float[Tensor, "B H n D"],
    key: Float[Tensor, "B h t D"],
    value: Float[Tensor, "B h t D"],
    mask: LevelMask,
    slots: int,
) -> Float[Tensor, "B H n D"]:
    """Return softmax(QK / sqrt(D))V over each row's prefix, key slots [0, lengths[r]), and tree, the last `slots` key
    slots.

    H is a multiple of h: query head i reads key-value head i // (H / h). The output is stored as (B, n, H, D).
    """
    scale = query.shape[3] ** -0.5
    if triton is not None and query.is_cuda and query.dtype != torch.float64:
        return triton_attention(query, key, value, mask, scale, slots)
    return torch_attention(query, key, value, mask, scale, slots)


def torch_attention(query: Tensor, key: Tensor, value: Tensor, mask: LevelMask, scale: float, slots: int) -> Tensor:
    """Do `level_attention` by SDPA with the dense mask."""
    return dense_attention(query, key, value, mask.dense(key.shape[2], slots), mask.sizes, scale)


def triton_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: LevelMask,
    scale: float,
    slots: int,
    splits: int | None = None,
) -> Tensor:
    """Do `level_attention` in Triton. splits: programs that share a prefix, a power of two (default: enough to fill the
    device)."""
    (rows, heads, n, dim), words = query.shape, mask.bits.shape[2]
    blocks = blocking(heads // key.shape[1], dim, query.element_size())
    grid = (triton.cdiv(n, blocks["NODES"]), rows * key.shape[1])
    start = key.shape[2] - slots
    splits = splits or fill(grid[0] * grid[1], start, query.device)
    out = query.new_empty(rows, n, heads, dim)
    part, weight = out, out  # one split writes the result itself
    if splits > 1:
        part = torch.empty(splits, *out.shape, dtype=torch.float32, device=out.device)
        weight = torch.empty(splits, *out.shape[:3], dtype=torch.float32, device=out.device)
    strides = (stride for tensor in (query, key, value) for stride in tensor.stride()[:3])
    _attend[(*grid, splits)](
        *(query, key, value, part, weight, *mask, *strides),
        *(n, slots, key.shape[1], start, words, rows * n, scale / math.log(2)),
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
    # fmt: off
    @triton.jit(do_not_specialize=["n", "slots", "start", "words", "tokens"])
    @no_type_check
    def _attend(
        query, key, value, part, weight, bits, lengths, sizes, q_row, q_head, q_node, k_row, k_head, k_slot, v_row,
        v_head, v_slot, n, slots, kv_heads, start, words, tokens, scale, SPLITS: tl.constexpr, GROUP: tl.constexpr,
        PADDED: tl.constexpr, NODES: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr, PRECISION: tl.constexpr,
    ):
        """Attend from one block of NODES slots x GROUP query heads of one key-value head to one share of the prefix."""
        first, split = tl.program_id(0) * NODES, tl.program_id(2)
        row, head = tl.program_id(1) // kv_heads, tl.program_id(1) % kv_heads
        m, dim, bit = tl.arange(0, NODES * PADDED), tl.arange(0, DIM), tl.arange(0, 32)
        node, q_index = first + m // PADDED, head * GROUP + m % PADDED
        size = tl.load(sizes + row)
        real = (node < size) & (m % PADDED < GROUP)
        query += row.to(tl.int64) * q_row
        key += row.to(tl.int64) * k_row + head.to(tl.int64) * k_head
        value += row.to(tl.int64) * v_row + head.to(tl.int64) * v_head
        q = tl.load(query + (q_index * q_head + node * q_node)[:, None] + dim, mask=real[:, None], other=0.0)
        peak = tl.full([NODES * PADDED], float("-inf"), tl.float32)
        total = tl.zeros([NODES * PADDED, 16], tl.float32)
        acc = tl.zeros([NODES * PADDED, DIM], tl.float32)

        length = tl.where(first < size, tl.load(lengths + row), 0)  # a block of padding looks at nothing
        share = tl.cdiv(tl.cdiv(length, SPLITS), KEYS) * KEYS
        end = tl.minimum((split + 1) * share, length)
        for base in range(split * share, end, KEYS):
            slot = base + tl.arange(0, KEYS)
            keys, values = _keys(key, value, slot, slot < end, k_slot, v_slot, dim)
            seen = real[:, None] & (slot < end)
            peak, total, acc = _absorb(q, keys, values, seen, scale, peak, total, acc, PRECISION)

        for word in range(0, tl.where((split == SPLITS - 1) & (first < size), words, 0)):  # the last share has the tree
            slot = word * 32 + bit
            keys, values = _keys(key, value, start + slot, slot < slots, k_slot, v_slot, dim)
            seen = ((tl.load(bits + (row * n + node) * words + word, mask=real, other=0)[:, None] >> bit) & 1) != 0
            peak, total, acc = _absorb(q, keys, values, seen, scale, peak, total, acc, PRECISION)

        where = (split * tokens + row.to(tl.int64) * n + node) * kv_heads * GROUP + q_index
        stored = (node < n) & (m % PADDED < GROUP)
        weights = tl.maximum(tl.max(total, 1), 1e-30)
        acc /= weights[:, None]
        tl.store(part + where.to(tl.int64)[:, None] * DIM + dim, acc.to(part.dtype.element_ty), mask=stored[:, None])
        if SPLITS > 1:
            tl.store(weight + where, peak + tl.log2(weights), mask=stored)
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
