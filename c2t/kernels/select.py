"""One level of a ranked tree in one step: score the children that the frontier drafted, drop those below a threshold,
and append the best of them to trees whose columns exist already (C2T, Algorithm 1; `c2t.policies.growth`).

Nothing waits for the device and every shape is fixed, so a draft phase made of these steps can be a CUDA graph. On a
GPU a step is one Triton kernel with a program for each tree, elsewhere torch does the same.
"""

from functools import partial
from typing import NamedTuple, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from c2t.kernels.level_attention import WORD
from c2t.kernels.network import COLUMNS, Network
from c2t.kernels.rows import TopK, triton
from c2t.kernels.static_tree import StaticTree

if triton is not None:
    import triton.language as tl

    from c2t.kernels.rows import order_of, value_of


class SelectLimits(NamedTuple):
    """Limits of one level.

    threshold: least confidence, or without a network least joint probability. max_nodes: slots of a tree, root
    included. strict: a level's width is a cap too, so nodes beyond it are counted.
    """

    threshold: float
    max_nodes: int = 1024
    strict: bool = False


def select(
    tree: StaticTree, frontier: range, level: range, drafted: TopK, network: Network | None, limits: SelectLimits
) -> None:
    """Fill the slots `level` with the best children of the slots `frontier`; the slots that remain are dead.

    drafted: the frontier's children (B, F, K). Children are sorted by score, then joint probability, then creation
    order, as in `c2t.tree.best`; tokens without probability are no children. The score is the network's confidence, or
    without a network the log joint probability (EAGLE-2's choice of nodes to expand is threshold 0). A child's place
    among the F K candidates is (parent - frontier[0]) K + rank.
    """
    if triton is not None and tree.token.is_cuda:
        triton_select(tree, frontier, level, drafted, network, limits)
    else:
        torch_select(tree, frontier, level, drafted, network, limits)


class _Candidates(NamedTuple):
    token: Tensor
    parent: Tensor
    depth: Tensor
    rank: Tensor
    log_prob: Tensor
    log_joint: Tensor
    entropy: Tensor
    max_log_prob: Tensor


