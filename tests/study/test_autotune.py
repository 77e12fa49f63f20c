"""Predictions are arithmetic on known rounds and costs; the choice, the check and the refusals of a tuning."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from c2t.costs.statistics import Statistics, Totals
from c2t.errors import InputError
from c2t.models.loading.load import Pair, with_ngrams
from c2t.models.wrappers.ngrams import NgramDraft
from c2t.policies import MCSD, Budget, Chain, Eagle2, Hierarchical, Plain
from c2t.policies.round_costs import Curve, Overhead, RoundCosts
from c2t.replay.prompts import Prompt
from c2t.sampling import Sampling
from c2t.study import autotune as tuning
from c2t.study.autotune import Candidate, TuneSettings, contestants, counted, group, predict, tune
from c2t.study.batches import Entrant, Group, Run
from c2t.study.evaluate import continuations
from c2t.study.rounds import Round
from tests.every_policy import toy_costs
from tests.rounding import figure, roughly
from tests.small_pair import TURNS

PROMPTS = [Prompt(i, "", [turn], "f") for i, turn in enumerate(TURNS[:6])]
POLICIES = [Eagle2(K=4, levels=3, N=12), Chain(2)]
SETTINGS = TuneSettings(limit=6, max_new_tokens=12, repeats=1, timed=2, compared=1)
FLAT = Curve((1,), (1.0,))


def costs_of(verify: Curve, draft: Curve, overhead: Overhead = Overhead()) -> RoundCosts:
    return RoundCosts(verify, draft, overhead, None)


def test_every_round_is_charged_at_its_own_size() -> None:
    """A convex curve: the mean size would give another price."""
    convex = costs_of(Curve((1, 10, 20), (1.0, 1.0, 7.0)), Curve((1,), (0.5,)), Overhead(0.25, per_level=0.125))
    rounds = [Round(1, 1, (1,), 1, 2), Round(1, 20, (2, 1), 2, 3)]
    seconds = (1.0 + 0.5 + 0.25 + 0.125) + (7.0 + 1.0 + 0.25 + 0.25)
    assert predict(convex, [rounds, rounds], 1) == figure((2 + 3) / seconds)
    assert predict(convex, [[]], 1) == 0.0


def test_batches_are_decoded_together() -> None:
    """Six tokens in three seconds; by one at a time in six."""
    rounds = [Round(1, 5, (5,), 1, 2), Round(1, 4, (1,), 0, 1)]
    flat = costs_of(FLAT, Curve((1,), (0.0,)))
    assert predict(flat, [rounds, rounds[:1], rounds[1:]], 2) == figure(6 / 3)
    assert predict(flat, [rounds, rounds[:1], rounds[1:]], 1) == figure(6 / 4)
    assert counted([rounds, rounds[:1]]) == Totals(3, 2, 14, 3)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[[Curve], list[list[Entrant]]]:
    """Costs have this curve of the draft and a flat one of the target, and every round of a race takes one second."""

    def use(draft: Curve) -> list[list[Entrant]]:
        raced: list[list[Entrant]] = []

        def race(entrants: Sequence[Entrant], groups: Sequence[Group], settings: TuneSettings) -> Iterator:
            raced.append(list(entrants))
            for each in groups:
                for number, entrant in enumerate(entrants):
                    new = sum(each.new_tokens) - len(each.ids)
                    levels = entrant.policy.levels
                    rounds = new / (1 + levels)
                    yield number, Run(new, rounds, Statistics(1, new, 0, 0, [1 + levels], [levels], [levels]))

        monkeypatch.setattr(tuning, "measure", lambda *_: costs_of(FLAT, draft))
        monkeypatch.setattr(tuning, "race", race)
        return raced

    return use


@pytest.mark.parametrize("batch", [1, 2])
def test_where_drafting_is_free_the_tree_is_predicted_to_win_and_where_it_is_dear_plain_decoding_is(
    small_pair: Pair, made_up: Callable, batch: int
) -> None:
    settings = replace(SETTINGS, batch=batch)
    done: list[tuple[int, int]] = []
    made_up(Curve((1,), (0.0,)))
    free = tune(small_pair, POLICIES, PROMPTS, settings, lambda *told: done.append(told[:2]))
    assert free.rows[0].label == "eagle2:K=4,levels=3,N=12"
    assert free.rows[0].predicted == roughly(batch * (1 + free.rows[0].total.tau), 0.35)
    assert done == [(count, 6) for count in range(7)]
    made_up(Curve((1,), (9.0,)))
    dear = tune(small_pair, POLICIES, PROMPTS, settings)
    assert dear.rows[0] is dear.plain
    assert dear.plain.predicted <= batch
    for found in (free, dear):
        assert [row.predicted for row in found.rows] == sorted((row.predicted for row in found.rows), reverse=True)
        assert all(row.measured for row in found.rows), "each is the best of its kind"
        assert found.best.corrected == max(row.predicted * row.measured / row.predicted_there for row in found.rows)


def test_int4_rounds_are_only_timed(small_pair: Pair, made_up: Callable) -> None:
    made_up(Curve((1,), (0.0,)))
    target = copy.copy(small_pair.target)
    vars(target)["quantized"] = small_pair.target
    found = tune(replace(small_pair, target=target), [*POLICIES, Hierarchical(POLICIES[0], 3)], PROMPTS, SETTINGS)
    [row] = [row for row in found.rows if row.rounds is None]
    assert row.total.tau == row.policy.levels, "as the race counted them"
    assert row.predicted_there == row.measured
    assert row.corrected == figure(row.measured * found.plain.corrected / found.plain.measured)
    assert found.best is row
    assert found.summary.startswith("hierarchical:of=eagle2:K=4,levels=3,N=12, ")
    assert "predicted" not in found.summary


def test_a_budget_brings_its_costs(small_pair: Pair, made_up: Callable) -> None:
    made_up(FLAT)
    costs = toy_costs(2)
    assert tune(small_pair, [Budget(Chain(2), costs=costs)], PROMPTS[:1], replace(SETTINGS, limit=1)).costs is costs


def test_a_race_of_real_texts(small_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the ends that the texts have; what the machine takes is its own."""
    monkeypatch.setattr(tuning, "measure", lambda *_: costs_of(FLAT, FLAT))
    found = tune(small_pair, POLICIES, PROMPTS, replace(SETTINGS, batch=2, limit=4))
    assert all(row.measured > 0 for row in found.rows)


