"""Every kernel against its torch twin on fresh random inputs, before anything is timed."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from c2t.kernels.compact import torch_compact, triton_compact
from c2t.kernels.features import FEATURES
from c2t.kernels.layer_buffers import LayerBuffers
from c2t.kernels.network import Network
from c2t.kernels.rows import TopK, triton, triton_rank
from c2t.kernels.select import SelectLimits, torch_select, triton_select
from c2t.kernels.static_tree import StaticTree
from c2t.kernels.torch_rows import torch_entropy, torch_log_norm, torch_top
from c2t.kernels.tree_attention import torch_attention, triton_attention
from c2t.kernels.tree_mask import TreeMask, torch_mask, triton_mask
from c2t.kernels.walk import triton_walk
from c2t.tree import Tree
from c2t.verify import target_only
from pipelines.gpu.models import random_trees

TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}  # absolute and relative


def check(device: torch.device, dtype: torch.dtype, vocabulary: int, heads: int, dim: int) -> Iterator[tuple[str, str]]:
    """Yield (kernel, largest difference) for every kernel; AssertionError where one differs from its twin."""
    if triton is None:
        yield "all", "triton is not installed: nothing to check"
        return
    for name, differences in {
        "rank": rank_differences(device, dtype, vocabulary),
        "select": select_differences(device),
        "tree_attention": attention_differences(device, dtype, heads, dim),
        "compact": compact_differences(device, dtype, heads, dim),
        "tree_mask": mask_differences(device),
        "walk": walk_differences(device, dtype, vocabulary),
    }.items():
        largest = max(differences)
        assert largest == largest, f"{name}: the kernel gave NaN where its twin did not"
        yield name, f"largest difference {largest:.1e}"


def close(actual: Tensor, expected: Tensor, tolerance: float) -> float:
    """Return the largest absolute difference; AssertionError beyond the tolerance."""
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
    return float((actual.double() - expected.double()).nan_to_num().abs().max()) if actual.numel() else 0.0


def rank_differences(device: torch.device, dtype: torch.dtype, vocabulary: int) -> Iterator[float]:
    """Yield the differences of `rank`'s results."""
    logits = 4 * torch.randn(3, vocabulary, device=device, dtype=dtype)
    wide = logits.float()
    norm = torch_log_norm(wide)
    for k, m in ((15, 1000), (10, 0), (7, None)):
        actual = triton_rank(logits, k, m)
        expected = TopK(*torch_top(wide, norm, k), torch_entropy(wide, norm, m), norm)
        assert actual.token.equal(expected.token), "rank: other tokens than the twin's"
        yield from (close(a, b, 2e-4) for a, b in zip(actual[1:], expected[1:], strict=True))


def select_differences(device: torch.device) -> Iterator[float]:
    """Yield the differences of the columns of trees grown by `select`."""
    for network in (None, network_of(device), replace(network_of(device), conditional=True)):
        drafts = [drafted(device, 1), drafted(device, 5)]
        trees = [grown(step, drafts, network) for step in (triton_select, torch_select)]
        for column, expected in zip(*trees, strict=True):
            yield close(column, expected.to(column.dtype), 2e-5)


def drafted(device: torch.device, frontier: int) -> TopK:
    """Return random children of `frontier` slots in two trees."""
    prob = torch.rand(2, frontier, 5, device=device).log().sort(dim=2, descending=True).values
    token = torch.randint(0, 99, prob.shape, device=device)
    return TopK(token, prob, torch.rand(prob.shape[:2], device=device), prob[..., 0])


def network_of(device: torch.device, hidden: int = 48) -> Network:
    """Return a random network of the paper's features."""
    features = tuple(FEATURES[name] for name in ("joint_prob", "entropy", "depth"))
    weights = torch.randn(hidden, 3), torch.randn(hidden), torch.randn(hidden) / 7, torch.zeros(1)
    return Network(features, *(weight.to(device) for weight in weights))