def torch_select(
    tree: StaticTree, frontier: range, level: range, drafted: TopK, network: Network | None, limits: SelectLimits
) -> None:
    """Do `select` in torch."""
    K, width, new = drafted.token.shape[2], len(level), slice(level.start, level.stop)
    arange = partial(torch.arange, device=tree.token.device)
    parent = arange(frontier.start, frontier.stop).repeat_interleave(K).expand(len(tree.token), -1)
    rank, log_prob = arange(K).repeat(len(frontier)).expand_as(parent), drafted.log_prob.flatten(1)
    depth, log_joint = tree.depth.gather(1, parent) + 1, tree.log_joint.gather(1, parent) + log_prob
    entropy, max_log_prob = (column.repeat_interleave(K, 1) for column in (drafted.entropy, drafted.log_prob[..., 0]))
    nodes = _Candidates(drafted.token.flatten(1), parent, depth, rank, log_prob, log_joint, entropy, max_log_prob)
    score = log_joint if network is None else _confidence(nodes, tree, network)
    sure = (log_joint.exp() if network is None else score) >= limits.threshold
    keep = sure & (log_joint > float("-inf")) & tree.alive.gather(1, parent) & (tree.sizes < limits.max_nodes)[:, None]
    survivors = keep.sum(1)
    wanted = survivors.clamp(max=width)
    count = torch.minimum(wanted, limits.max_nodes - tree.sizes)

    order = log_joint.sort(dim=1, descending=True, stable=True).indices
    masked = score.masked_fill(~keep, float("-inf")).gather(1, order)
    order = order.gather(1, masked.sort(dim=1, descending=True, stable=True).indices)
    # A survivor's score may be -inf too: survivors come before the others.
    order = order.gather(1, keep.gather(1, order).sort(dim=1, descending=True, stable=True).indices)[:, :width]
    order = torch.nn.functional.pad(order, (0, width - order.shape[1]))
    alive = arange(width) < count[:, None]
    for name, column in {**nodes._asdict(), "score": score}.items():
        dead = float("-inf") if name in ("log_prob", "log_joint", "max_log_prob", "score") else 0
        getattr(tree, name)[:, new] = column.gather(1, order).masked_fill(~alive, dead)
    tree.alive[:, new] = alive
    words = tree.bits.shape[2]
    line = tree.bits.gather(1, parent.gather(1, order)[..., None].expand(-1, -1, words))
    slot = arange(level.start, level.stop)[:, None]
    itself = (slot // WORD == arange(words)).int() << (slot % WORD).int()
    tree.bits[:, new] = torch.where(alive[..., None], line, 0) | itself
    tree.capped.add_((survivors if limits.strict else wanted) - count)
    tree.sizes.add_(count)


def _confidence(nodes: _Candidates, tree: StaticTree, network: Network) -> Float[Tensor, "B n"]:
    x = torch.stack([feature(nodes).float() for feature in network.features], -1)
    # No matrix product: it may tell equal candidates apart in the last bit, and so reorder them.
    hidden = torch.relu((x[..., None, :] * network.hidden_weight).sum(-1) + network.hidden_bias)
    confidence = torch.sigmoid((hidden * network.output_weight).sum(-1) + network.output_bias)
    return confidence * tree.score.gather(1, nodes.parent) if network.conditional else confidence


def triton_select(
    tree: StaticTree, frontier: range, level: range, drafted: TopK, network: Network | None, limits: SelectLimits
) -> None:
    """Do `select` in one kernel."""
    rows, F, K = drafted.token.shape
    if not rows:
        return
    size, width = triton.next_power_of_2(F * K), triton.next_power_of_2(len(level))
    weights = (tree.log_joint,) * 4 if network is None else network.weights
    _select[(rows,)](
        *tree, *(column.contiguous() for column in drafted[:3]), *weights,
        frontier.start, level.start, limits.threshold, limits.max_nodes,
        FEATURES=() if network is None else tuple(2 * COLUMNS.index(f.name) + f.exp for f in network.features),
        HIDDEN=0 if network is None else len(network.hidden_bias), F=F, K=K, SIZE=size, LEVEL=len(level),
        WIDTH=width, SLOTS=tree.token.shape[1], WORDS=tree.bits.shape[2],
        PADDED=triton.next_power_of_2(tree.bits.shape[2]), STRICT=limits.strict,
        CONDITIONAL=network is not None and network.conditional, num_warps=min(max(size // 256, 1), 8),
    )  # fmt: skip


if triton is not None:  # no_type_check keeps run-time checkers of annotations out of the kernels' source
    # fmt: off
    @triton.jit
    @no_type_check
    def _confidence_of(
        log_joint, entropy, depth, log_prob, max_log_prob, rank, hidden_weight, hidden_bias, output_weight, output_bias,
        FEATURES: tl.constexpr, HIDDEN: tl.constexpr,
    ):
        """Return the network's confidence; FEATURES: twice the column's number, and 1 more for its exponential."""
        columns, inputs = (log_joint, entropy, depth.to(tl.float32), log_prob, max_log_prob, rank.to(tl.float32)), ()
        for f in tl.static_range(len(FEATURES)):
            x = columns[FEATURES[f] // 2]
            if FEATURES[f] % 2 == 1:
                x = tl.exp(x)
            inputs = inputs + (x,)  # noqa: RUF005
        logit = tl.zeros_like(log_joint) + tl.load(output_bias)
        for h in range(HIDDEN):
            unit = tl.zeros_like(log_joint) + tl.load(hidden_bias + h)
            for f in tl.static_range(len(FEATURES)):
                unit += inputs[f] * tl.load(hidden_weight + h * len(FEATURES) + f)
            # Unlike maximum, this lets NaN through, so that a candidate without a feature has no confidence.
            logit += tl.where(unit < 0, 0.0, unit) * tl.load(output_weight + h)
        return 1 / (1 + tl.exp(-logit))

    @triton.jit
    @no_type_check
    def _append(
        token, parent, depth, rank, log_prob, log_joint, entropy, max_log_prob, score, alive, bits,
        new_token, new_log_prob, new_entropy,
        chosen, value, count, drafted, base, rows, frontier, first,
        K: tl.constexpr, LEVEL: tl.constexpr, WIDTH: tl.constexpr, WORDS: tl.constexpr, PADDED: tl.constexpr,
    ):
        """Write the chosen candidates into the slots from `first` on."""
        slot, word = tl.arange(0, WIDTH), tl.arange(0, PADDED)
        real, inside, out = slot < count, slot < LEVEL, base + first + slot
        above, nothing = chosen // K, float("-inf")
        log = tl.load(new_log_prob + drafted + chosen, mask=real, other=nothing)
        path = tl.load(log_joint + base + frontier + above, mask=real, other=nothing) + log
        tl.store(log_joint + out, path, mask=inside)
        tl.store(log_prob + out, log, mask=inside)
        tl.store(score + out, tl.where(real, value_of((value >> 32).to(tl.int32)), nothing), mask=inside)
        tl.store(token + out, tl.load(new_token + drafted + chosen, mask=real, other=0), mask=inside)
        tl.store(parent + out, tl.where(real, frontier + above, 0), mask=inside)
        tl.store(depth + out, tl.load(depth + base + frontier + above, mask=real, other=-1) + 1, mask=inside)
        tl.store(rank + out, tl.where(real, chosen % K, 0), mask=inside)
        tl.store(entropy + out, tl.load(new_entropy + rows + above, mask=real, other=0.0), mask=inside)
        tl.store(max_log_prob + out, tl.load(new_log_prob + drafted + above * K, mask=real, other=nothing), mask=inside)
        tl.store(alive + out, real, mask=inside)
        line = bits + (base + frontier + above)[:, None] * WORDS + word
        line = tl.load(line, mask=real[:, None] & (word < WORDS), other=0)
        number = first + slot
        line |= tl.where((number // 32)[:, None] == word, (1 << (number % 32))[:, None], 0)
        tl.store(bits + out[:, None] * WORDS + word, line, mask=inside[:, None] & (word < WORDS))

    @triton.jit(do_not_specialize=["frontier", "first"])
    @no_type_check
    def _select(
        token, parent, depth, rank, log_prob, log_joint, entropy, max_log_prob, score, alive, bits, sizes, capped,
        new_token, new_log_prob, new_entropy, hidden_weight, hidden_bias, output_weight, output_bias,
        frontier, first, threshold, max_nodes,
        FEATURES: tl.constexpr, HIDDEN: tl.constexpr, F: tl.constexpr, K: tl.constexpr, SIZE: tl.constexpr,
        LEVEL: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr, WORDS: tl.constexpr, PADDED: tl.constexpr,
        STRICT: tl.constexpr, CONDITIONAL: tl.constexpr,
    ):
        """Select one level of one tree."""
        row = tl.program_id(0).to(tl.int64)
        drafted, base, index = row * F * K, row * SLOTS, tl.arange(0, SIZE)
        there, above, nodes = index < F * K, base + frontier + index // K, tl.load(sizes + row)
        path = tl.load(log_joint + above, mask=there, other=0.0)
        log_p = tl.load(new_log_prob + drafted + index, mask=there, other=0.0)
        path += log_p
        confidence, bound = path, tl.exp(path)
        if HIDDEN:
            h = tl.load(new_entropy + row * F + index // K, mask=there, other=0.0)
            level = tl.load(depth + above, mask=there, other=0) + 1
            first_of = tl.load(new_log_prob + drafted + index // K * K, mask=there, other=0.0)
            weights = hidden_weight, hidden_bias, output_weight, output_bias
            confidence = _confidence_of(path, h, level, log_p, first_of, index % K, *weights, FEATURES, HIDDEN)
            if CONDITIONAL:
                confidence *= tl.load(score + above, mask=there, other=0.0)
            bound = confidence
        keep = there & (tl.load(alive + above, mask=there, other=0) != 0) & (nodes < max_nodes) & (bound >= threshold)
        keep &= path > float("-inf")
        survivors = tl.sum(keep.to(tl.int32), 0)
        wanted = tl.minimum(survivors, LEVEL)
        count = tl.minimum(wanted, (max_nodes - nodes).to(tl.int32))
        tl.store(sizes + row, nodes + count)
        tl.store(capped + row, tl.load(capped + row) + (survivors if STRICT else wanted) - count)

        # Two orders in one integer; of equal ones the first is taken.
        key = (order_of(confidence).to(tl.int64) << 32) + order_of(path).to(tl.int64) + 0x80000000
        key = tl.where(keep, key, -0x7FFFFFFFFFFFFFFF)
        slot = tl.arange(0, WIDTH)
        chosen, value = tl.zeros([WIDTH], tl.int32), tl.zeros([WIDTH], tl.int64)
        i = 0
        while i < count:
            best, at = tl.max(key, 0, return_indices=True, return_indices_tie_break_left=True)
            chosen, value = tl.where(slot == i, at, chosen), tl.where(slot == i, best, value)
            key = tl.where(index == at, -0x7FFFFFFFFFFFFFFF, key)
            i += 1
        _append(
            token, parent, depth, rank, log_prob, log_joint, entropy, max_log_prob, score, alive, bits,
            new_token, new_log_prob, new_entropy,
            chosen, value, count, drafted, base, row * F, frontier, first, K, LEVEL, WIDTH, WORDS, PADDED,
        )
    # fmt: on