def test_the_best_of_every_kind_is_raced() -> None:
    """Costs know forwards, and not what else a kind of policy does."""
    rows = [candidate(policy, 9.0 - n) for n, policy in enumerate((Chain(3), Chain(2), Eagle2(), Chain(1), Plain()))]
    assert contestants([*rows, Candidate(Hierarchical(Eagle2()), None, Totals(0, 0, 0, 0), 0.0)], 1) == [0, 2, 4, 5]
    assert contestants(rows, 2) == [0, 1, 2, 4]
    mixed = rows[0]._replace(ngrams=True)
    assert contestants([rows[0], mixed], 1) == [0, 1], "n-grams make another kind"


def candidate(policy: object, *speeds: float) -> Candidate:
    return Candidate(policy, [], Totals(10, 10, 60, 20), *speeds)


def test_the_clock_decides_among_those_that_it_saw() -> None:
    """A prediction is corrected by what the clock found of it; on the timed prompts all are twice as fast."""
    promised, kept = candidate(Chain(1), 90.0, 180.0, 120.0), candidate(Chain(2), 80.0, 160.0, 150.0)
    unseen, plain = candidate(Chain(3), 85.0), candidate(Plain(), 50.0, 100.0, 100.0)
    found = tuning.Tuning(TuneSettings(), None, [promised, unseen, kept, plain])
    assert [row.corrected for row in found.rows] == [60.0, 0.0, 75.0, 50.0]
    assert found.best is kept
    assert found.summary == "chain:length=2, 1.50 times as fast as plain decoding (1.60 predicted)"
    slow = found._replace(rows=[promised._replace(measured=80.0), plain])
    assert slow.best is slow.plain
    assert "plain decoding is the fastest here" in slow.summary


def test_ngrams_double_the_candidates(small_pair: Pair, made_up: Callable) -> None:
    """Each of them drafts with its own pair, in the count and against the clock."""
    raced = made_up(Curve((1,), (0.0,)))
    settings = replace(SETTINGS, ngrams=True, max_new_tokens=6)
    found = tune(small_pair, POLICIES, PROMPTS, settings)
    assert {row.label.endswith(" +ngrams"): row.ngrams for row in found.rows} == {True: True, False: False}
    assert sum(row.ngrams for row in found.rows) == 2
    assert sum(isinstance(entrant.pair.draft, NgramDraft) for entrant in raced[0]) == 2
    with pytest.raises(InputError, match=r"has \+ngrams already"):
        tune(with_ngrams(small_pair), POLICIES, PROMPTS, settings)


def test_batches_of_a_race_end_where_their_texts_do(small_pair: Pair) -> None:
    texts = continuations(small_pair, [[5], [5, 6]], 4, 0, Sampling())
    found = group(texts, 6)
    assert (found.ids, list(found.numbers)) == ([[5], [5, 6]], [6, 7])
    assert found.new_tokens == [text.end - text.prompt for text in texts]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch": 0}, "batch"),
        ({"timed": 0}, "timed"),
        ({"compared": 0}, "compared"),
        ({"repeats": 0}, "repeats"),
        ({"batch": 4, "limit": 3}, "use --limit 4"),
    ],
)
def test_settings_are_checked(wrong: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TuneSettings(**wrong)


def test_defaults_have_three_batches() -> None:
    assert (TuneSettings().prompts, TuneSettings(batch=32).prompts) == (16, 96)


def test_what_cannot_be_tuned(small_pair: Pair) -> None:
    with pytest.raises(InputError, match=r"mcsd.*cannot be replayed"):
        tune(small_pair, [MCSD((2, 1))], PROMPTS, SETTINGS)
    with pytest.raises(InputError, match="1 prompts do not fill a batch of 2"):
        tune(small_pair, POLICIES, PROMPTS[:1], replace(SETTINGS, batch=2))
    with pytest.raises(InputError, match="texts of 1 tokens are too short to time"):
        tune(small_pair, POLICIES, PROMPTS, replace(SETTINGS, max_new_tokens=1))
