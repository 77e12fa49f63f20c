"""The report runs on a CPU with tiny shapes."""

import json

import pytest
import torch

from c2t.costs.statistics import Statistics
from c2t.policies import Plain
from pipelines.bench.contenders import Written
from pipelines.gpu import report as gpu_report
from pipelines.gpu import texts
from pipelines.gpu.models import TINY, classifier_until, phase_of, ragged_trees, random_head, random_target
from pipelines.gpu.texts import Sizes, Way, compare

CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
def test_every_stage_runs_and_is_written_down(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu_report.main(["--tiny", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    for stage in ("select", "draft", "verify"):
        assert f"\n{stage}" in printed
    line = json.loads((tmp_path / "gpu.jsonl").read_text())
    assert line["figures"]["verify: 1 x 12 tokens, prefix 24"][0] > 0


def test_without_a_device_the_full_report_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        gpu_report.main([])
    assert stopped.value.code == 2


@torch.no_grad()
@pytest.mark.parametrize("depth", [0, 2])
def test_a_phase_lives_as_many_levels_as_it_is_told(depth: int) -> None:
    draft = random_head(TINY, random_target(TINY, CPU))
    policy = gpu_report.C2T(classifier_until(depth, CPU), K=3, W=3, levels=5)
    tree, passes = phase_of(draft, policy, 2, 24).grow(torch.zeros(2, dtype=torch.long))
    assert tree.depth.max() == depth
    assert passes.tolist() == [depth + 2] * 2


def test_ragged_trees_have_the_mean_that_they_are_named_by() -> None:
    assert ragged_trees(4, 10, CPU).sizes.tolist() == [1, 7, 13, 19]
    assert ragged_trees(1, 10, CPU).sizes.tolist() == [10]


def test_texts_are_compared_with_those_of_the_first_way() -> None:
    """All are written twice, and the second time counts."""
    taken = iter([9.0, 1.0, 9.0, 2.0])

    def way(tokens: list[int], statistics: Statistics | None) -> Way:
        return Way("any", lambda ids: Written([tokens], 0.5, next(taken), statistics))

    counts = Statistics(prompts=1, accepted=[1, 2], verified=[4, 4], passes=[1, 1])
    first, second = compare([way([5, 6, 7], None), way([5, 6, 8], counts)], [[1]])
    assert first[1:] == (3.0, 4.0, 500.0, None, None, 1.0)
    assert second[1:] == (1.5, 2 / 1.5, 500.0, 750.0, 1.5, 0.0)


@pytest.mark.slow
def test_whole_texts_of_a_pair(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain decoding alone: what graphs write under every policy is tested elsewhere."""
    monkeypatch.setattr(texts, "policies", lambda pair, name: {"plain": Plain()})
    monkeypatch.setattr(gpu_report, "TINY_TEXTS", (Sizes(torch.float32, 1, 4, True),))
    gpu_report.main(["--tiny", "--texts", "tiny", "--out", str(tmp_path)])
    line = json.loads((tmp_path / "gpu.jsonl").read_text())
    assert line["configuration"] == {"pair": "tiny", "dtype": "float32", "prompts": 1, "tokens": 4, "loops": True}
    names = ["plain: loop", "plain: graphs", "transformers, as it comes", "transformers, static cache"]
    assert list(line["figures"]) == [*names, *(f"T = 0.8, {name}" for name in names[:2])]
    assert all(figures[-1] == 1 for figures in line["figures"].values())  # the same texts