def grown(step: Callable, drafts: list[TopK], network: Network | None) -> StaticTree:
    """Return trees of two levels, grown by `step`."""
    tree = StaticTree.rooted(torch.zeros(2, dtype=torch.long, device=drafts[0].token.device), 11)
    step(tree, range(1), range(1, 6), drafts[0], network, SelectLimits(0.05))
    step(tree, range(1, 6), range(6, 11), drafts[1], network, SelectLimits(0.05))
    return tree


def attention_differences(device: torch.device, dtype: torch.dtype, heads: int, dim: int) -> Iterator[float]:
    """Yield the differences of tree attention, with one and with two splits of the prefix."""
    lengths = torch.tensor([70, 3])
    tree = random_trees(40, 2).heavy_first()
    alive = torch.arange(40) < torch.tensor([[40], [31]])
    mask = TreeMask.of(tree.parent, alive, lengths[:, None] + tree.depth + 1, lengths)
    mask = TreeMask(*(column.to(device) for column in mask))
    query = torch.randn(2, 40, heads, dim, device=device, dtype=dtype).transpose(1, 2)
    key, value = torch.randn(2, 2, heads // 2, 110, dim, device=device, dtype=dtype)
    expected = torch_attention(query.float(), key.float(), value.float(), mask, dim**-0.5)
    for splits in (1, 2):
        actual = triton_attention(query, key, value, mask, dim**-0.5, splits=splits)
        yield close(actual, expected, TOLERANCE[dtype])


def compact_differences(device: torch.device, dtype: torch.dtype, heads: int, dim: int) -> Iterator[float]:
    """Yield the differences of compacted buffers, which must be 0."""
    buffers = LayerBuffers(torch.randn(2, 2, heads, 30, dim, device=device, dtype=dtype) for _ in range(3))
    copies = [buffer.clone() for buffer in buffers]
    index = torch.tensor([[0, 3, 4], [0, 1, 0]], device=device)
    count, lengths = torch.tensor([3, 2], device=device), torch.tensor([20, 7], device=device)
    first = torch.arange(2, device=device) * heads * 30
    triton_compact(buffers, index, count, first + 20, first + lengths)
    torch_compact(copies, index, count, first + 20, first + lengths)
    yield from (close(actual, expected, 0.0) for actual, expected in zip(buffers, copies, strict=True))


def mask_differences(device: torch.device) -> Iterator[float]:
    """Yield the differences of the columns of masks; blocks after the last one mean nothing."""
    tree = random_trees(90, 3)
    given = (column.to(device) for column in (tree.parent, tree.alive, tree.depth + 8, torch.tensor([7, 7, 7])))
    parent, alive, positions, lengths = given
    actual, expected = (make(parent, alive, positions, lengths) for make in (triton_mask, torch_mask))
    listed = torch.arange(actual.block.shape[2], device=device) < expected.count[..., None]
    for column, other in zip(actual, expected, strict=True):
        if column is actual.block:
            column, other = column[listed], other[listed]
        yield close(column, other, 0.0)


def walk_differences(device: torch.device, dtype: torch.dtype, vocabulary: int) -> Iterator[float]:
    """Yield the differences of paths along trees in which every other node is the target's choice."""
    tree = Tree(**{name: value.to(device) for name, value in vars(random_trees(60, 3)).items() if value is not None})
    logits = torch.randn(3 * 60, vocabulary, device=device, dtype=dtype)
    chosen, index = logits.argmax(-1), torch.arange(3 * 60, device=device).view(3, 60)
    above = chosen[index.gather(1, tree.parent.clamp(min=0))]
    tree.token.copy_(torch.where(tree.parent % 2 == 0, above, 0))
    actual = triton_walk(logits, chosen, index, tree.token, tree.parent, tree.alive)
    expected = target_only(tree, lambda rows, slots: chosen[index[rows, slots]])
    for column, other in zip(actual[:3], expected[:3], strict=True):
        yield close(column, other, 0.0)
