"""The measurements of equal bits run on a CPU with tiny sizes, and see planted differences."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from c2t.cuda_graphs import target as static_target
from c2t.errors import InputError
from c2t.kernels.tree_attention import triton
from c2t.kernels.tree_mask import TreeMask
from pipelines.gpu import exact, products, tensor_core
from pipelines.gpu.attention import AttentionCase, paths_of
from pipelines.gpu.exact import main, random_nodes
from pipelines.gpu.lines import Finding
from pipelines.gpu.models import random_trees
from tests.marks import slow_except

pytestmark = pytest.mark.skipif(triton is None or torch.cuda.is_available(), reason="needs Triton's interpreter")
BLOCKS = {"keys": 16, "part": 32}


@pytest.fixture(autouse=True)
def tinier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of two sizes, and recorded forwards of 8 tokens: the interpreter runs every slot."""
    monkeypatch.setattr(tensor_core, "ROWS", (16, 32))
    monkeypatch.setattr(tensor_core, "DEPTHS", (32, 64))
    monkeypatch.setattr(static_target, "SLOTS", 8)


@pytest.mark.parametrize("stage", slow_except(exact.STAGES, "mma", "products"))
def test_every_stage_runs_and_is_written_down(stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([stage, "--tiny", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"\n{stage}: 0 results differ that must be equal\n" in printed
    line = json.loads((tmp_path / "gpu.jsonl").read_text())
    assert line["configuration"] == {"stage": stage, "tiny": True}
    assert all(name in printed and figures["differing"] == 0 for name, figures in line["figures"].items())


def test_a_row_that_depends_on_the_others_is_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(products, "linear", lambda x, weight: linear(x, weight) + x.sum())
    assert main(["products", "--tiny"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [", padded" in line for line in lines] == ["MUST BE EQUAL" in line for line in lines]


def test_a_tile_that_splits_its_sum_is_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tensor_core.by_kernel

    def split(a: Tensor, b: Tensor, rows: int, columns: int, depth: int) -> Tensor:
        if rows != 32:
            return whole(a, b, rows, columns, depth)
        half = a.shape[1] // 2
        parts = (a[:, :half], b[:half]), (a[:, half:], b[half:])
        return sum(whole(*part, rows, columns, depth) for part in parts)

    monkeypatch.setattr(tensor_core, "by_kernel", split)
    assert main(["mma", "--tiny"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert ["tiles of 32 rows" in line and "weights second" in line for line in lines] == [
        "MUST BE EQUAL" in line for line in lines
    ]


def test_a_model_that_is_not_the_kernels_is_seen() -> None:
    x, weight = torch.randn(16, 32).bfloat16(), torch.randn(16, 32).bfloat16()
    right = torch.from_numpy(
        tensor_core.product(x.double().numpy(), weight.T.double().numpy(), torch.zeros(16, 16).double().numpy())
    )
    assert tensor_core.against_model(x, weight, right).differing == 0
    right[3, 4] = right[3, 4].nextafter(torch.tensor(9.0))
    assert tensor_core.against_model(x, weight, right).differing == 1


@pytest.mark.slow
def test_parts_that_end_elsewhere_in_a_tree_are_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attend = AttentionCase.attend

    def longer(case: AttentionCase, mask: TreeMask) -> Tensor:
        case.blocks = {**BLOCKS, "part": 64}
        out = attend(case, mask)
        case.blocks = BLOCKS
        return out

    monkeypatch.setattr(AttentionCase, "attend", longer)
    assert main(["attention", "--tiny"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert ["prefix 33" in line for line in lines] == ["MUST BE EQUAL" in line for line in lines]


def test_parts_that_depend_on_the_number_of_nodes_are_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = exact.triton_attention

    def by_size(*given: Tensor | float | None) -> Tensor:
        part = 32 if int(given[3].sizes.max()) == 1 else 64
        return whole(*given, keys=16, part=part)

    monkeypatch.setattr(exact, "triton_attention", by_size)
    sizes = exact.TINY_NODES._replace(trees=1, nodes=4, prefixes=(38,), rounds=())
    monkeypatch.setattr(exact, "TINY_NODES", sizes)
    assert main(["nodes", "--tiny"]) == 1
    printed = capsys.readouterr().out
    assert "1 of 1 trees of 4 nodes" in printed
    assert "MUST BE EQUAL" in printed


def test_what_was_measured_before_an_error_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stage(device: torch.device, tiny: bool) -> Iterator[Finding]:
        yield Finding("mma", "first", "said", {"count": 3})
        raise InputError("a row depends on others")

    monkeypatch.setitem(exact.STAGES, "mma", stage)
    assert main(["mma", "--tiny", "--out", str(tmp_path)]) == 2
    assert "mma: a row depends on others" in capsys.readouterr().out
    assert json.loads((tmp_path / "gpu.jsonl").read_text())["figures"] == {"first": {"count": 3, "differing": 0}}


@pytest.mark.parametrize("stage", exact.STAGES)
@pytest.mark.parametrize(("arguments", "interpreted"), [([], "1"), (["--tiny"], "0")])
def test_what_cannot_run_is_refused(
    stage: str, arguments: list[str], interpreted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", interpreted)
    with pytest.raises(SystemExit) as stopped:
        main([stage, *arguments])
    assert stopped.value.code == 2


def test_trees_of_random_nodes() -> None:
    """Siblings differ, since a path that another begins with would not be decoded again."""
    depths = []
    for seed in (0, 1):
        nodes = random_nodes(60, 320, seed)
        assert len({node.token for node in nodes}) == 60
        assert nodes[0].parent == -1
        assert all(nodes[node.parent].depth + 1 == node.depth for node in nodes[1:])
        depths.append(max(node.depth for node in nodes))
    assert depths[0] < depths[1]


def test_parents_are_within_reach() -> None:
    make = partial(random_trees, 40, 3)
    assert make().parent.equal(make(reach=40).parent)
    distance = torch.arange(40) - make(reach=2).parent
    assert set(distance[:, 1:].flatten().tolist()) == {1, 2}
    assert paths_of(make(reach=1).parent[0].tolist())[-1] == list(range(40))
