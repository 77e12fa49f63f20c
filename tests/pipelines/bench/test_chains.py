"""Trees and chains on one head: the field, its calibration, and figures that follow from the counts."""

import json
from pathlib import Path

import pytest
import torch

from c2t.policies.round_costs import Curve
from c2t.protocols import NextTokenDistributions
from c2t.replay.prompts import Prompt
from c2t.sessions.wrapped import WrappedSession
from c2t.study.points import Point
from c2t.tree import Tree
from pipelines.bench import chains, confidence
from pipelines.bench.chains import Costs, PromptSets, separated
from pipelines.bench.confidence import ConfidenceSession, Fitted
from tests.rounding import assert_within, growth
from tests.small_pair import TURNS
from tests.tiny_heads import saved

PROMPTS = [Prompt(number, "", [turn], "set") for number, turn in enumerate(TURNS)]


def point(family: str, label: str, accepted: tuple[int, ...], verified: tuple[int, ...]) -> Point:
    return Point(family, label, label, None, (10,) * len(accepted), accepted, verified, (10,) * len(accepted))


def test_every_family_is_judged_at_each_temperature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, few in (("LENGTH", 3), ("SLOPES", (0.3, 0.01)), ("SIZES", (3, 6)), ("TURNS", 1), ("MEASURED", 1)):
        monkeypatch.setattr(chains, name, few)
    sets = PromptSets({"one": PROMPTS[:2], "two": PROMPTS[2:3]}, PROMPTS[3:5])
    monkeypatch.setattr(chains, "separated", lambda *given: sets)
    head, lines = saved("dspark", tmp_path / "head"), tmp_path / "lines.jsonl"
    for temperature in (0.0, 1.0):
        chains.main(str(head), tmp_path, "tiny", None, 2, 2, 8, temperature, json=lines)
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    families = [row["figures"]["family"] for row in rows]
    ranked = [name for name in chains.CHAINS if name != chains.SAMPLED]
    trees = [chains.BEST_FIRST, chains.WITH_STOP, chains.BY_RANK]
    assert families == [*ranked, *trees, *ranked, chains.SAMPLED, *trees]
    assert all(set(row["figures"]["by_set"]) == {"one", "two"} for row in rows)
    assert set(rows[-1]["figures"]["verified_against"]) > {chains.FIXED, chains.SAMPLED}


def test_the_fastest_setting_pays_for_its_own_rounds() -> None:
    costs = Costs(Curve((1, 9), (1.0, 2.0)), {"plain": 0.0, "small": 0.25, "large": 0.25, "slow draft": 3.0})
    points = [
        point("chain, fixed", "small", (10, 10), (30, 30)),
        point("chain, fixed", "large", (12, 12), (90, 90)),
        point("tree, best first", "slow draft", (20, 20), (50, 50)),
    ]
    assert costs.plain == 1.0
    assert costs.speed("small", 10, 10, 30) == 2 / (1.25 + 0.25)
    chosen = chains.fastest(points, costs)
    assert chosen == {"chain, fixed": "small", "tree, best first": "slow draft"}
    rows = {row["family"]: row for row in chains.figures(points, chosen, costs, {"one": 1, "two": 1})}
    assert rows["chain, fixed"]["against_chain"].estimate == 1.0
    assert rows["tree, best first"]["against_plain"].estimate == 3 / (1.5 + 3.0)
    assert rows["tree, best first"]["by_set"] == {"one": 3 / 4.5, "two": 3 / 4.5}


def test_candidates_get_the_probability_of_confidence_and_rank() -> None:
    class Inner(WrappedSession):
        def __init__(self) -> None: ...

        def expand(self, tree: Tree, slots: torch.Tensor) -> NextTokenDistributions:
            rows = NextTokenDistributions(torch.arange(20.0).expand(1, slots.shape[1], 20).clone())
            rows.confidence = torch.full(slots.shape, 0.5)
            return rows

    fitted = Fitted(((2.0,), (0.0,)), ((1.0,), (0.0,)), (0.6, 0.2, 0.1, 0.0, 0.0, 0.0))
    session = ConfidenceSession(Inner(), fitted)
    rows = session.expand(Tree.root(torch.zeros(1, dtype=torch.long)), torch.zeros(1, 1, dtype=torch.long))
    probs = rows.log_probs.exp()[0, 0]
    expected = torch.zeros(20)
    expected[[19, 18, 17]] = torch.tensor([0.3, 0.1, 0.05])
    expected[13] = 1 - 0.45  # the rest is the next token's
    assert_within(probs, expected, growth(100))  # some roundings in each of five functions


def test_settings_are_not_chosen_on_what_is_judged(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    for name in chains.OTHERS:
        (tmp_path / "train" / name).write_text('{"turns": ["a", "b"]}\n')
    sets = separated(("functions", "documents"), tmp_path, 80, 12)
    assert {name: len(prompts) for name, prompts in sets.judged.items()} == {"functions": 80, "documents": 80}
    assert [prompt.turns for prompt in sets.others[:2]] == [["a"], ["a"]]
    judged = [prompt.turns[0] for prompt in sets.judged["documents"]]
    lines = {line for page in judged for line in page.split("\n\n")[:-1] if len(line) > 200}
    others = [prompt.turns[0] for prompt in sets.others if prompt.file == "documents"]
    assert len(others) == 12
    assert not any(line in page for page in others for line in lines)


def test_a_calibration_finds_weight_and_bias() -> None:
    torch.manual_seed(0)
    x = torch.randn(4000)
    labels = torch.rand(4000) < torch.sigmoid(1.5 * x - 0.5)
    weight, bias = confidence._logistic(list(zip(x.tolist(), labels.tolist(), strict=True)))
    error = 4 * 2 / 4000**0.5  # four times the deviation of an estimate from so many, at least
    assert abs(weight - 1.5) < error
    assert abs(bias + 0.5) < error
    assert confidence._logistic([(0.3, True), (0.1, True)]) == (1.0, 0.0)
