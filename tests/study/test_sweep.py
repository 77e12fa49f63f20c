"""A sweep's points are what the evaluation counts; they are kept one by one and not counted twice."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from c2t.classifier import TreeClassifier
from c2t.costs.statistics import Statistics, total
from c2t.errors import InputError
from c2t.models.loading.load import Pair
from c2t.policies.round_costs import RoundCosts
from c2t.replay.prompts import Prompt, spread
from c2t.sampling import Sampling
from c2t.study import sweep as sweeping
from c2t.study.evaluate import encode, evaluate
from c2t.study.pareto import LIMIT
from c2t.study.points import Point, append_point, drop_unfinished_line, latest, read_points
from c2t.study.sweep import SweepSettings, candidates, expand, oracles, sweep
from tests.every_policy import toy_costs
from tests.small_pair import TURNS
from tests.toys import toy_classifier

PROMPTS = [Prompt(i, "", [turn, "a number"] if i == 1 else [turn], "f.jsonl") for i, turn in enumerate(TURNS[:3])]
SETTINGS = SweepSettings(max_new_tokens=8, limit=None)
GRID = "eagle2:K=3,levels=2,N=4|7,c2t:beta=0.25,K=3,levels=3,chain:length=2"


def of(grid: str = GRID, classifier: TreeClassifier | None = None) -> list[sweeping.GridPolicy]:
    network = classifier or toy_classifier()
    return candidates(grid, lambda: network)


def test_a_grid_is_the_product_of_the_alternatives() -> None:
    assert expand("c2t:beta=0.1|0.3,eagle2:N=26|60,levels=4|6,plain") == [
        "c2t:beta=0.1",
        "c2t:beta=0.3",
        "eagle2:N=26,levels=4",
        "eagle2:N=26,levels=6",
        "eagle2:N=60,levels=4",
        "eagle2:N=60,levels=6",
        "plain",
    ]
    found = of("eagle2:N=26|60,eagle2:N=60,levels=6,eagle2:N=60,levels=4")
    assert [one.label for one in found] == ["eagle2:N=26", "eagle2:N=60", "eagle2:levels=4,N=60"], "each once"
    assert {one.family for one in found} == {"eagle2"}


def test_the_default_grid_is_known() -> None:
    found = of(sweeping.DEFAULT_GRID)
    assert len(found) == len(expand(sweeping.DEFAULT_GRID)), "nothing is named twice"
    ranked = {
        "c2t",
        "threshold",
        "eagle1",
        "eagle2",
        "opttree",
        "caddtree",
        "talon",
        "ddd",
        "entropy",
        "chain",
        "dymax",
        "dyjoint",
    }
    assert {one.family for one in found} == ranked
    assert all(one.policy.proposal == "ranked" for one in found)


@pytest.mark.parametrize("grid", ["c2t:beta=", "c2t:beta=0.1|", "eagle2:N=4|x", "eagle:N=4", "eagle2:Kay=1|2", "", "|"])
def test_bad_grids(grid: str) -> None:
    with pytest.raises(InputError):
        of(grid)


def test_counts_are_the_evaluations_by_prompt(small_pair: Pair) -> None:
    """The second prompt has two turns, which count together."""
    grid = of()
    found = sweep(small_pair, grid, PROMPTS, SETTINGS)
    sampling = Sampling(SETTINGS.temperature)
    encoded = encode(small_pair, PROMPTS, 8, sampling)
    assert found.condition.prompts == 3
    assert len(encoded.ids) == 4
    for one, point in zip(grid, found.points, strict=True):
        statistics = evaluate(small_pair, one.policy, encoded.ids, max_new_tokens=8, sampling=sampling)
        assert (point.tau, point.gamma) == (total(statistics).tau, total(statistics).gamma)
        assert point.total.draft_passes == total(statistics).draft_passes
        prompts: list[Statistics] = [statistics[0], statistics[1] + statistics[3], statistics[2]]
        assert point.rounds == tuple(s.rounds for s in prompts)
        assert point.accepted == tuple(sum(s.accepted) for s in prompts)
        assert point.verified == tuple(s.verified_tokens for s in prompts)
    assert [bool(point.classifier) for point in found.points] == [False, False, True, False]
    assert [round(p.gamma) for p in found.points[:2]] == [4, 7]


def test_a_stopped_sweep_goes_on(small_pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "new" / "points.jsonl"
    whole = sweep(small_pair, of(), PROMPTS, SETTINGS)
    count, counted = sweeping._count, []

    def stopped(pair: Pair, one: sweeping.GridPolicy, *rest):
        if len(counted) == 2:
            raise KeyboardInterrupt
        counted.append(one.label)
        return count(pair, one, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(sweeping, "_count", stopped)
        with pytest.raises(KeyboardInterrupt):
            sweep(small_pair, of(), PROMPTS, SETTINGS, file)
    with file.open("a") as half:
        half.write('{"command": "sweep po')
    seen: list[tuple[int, int]] = []
    again = sweep(small_pair, of(), PROMPTS, SETTINGS, file, lambda done, of, _doing: seen.append((done, of)))
    assert again == whole._replace(stored=2)
    assert seen[0] == (8, 16)
    assert seen[-1] == (16, 16)
    lines = file.read_text()
    assert len(lines.splitlines()) == 4
    assert sweep(small_pair, of(), PROMPTS, SETTINGS, file) == whole._replace(stored=4)
    assert file.read_text() == lines, "nothing new"
    assert read_points(file) == {whole.condition: whole.points}


def test_live_rounds_need_no_texts(small_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sweeping, "continuations")
    live = of("sampled-chain:length=3,temperature=1.0")
    (point,) = sweep(small_pair, live, PROMPTS[:1], replace(SETTINGS, temperature=1.0)).points
    assert sum(point.rounds) > 0


@pytest.mark.slow
def test_another_configuration_is_counted_anew(small_pair: Pair, tmp_path: Path) -> None:
    file = tmp_path / "points.jsonl"
    sweep(small_pair, of(), PROMPTS, SETTINGS, file)
    other = TreeClassifier()
    other.output.bias.data += 0.1
    again = sweep(small_pair, of(classifier=other), PROMPTS, SETTINGS, file)
    assert again.stored in (2, 3), "all but C2T's"
    assert sweep(small_pair, of(), PROMPTS, SETTINGS, file).stored == 4, "the first ones are there, too"
    for settings in (
        SweepSettings(max_new_tokens=8, seed=1, limit=None),
        SweepSettings(max_new_tokens=8, temperature=0.9, limit=None),
        SweepSettings(max_new_tokens=8, limit=2),
    ):
        assert sweep(small_pair, of("chain:length=2"), PROMPTS, settings, file).stored == 0


def test_no_front_has_points_of_two_trainings_of_a_network() -> None:
    """Also those whose policies were not counted again; networks of different names are both there."""

    def point(policy: str, network: str | None, family: str = "c2t") -> Point:
        return Point(family, policy, policy, network, (3,), (4,), (9,), (3,))

    old = [point("c2t:beta=0.1", "a"), point("c2t:beta=0.3", "a")]
    other = [point("c2t:classifier=b,beta=0.1", "b"), point("eagle2:N=26", None, "eagle2")]
    new = [point("c2t:beta=0.1", "c")]
    assert latest(old + other) == old + other
    assert latest(old + other + new) == other + new
    again = point("c2t:beta=0.5", "a")
    assert latest(old + other + new + [again]) == other + new + [again]
    budgets = [point(f"budget:nodes=64,of={name}", None, "budget") for name in ("eagle2", "talon")]
    costs = point("budget:nodes=64,of=talon", "d", "budget")
    assert latest([*budgets, costs]) == [budgets[0], costs]


def test_accuracies_measured_again_are_counted_anew(small_pair: Pair, tmp_path: Path) -> None:
    file, rates = tmp_path / "points.jsonl", tmp_path / "accuracies.json"
    known = []
    for shares in ([0.5, 0.2], [0.5, 0.2], [0.2, 0.5]):
        rates.write_text(json.dumps({"accuracies": [shares, shares]}))
        grid = of(f"static:accuracies={rates},N=3|4")
        known.append(sweep(small_pair, grid, PROMPTS, SETTINGS, file).stored)
    assert known == [0, 2, 0]


def test_the_oracle_needs_fewer_tokens_than_any_policy(small_pair: Pair) -> None:
    """Of greedy text: where the target draws, policies hear its random numbers, and the oracle does not."""
    grid = of("eagle2:K=10,levels=4,N=10") + oracles((0.05,))
    eagle, oracle = sweep(small_pair, grid, PROMPTS, replace(SETTINGS, temperature=0.0)).points
    assert (oracle.family, oracle.classifier) == (LIMIT, None)
    assert oracle.tau > eagle.tau
    assert oracle.gamma / (oracle.tau + 1) < eagle.gamma / (eagle.tau + 1)


def test_files_of_another_format(small_pair: Pair, tmp_path: Path) -> None:
    file = tmp_path / "points.jsonl"
    for text in ('{"turns": ["a"]}\n', "[1]\n", "hello\n", '{"command": "bench"}\n'):
        file.write_text(text)
        with pytest.raises(InputError, match="line 1: not a point of a sweep"):
            sweep(small_pair, of(), PROMPTS, SETTINGS, file)
        assert file.read_text() == text
    with pytest.raises(InputError, match="cannot be read"):
        read_points(tmp_path)


def test_a_point_with_counts_that_do_not_fit_is_refused(small_pair: Pair, tmp_path: Path) -> None:
    file = tmp_path / "points.jsonl"
    found = sweep(small_pair, of("chain:length=2"), PROMPTS, SETTINGS)
    append_point(file, found.condition, found.points[0])
    line = json.loads(file.read_text())
    line["figures"]["rounds"].append(1)
    file.write_text(json.dumps(line) + "\n")
    with pytest.raises(InputError, match="line 1"):
        read_points(file)


def test_a_line_is_finished_or_dropped(small_pair: Pair, tmp_path: Path) -> None:
    """Whatever a reader takes for a point stays one."""
    file, found = tmp_path / "points.jsonl", sweep(small_pair, of("chain:length=1|2"), PROMPTS, SETTINGS)
    for point in found.points:
        append_point(file, found.condition, point)
    whole = file.read_text()
    for text in (whole, whole[:-1]):
        file.write_text(text)
        drop_unfinished_line(file)
        assert file.read_text() == whole
    file.write_text(whole[:-2])
    drop_unfinished_line(file)
    assert file.read_text() == whole.splitlines(keepends=True)[0]


def test_names_with_line_ends_of_unicode_are_read_back(small_pair: Pair, tmp_path: Path) -> None:
    prompts = [prompt._replace(file="a\u2028b\x85.jsonl") for prompt in PROMPTS]
    found = sweep(small_pair, of("chain:length=2"), prompts, SETTINGS, tmp_path / "points.jsonl")
    assert read_points(tmp_path / "points.jsonl") == {found.condition: found.points}


def test_an_empty_grid(small_pair: Pair) -> None:
    with pytest.raises(InputError, match="no policies"):
        sweep(small_pair, [], spread(PROMPTS, 1), SETTINGS)


def test_budgets_with_other_costs_are_other_points() -> None:
    def costs(policy, file: str) -> RoundCosts:
        return toy_costs(policy.levels, per_level=float(file))

    grid = candidates("budget:costs=0.1|0.2|0.1,of=threshold:levels=2", toy_classifier, costs=costs)
    assert [found.policy.costs.draft.seconds for found in grid] == [(0.1,), (0.2,)]
    assert len({sweeping._key(found) for found in grid}) == 2
