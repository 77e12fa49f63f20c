"""Speeds over the batch size: settings chosen on other prompts."""

import pytest

from c2t.models.loading.load import Pair
from c2t.policies import Budget, Chain, Eagle2, Plain
from c2t.study.batches import BatchSettings, Entrant, grouped
from pipelines.bench import batches
from pipelines.bench.batches import FAMILIES, fastest, field_of, judged
from tests.every_policy import toy_costs
from tests.rounding import figure
from tests.small_pair import TURNS
from tests.toys import toy_classifier

SETTINGS = BatchSettings(max_new_tokens=6, batches=(2,), timed=4, temperature=0.0)


def test_the_fastest_of_each_family_is_judged(small_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [small_pair.tokenizer(turn).input_ids for turn in TURNS[:4]]
    eagle2 = Eagle2(K=3, levels=2, N=6)
    field = {"plain": [Plain()], "EAGLE-2": [eagle2, Chain(1)], "budget": [Budget(eagle2, costs=toy_costs(2))]}
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
    found = field_of(type("Named", (), {"name": "x"}), lambda policy: toy_costs(policy.levels))
    assert {name: len(each) for name, each in found.items()} == {name: len(each) for name, each in FAMILIES.items()}
