"""Speeds over the batch size: settings chosen on other prompts, runs that go on, and the model's arithmetic."""

from pathlib import Path

import numpy as np
import pytest

from c2t.models.pairs import Pair
from c2t.policies import Budget, Chain, Eagle2, Plain
from c2t.policies.round_costs import Children, Profile
from c2t.storage.results import append_line, result_line
from c2t.study.batches import BatchSettings, Entrant, grouped
from c2t.study.evaluate import continuations
from c2t.study.rounds import Round
from pipelines.bench import batches
from pipelines.bench.batches import FAMILIES, fastest, field_of, judged, known
from pipelines.bench.roofline import ARITHMETIC, BANDWIDTH, EFFICIENCY, TARGETS, UNKNOWN, compared, rate
from tests.every_policy import toy_costs
from tests.rounding import figure, roughly
from tests.small_pair import TURNS
from tests.toys import toy_classifier

SETTINGS = BatchSettings(max_new_tokens=6, batches=(2,), timed=4, temperature=0.0)


def small_field() -> dict:
    eagle2 = Eagle2(K=3, levels=2, N=6)
    return {
        "plain": [Plain()],
        "EAGLE-2": [eagle2, Chain(1)],
        "budget": [Budget(eagle2, costs=toy_costs(2))],
    }


def test_the_fastest_of_each_family_is_judged(small_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [small_pair.tokenizer(turn).input_ids for turn in TURNS[:4]]
    field = small_field()
    monkeypatch.setattr(batches, "CHOICE_TOKENS", 4)
    entrants = {name: [Entrant(small_pair, policy) for policy in policies] for name, policies in field.items()}
    chosen = fastest(entrants, grouped(ids, 2, 1), SETTINGS)
    assert list(chosen) == list(field)
    assert all(one.policy in field[name] for name, one in chosen.items())
    found = judged(chosen, grouped(ids, 2, 2), SETTINGS)
    assert found["plain"].against_plain.estimate == figure(1)  # of measured seconds, rounded
    assert {row.batch for row in found.values()} == {2}
    assert found["EAGLE-2"].total.new_tokens == found["budget"].total.new_tokens == 2 * 2 * 6


def test_every_named_setting_is_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "classifier", lambda *_: toy_classifier())
    found = field_of(type("Named", (), {"name": "x"}), lambda policy: UNKNOWN(policy.levels))
    assert {name: len(each) for name, each in found.items()} == {name: len(each) for name, each in FAMILIES.items()}


def test_batch_sizes_in_the_file_are_not_run_again(tmp_path: Path) -> None:
    file, about = tmp_path / "lines.jsonl", {"pair": "tiny"}
    assert known(None, "c", about) == known(file, "c", about) == set()
    for batch, names in ((1, list(FAMILIES)), (4, list(FAMILIES)[:-1])):
        for name in names:
            append_line(file, result_line("c", {"batch": batch, "contender": name}, about))
    with file.open("a") as torn:
        torn.write('{"command": "c", "figu')
    assert known(file, "c", about) == {1}
    assert known(file, "c", {"pair": "other"}) == known(file, "d", about) == set()


def test_the_model_has_a_floor_and_a_roof() -> None:
    """7B in bfloat16 on an H200 by hand: 6.6e9 weights outside the embedding."""
    shape = TARGETS["7B"]
    weights = 32 * shape.layer + shape.head
    assert weights == roughly(6.6e9, 0.01)
    assert 80 * TARGETS["70B"].layer + TARGETS["70B"].head == roughly(68.7e9, 0.01)
    costs = shape.costs(Profile((), (0.0,), (), Children()))
    floor, token = weights * 2 / (BANDWIDTH * EFFICIENCY), 2 * weights / (ARITHMETIC * EFFICIENCY)
    found = costs.verify.over(np.array([1, 100, 206, 400, 4000]))
    assert found == roughly([floor, floor, floor, 400 * token, 4000 * token], 0.01)
    copies = shape.costs(Profile((), (0.0,), (), Children()), copies=4)
    assert copies.verify.at(100) == figure(costs.verify.at(400))
    assert copies.rest.a_row == 4 * costs.rest.a_row == figure(4 * 32 * 2 * 4096 * 1024 * 2 / (4.8e12 * 0.7))


def test_modelled_speed_by_hand() -> None:
    shape = TARGETS["7B"]
    first, second = Round(1, 1, (), 0, 1), Round(1, 3, (2, 1), 1, 2)
    one = shape.costs(Profile((), (0.0,), (), Children()))
    whole = one.verify.at(6) + 2 * one.rest.a_row + one.draft.at(4) + one.draft.at(2) + 4 * one.rest.a_level_row
    assert rate(shape, [[first, second], [first, second]], 2) == figure(4 / whole)
    assert rate(shape, [[first, second]], 2) == figure(4 / whole), "a copy of a row is a row"


@pytest.mark.slow
def test_modelled_batches(small_pair: Pair) -> None:
    ids = [small_pair.tokenizer(turn).input_ids for turn in TURNS[:6]]
    texts = continuations(small_pair, ids, 12, 2, SETTINGS.sampling)
    field = small_field() | {"budget": [Budget(Eagle2(K=3, levels=2, N=None), costs=UNKNOWN(2))]}
    told: list[tuple] = []
    found = dict(compared(small_pair, field, texts[:4], texts[4:], (1, 4, 512), lambda *said: told.append(said)))
    assert {size: len(rows) for size, rows in found.items()} == {1: 6, 4: 6, 512: 6}
    assert max(done for done, *_ in told) <= told[0][1]
    for rows in found.values():
        assert [row["against_plain"] for row in rows if row["contender"] == "plain"] == [1, 1]
    gammas = [row["gamma"] for rows in found.values() for row in rows if row["contender"] == "budget"]
    assert gammas[0] > gammas[-1]
