"""A node's attention has the bits of plain decoding's, in Triton's interpreter with a model of the tensor core."""

import pytest
import torch
from torch import Tensor

from c2t.kernels.tree_attention import triton, triton_attention
from c2t.kernels.tree_mask import TreeMask
from pipelines.gpu.attention import paths_of
from pipelines.gpu.models import random_trees
from tests.kernels import tensor_core
from tests.marks import slow_except

pytestmark = pytest.mark.skipif(triton is None or torch.cuda.is_available(), reason="needs Triton's interpreter")
KEYS, PART = 16, 32  # small, so that short prefixes meet every border


@pytest.fixture(autouse=True)
def on_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor_core.install(monkeypatch)


class Case:
    """Trees behind prefixes of these lengths, in a cache whose trees begin `gap` slots behind the longest prefix."""

    def __init__(self, nodes: int, lengths: list[int], kv_heads: int, group: int, dtype: torch.dtype, gap: int = 3):
        self.lengths, self.start, rows = lengths, max(lengths) + gap, len(lengths)
        self.tree = random_trees(nodes, rows, seed=nodes + lengths[0])
        draw = lambda *shape: torch.randn(rows, *shape, 16).to(dtype)  # noqa: E731
        self.query = draw(kv_heads * group, nodes)
        self.key, self.value = draw(kv_heads, self.start + nodes), draw(kv_heads, self.start + nodes)

    def mask(self) -> TreeMask:
        lengths = torch.tensor(self.lengths)
        return TreeMask.of(self.tree.parent, self.tree.alive, lengths[:, None] + self.tree.depth + 1, lengths)

    def attended(self, mask: TreeMask, window: int | None = None, **blocks: int) -> Tensor:
        """The tree's nodes, (B, n, H, D)."""
        blocks = {"keys": KEYS, "part": PART} | blocks
        return triton_attention(self.query, self.key, self.value, mask, 0.3, window, **blocks).transpose(1, 2)

    def plain(self, window: int | None = None) -> Tensor:
        """The same by plain decoding: every node is a tree of one token, behind its committed path."""
        out = []
        for row, length in enumerate(self.lengths):
            paths = paths_of(self.tree.parent[row].tolist())
            end = length + max(map(len, paths))
            query = self.query[row].transpose(0, 1)[:, :, None]  # a row of the batch for each node
            caches = []
            for given in (self.key, self.value):
                cache = torch.zeros(self.tree.size, *given.shape[1:2], end, 16, dtype=given.dtype)
                for node, path in enumerate(paths):
                    seen = [*range(length), *(self.start + slot for slot in path[:-1])]
                    cache[node, :, : len(seen)] = given[row][:, seen]
                    cache[node, :, -1] = given[row][:, self.start + node]
                caches.append(cache)
            lengths = torch.tensor([length + len(path) - 1 for path in paths])
            root = torch.full((self.tree.size, 1), -1)
            mask = TreeMask.of(root, root < 0, lengths[:, None], lengths)
            found = triton_attention(query, *caches, mask, 0.3, window, keys=KEYS, part=PART)
            out.append(found.transpose(1, 2)[:, 0])
        return torch.stack(out)


CASES = {
    "no prefix, 30 nodes": ((30, [0], 1, 1, torch.bfloat16), None, {}),
    "borders of blocks": ((12, [15, 16, 17], 1, 1, torch.bfloat16), None, {}),
    "borders of parts": ((12, [31, 32, 33, 63], 1, 1, torch.bfloat16), None, {"tile": 32}),
    "groups of 3": ((14, [45], 2, 3, torch.bfloat16), None, {}),
    "groups of 8": ((14, [70], 1, 8, torch.float16), None, {"tile": 64}),
    "float32": ((16, [40], 1, 2, torch.float32), None, {"tile": 16}),
    "a window inside the tree": ((24, [30, 5], 1, 1, torch.bfloat16), 4, {}),
    "a window that ends in the prefix": ((16, [66, 20], 1, 2, torch.bfloat16), 40, {}),
}


@pytest.mark.parametrize("name", slow_except(CASES, "borders of blocks", "groups of 3", "a window inside the tree"))
def test_every_node_has_plain_decodings_bits(name: str) -> None:
    settings, window, blocks = CASES[name]
    case = Case(*settings)
    assert case.attended(case.mask(), window, **blocks).equal(case.plain(window))


def test_a_part_of_a_tree_has_plain_decodings_bits() -> None:
    """Slots 16 to 23 of 24, which is how a graph verifies larger trees."""
    case = Case(24, [37], 1, 2, torch.bfloat16)
    here, lengths = slice(16, 24), torch.tensor([37])
    tree, positions = case.tree, lengths[:, None] + case.tree.depth[:, here] + 1
    mask = TreeMask.of(tree.parent, tree.alive[:, here], positions, lengths, torch.tensor(16))
    expected = case.plain()[:, here]
    case.query = case.query[:, :, here]
    assert case.attended(mask).equal(expected)


def test_other_blocks_parts_and_orders_are_other_sums() -> None:
    """What the equality above rests on would be seen if it were not so."""
    case = Case(20, [50], 1, 1, torch.bfloat16)
    mask, plain = case.mask(), case.plain()
    assert case.attended(mask).equal(plain)
    for blocks in ({"part": 64}, {"keys": 32, "part": 32}):
        assert not case.attended(mask, **blocks).equal(plain)
    chain = Case(20, [50], 1, 1, torch.bfloat16)
    chain.tree = chain.tree.__class__(
        **{**chain.tree.columns(), "parent": torch.arange(-1, 19)[None], "depth": torch.arange(-1, 19)[None]},
        capped=chain.tree.capped,
    )
    mask, plain = chain.mask(), chain.plain()
    assert chain.attended(mask).equal(plain)
    swapped = mask.path.clone()
    swapped[0, 19, [0, 19]] = mask.path[0, 19, [19, 0]]  # the root's key last, and in another block
    assert not chain.attended(mask._replace(path=swapped))[:, 19].equal(plain[:, 19])
