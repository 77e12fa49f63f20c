"""Shared noise against a draft without it and against the residual rule."""

import json
from pathlib import Path

import pytest

from c2t.costs.statistics import Statistics
from c2t.models.loading.load import Pair
from c2t.policies import Chain
from c2t.sessions.coupled import coupled
from pipelines.bench import noise
from pipelines.docs import noise as page
from tests.small_pair import TURNS, write_prompts


class Sampler:
    """A verifier that samples."""

    stochastic = True

    def noise(self) -> None: ...


def test_every_way_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "FIXED", {16: noise.FIXED[16]})
    for name in noise.FOLDERS:
        write_prompts(tmp_path / name / "question.jsonl", TURNS[:3])
    lines = tmp_path / "lines.jsonl"
    noise.main(tmp_path, "tiny", None, 1, 6, 0.5, lines)
    rows = [json.loads(line)["figures"] for line in lines.read_text().splitlines()]
    names = [noise.UNAWARE, noise.SHARED, noise.RESIDUAL]
    assert [row["way"] for row in rows] == [*names, *names, noise.RESIDUAL]
    for shape, drafted in ((rows[:3], noise.CHAIN), (rows[3:], 16)):
        assert all(row["gamma"] <= 1 + drafted for row in shape)
        assert shape[1]["shared_over"][0] == 1.0
        assert set(shape[0]["by_set"]) == set(noise.FOLDERS)

    measured = [json.loads(line) for line in lines.read_text().splitlines()]
    monkeypatch.setattr(page, "lines", lambda name: measured)
    monkeypatch.setattr(page, "HEADLINE", ("tiny, EAGLE-1", "tree of 16", 0.5))
    shown = page.noise()
    assert all(f"| {column} |" in shown for column in (*names, "shared / residual"))
    assert shown.count("| 0.5 |") == len(page.SHOWN)
    assert page.lead(noise.UNAWARE) in shown
    assert page.lead(noise.RESIDUAL) in shown


def test_only_the_way_without_noise_gets_none(small_pair: Pair) -> None:
    [unaware, shared, _] = noise.ways(small_pair, 0.5)[f"chain of {noise.CHAIN}"]
    for way, takes in ((unaware, False), (shared, True)):
        session = way.pair.draft.session()
        assert (coupled(session, Chain(2), Sampler()) is not session) == takes


def test_figures_are_those_of_the_counts(small_pair: Pair) -> None:
    ways = noise.ways(small_pair, 1.0)["tree of 8"]
    counted = [[Statistics(verified=[9] * 2, accepted=accepted)] * 2 for accepted in ([1, 1], [2, 1], [3, 3])]
    unaware, shared, residual = noise.figures(ways[:3], counted, ["one", "two"])
    assert [row["acceptance_length"].estimate for row in (unaware, shared, residual)] == [2, 2.5, 4]
    assert [row["shared_over"].estimate for row in (unaware, shared, residual)] == [2.5 / 2, 1, 2.5 / 4]
    assert shared["by_set"] == {"one": 2.5, "two": 2.5}
    assert (shared["gamma"], shared["rounds"]) == (9, 4)
