"""Speeds over the batch size: every policy on the same batches, ratios of one run, and what the command shows."""

import json
from pathlib import Path

import pytest

from c2t.cli import reports
from c2t.costs.statistics import Statistics
from c2t.errors import InputError
from c2t.models.loading.load import Pair
from c2t.policies import Budget, Eagle2, Plain
from c2t.replay.prompts import Prompt
from c2t.study import batches
from c2t.study.batches import (
    BatchSettings,
    Entrant,
    Run,
    Speed,
    TimedBatch,
    best_rival,
    figures,
    grouped,
    measure,
    race,
    speed,
)
from c2t.study.interval import Interval
from c2t.study.plots import plot_batches
from tests.every_policy import toy_costs
from tests.rounding import figure
from tests.small_pair import TURNS

PROMPTS = [Prompt(number, "", [turn, "a number"], "f") for number, turn in enumerate(TURNS[:3])]
SETTINGS = BatchSettings(max_new_tokens=6, batches=(1, 4), timed=4, temperature=0.0)
COUNTS = Statistics(1, 6, 0, 0, [3, 3], [1, 2], [1, 1])


def row(batch: int, label: str, rate: float) -> Speed:
    interval = Interval(rate, rate - 1, rate + 1)
    return Speed(batch, label, label, interval, Interval(rate / 10, None, None), COUNTS)


def test_batches_take_all_prompts_again_and_again() -> None:
    found = grouped([[1], [2], [3]], 4, 2)
    assert [list(group.ids) for group in found] == [[[1], [2], [3], [1]], [[2], [3], [1], [2]]]
    assert [list(group.numbers) for group in found] == [[0, 1, 2, 3], [4, 5, 6, 7]], "no stream is used twice"
    assert [SETTINGS.groups(batch) for batch in (1, 2, 4, 32)] == [4, 2, 2, 2]


def test_a_speed_is_over_the_same_batches() -> None:
    runs = [Run(30, 1.0, COUNTS), Run(30, 2.0, COUNTS)]
    plain = [Run(30, 2.0, COUNTS), Run(30, 6.0, COUNTS)]
    found = speed(3, Plain(), runs, plain)
    assert found.tokens_per_second.estimate == figure(20)
    assert found.against_plain.estimate == figure(8 / 3)
    assert found.against_plain.low >= 2 - 1e-9
    assert found.against_plain.high <= 3 + 1e-9
    assert found.total.rounds == 4


def test_every_policy_runs_on_every_batch(small_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple] = []

    class Watched(TimedBatch):
        def __init__(self, entrant, group, settings):
            super().__init__(entrant, group, settings)
            self.what = type(entrant.policy).__name__, tuple(map(tuple, group.ids)), max(self.ends)

        def run_rounds(self, rounds):
            run = super().run_rounds(rounds)
            if run:
                seen.append((*self.what, run))
            return run

    monkeypatch.setattr(batches, "TimedBatch", Watched)
    eagle2 = Eagle2(K=3, levels=2, N=6)
    told: list[tuple] = []
    found = measure(
        small_pair, [eagle2, Budget(eagle2, costs=toy_costs(2))], PROMPTS, SETTINGS, lambda *said: told.append(said)
    )
    assert [(row.batch, row.label.partition(":")[0]) for row in found] == [
        (batch, name) for batch in (1, 4) for name in ("plain", "eagle2", "budget")
    ]
    timed = [each for each in seen if each[2] == 6]
    runs = {name: sorted(ids for who, ids, *_ in timed if who == name) for name in ("Plain", "Eagle2", "Budget")}
    assert runs["Plain"] == runs["Eagle2"] == runs["Budget"]
    assert len(runs["Plain"]) == 4 + 2
    assert told[-1][:2] == (18, 18)
    assert all(run.new == len(ids) * 5 for _, ids, _, run in timed), "the first token is the prompt's own forward"
    for each in found:
        assert each.total.new_tokens == 6 * SETTINGS.groups(each.batch) * each.batch
    table = reports.batches_table(found, SETTINGS)
    assert {len(cells) for cells in table.rows} == {len(table.columns)}
    assert "budget over the fastest other policy: " in reports.batches_remarks(found, SETTINGS)
    assert "4 of 1, 2 of 4" in reports.batches_remarks(found, SETTINGS)
    assert json.loads(json.dumps(figures(found[1])))["gamma"] == found[1].total.gamma


def test_policies_take_turns_within_a_batch(small_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []

    class Watched(TimedBatch):
        def run_rounds(self, rounds):
            turns.append(id(self))
            return super().run_rounds(rounds)

    monkeypatch.setattr(batches, "TimedBatch", Watched)
    monkeypatch.setattr(batches, "TURN", 1)
    ids = [small_pair.tokenizer(turn)["input_ids"] for turn in TURNS[:2]]
    entrants = [Entrant(small_pair, policy) for policy in (Plain(), Eagle2(K=3, levels=2, N=6))]
    runs = dict(race(entrants, grouped(ids, 2, 1), SETTINGS))
    both = [tuple(turns[at : at + 2]) for at in range(2, len(turns) - 1, 2)]  # behind a turn of each to get warm
    assert {frozenset(pair) for pair in both[:-1]} == {frozenset(both[0])}
    assert len(set(both[:-1])) == 2  # in an order that changes
    assert {number: run.new for number, run in runs.items()} == {0: 10, 1: 10}
    assert all(run.seconds > 0 and run.statistics.new_tokens == 12 for run in runs.values())


def test_the_budget_is_held_against_the_best_of_all_others() -> None:
    rows = [row(1, "plain", 10.0), row(1, "eagle2:N=8", 20.0), row(1, "budget:of=c2t", 22.0), row(4, "plain", 10.0)]
    assert best_rival(rows) == {1: figure(1.1)}


def test_the_figure(tmp_path: Path) -> None:
    rows = [
        row(batch, label, batch * rate) for batch in (1, 4, 16) for label, rate in (("plain", 9.0), ("budget", 11.0))
    ]
    path = plot_batches([*rows, row(1, "eagle2", 5.0)], "tiny", tmp_path / "new" / "batches.png")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batches": ()}, "batch sizes"),
        ({"batches": (0,)}, "whole numbers from 1 to 4,096"),
        ({"batches": (5000,)}, "whole numbers from 1 to 4,096"),
        ({"batches": (4, 4)}, "twice"),
        ({"max_new_tokens": 1}, "too short to time"),
        ({"timed": 0}, "timed = 0 must be at least 1"),
    ],
)
def test_settings_are_checked(wrong: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        BatchSettings(**wrong)
