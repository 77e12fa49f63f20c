"""Block counts of table 5, and that everything which a GPU would time runs and says the same."""

import pytest
import torch

from c2t.tree import Tree
from pipelines.papers import tree_blocks
from pipelines.papers.study import Study
from pipelines.papers.tree_blocks import ORDERS, block_counts, depth_first, mask_of, random_trees, timings
from tests.pipelines.papers.small_study import check
from tests.rounding import assert_same_sums, figure


def test_depth_first_is_a_walk_through_children_as_they_were_made() -> None:
    tree = random_trees(60, 2, seed=3)
    slot = torch.arange(60).expand(2, 60)
    tree = Tree(**{**tree.columns(), "token": slot}, capped=tree.capped)
    ordered = depth_first(tree)
    for row in range(2):
        walk, stack = [], [0]
        while stack:
            walk.append(stack.pop())
            stack += (tree.parent[row] == walk[-1]).nonzero()[:, 0].flip(0).tolist()
        assert ordered.token[row].tolist() == walk


@pytest.mark.parametrize(("nodes", "creation", "depth", "heavy"), [(256, 36, 22.5, 21.6), (512, 134.2, 53.1, 49.2)])
def test_counts(nodes: int, creation: float, depth: float, heavy: float) -> None:
    """Means of 200 trees, and three standard errors of a mean of 24; the paper has 36 and 22.5, 135.5 and 52.8."""
    counts = block_counts(nodes, trees=24, seed=11)
    for name, expected in zip(ORDERS, (creation, depth, heavy), strict=True):
        error = counts[name].std() / 24**0.5
        assert abs(counts[name].mean() - expected) < 3 * error + 0.1


def test_counted_blocks_are_those_of_the_dense_mask() -> None:
    tree = random_trees(96, 3).heavy_first()
    blocks = tree.ancestors().unflatten(1, (3, 32)).unflatten(3, (3, 32)).any(4).any(2)
    assert mask_of(tree).count.sum(1).equal(blocks.sum((1, 2)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_all_that_is_timed_attends_alike(kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []

    def kept(run, device, repeats) -> tree_blocks.Timing:
        results.append(run())
        return timed(run, device, repeats)

    timed = tree_blocks.timed
    monkeypatch.setattr(tree_blocks, "timed", kept)
    sizes = {"heads": 4, "kv_heads": kv_heads, "dim": 16, "prefix": 7}
    rows = list(timings(40, **sizes, dtype=torch.float32, device="cpu", repeats=2))
    assert [order for order, *_ in rows] == ["creation"] * 5 + ["heavy-first"] * 5
    assert all(0 < timing.low <= timing.median <= timing.high for *_, timing in rows)
    for first in (0, 5):
        for other in results[first + 1 : first + 3]:
            assert_same_sums(other, results[first])


def test_table5_has_the_papers_sizes_beside_ours(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_blocks, "PAPER", {64: (1.0, 2.0)})
    monkeypatch.setattr(tree_blocks, "TREES", 3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    report = check(tree_blocks.blocks(study))
    (row,) = (dict(zip(report.columns, row, strict=True)) for row in report.rows)
    blocks = random_trees(64, 3).ancestors().unflatten(1, (2, 32)).unflatten(3, (2, 32)).any(4).any(2)
    assert row["creation"] == figure(float(blocks.sum((1, 2)).double().mean()))
    assert (row["nodes"], row["paper: depth-first"]) == (64, 2.0)
