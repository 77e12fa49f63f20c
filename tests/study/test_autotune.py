"""Predictions are arithmetic on known rounds and costs; the choice, the check and the refusals of a tuning."""

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from c2t.errors import InputError
from c2t.models.loading import Pair, with_ngrams
from c2t.models.ngrams import NgramDraft
from c2t.policies import MCSD, Chain, Eagle2, Plain, Rehearsed
from c2t.prompts import Prompt
from c2t.sampling import Sampling
from c2t.statistics import Totals
from c2t.study import autotune as tuning
from c2t.study.autotune import Candidate, Race, Row, TuneSettings, candidate, overheads, predict, runners, tune, typical
from c2t.study.costs import Costs, Curve, Overhead
from c2t.study.evaluate import continuations
from c2t.study.rounds import Round
from tests.rounding import figure, roughly
from tests.small_pair import TURNS

PROMPTS = [Prompt(i, "", [turn], "f") for i, turn in enumerate(TURNS[:6])]
POLICIES = [Eagle2(K=4, levels=3, N=12), Chain(2)]
SETTINGS = TuneSettings(limit=6, max_new_tokens=12, repeats=1, timed=2, compared=1)
FLAT = Curve((1,), (1.0,))


def a_round(verified: int, widths: tuple[int, ...], new: int, rows: int = 1) -> Round:
    return Round(rows, verified, widths, new - rows, new)


def costs_of(verify: Curve, draft: Curve, batch: int = 1, **overhead: Overhead) -> Costs:
    return Costs(batch, 10, verify, draft, overhead)


def test_every_round_is_charged_at_its_own_size() -> None:
    """A convex curve: the mean size would give another price."""
    convex = costs_of(Curve((1, 10, 20), (1.0, 1.0, 7.0)), Curve((1,), (0.5,)), chain=Overhead(0.25, 0.125))
    rounds = [a_round(9, (9, 1), 9), a_round(1, (1,), 2), a_round(20, (2, 1), 3)]
    each = candidate(Chain(2), [rounds, rounds], 1)
    seconds = (1.0 + 0.5 + 0.25 + 0.125) + (7.0 + 1.0 + 0.25 + 0.25)  # first rounds left out
    assert predict(convex, each) == figure((2 + 3) / seconds)
    assert predict(convex, candidate(Chain(2), [rounds, rounds[:1]], 1), [0]) == figure(5 / seconds)
    assert predict(convex, candidate(Chain(2), [rounds[:1]], 1)) == 0.0


def test_batches_are_decoded_together() -> None:
    rounds = [a_round(5, (5,), 1), a_round(2, (1,), 2), a_round(4, (1,), 1)]
    each = candidate(Chain(1), [rounds, rounds[:2], rounds, rounds], 2)
    assert each.batches == [
        [a_round(2, (1,), 4, 2), a_round(4, (1,), 1)],
        [a_round(2, (1,), 4, 2), a_round(4, (1,), 2, 2)],
    ]
    assert each.total.draft_passes == 1.0


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[[Curve, Curve], None]:
    """Costs come from these curves instead of being measured, overheads are nothing."""

    def use(verify: Curve, draft: Curve) -> None:
        def most(batch: int) -> int:
            """Rounds are measured up to 12 tokens a row, the largest tree's, and up to 14 in all rows."""
            return max(12, 14 // batch)

        monkeypatch.setattr(tuning, "MOST", 14)

        def measured(_pair: Pair, texts: list, *, largest: int, widest: int, repeats: int, clock: Callable) -> Costs:
            assert widest == 4
            assert largest == most(len(texts))
            assert repeats == 1
            return Costs(len(texts), 10, verify, draft, {})

        monkeypatch.setattr(tuning, "measure", measured)
        monkeypatch.setattr(
            tuning,
            "overheads",
            lambda _costs, candidates, _race: {each.name: Overhead(0.0, 0.0) for each in candidates},
        )

    return use


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2])
def test_where_drafting_is_free_the_tree_wins_and_where_it_is_dear_plain_decoding_does(
    small_pair: Pair, made_up: Callable, batch: int
) -> None:
    settings = TuneSettings(**{**SETTINGS.__dict__, "batch": batch})
    ticks = itertools.count()
    done: list[tuple[int, int]] = []

    def run() -> tuning.Tuning:
        return tune(
            small_pair, POLICIES, PROMPTS, settings, lambda: float(next(ticks)), lambda *told: done.append(told[:2])
        )

    made_up(FLAT, Curve((1,), (0.0,)))
    free = run()
    assert free.best.label == "eagle2:K=4,levels=3,N=12"
    assert free.best.predicted == roughly(batch * (1 + free.best.total.tau), 0.35)
    assert done == [(count, 7) for count in range(8)]
    made_up(FLAT, Curve((1,), (9.0,)))
    dear = run()
    assert dear.best is dear.plain
    for found in (free, dear):
        assert [row.predicted for row in found.rows] == sorted((row.predicted for row in found.rows), reverse=True)
        assert {row.label for row in found.rows if row.measured} == {found.best.label, "plain"}
        # Every round of the race takes one tick, as it costs where drafting is free.
        assert found.plain.measured == figure(found.plain.predicted_there)
    assert free.best.measured == figure(free.best.predicted_there)
    assert free.best.corrected == figure(free.best.predicted)
    assert dear.plain.predicted <= batch


@pytest.mark.slow
def test_a_rehearsal_competes_by_the_clock_alone(small_pair: Pair, made_up: Callable) -> None:
    """Here the target rehearses itself, so that a round of it writes what some of the other policies' rounds do."""
    made_up(FLAT, Curve((1,), (0.0,)))
    target = copy.copy(small_pair.target)
    vars(target)["rehearsal"] = small_pair.target
    ticks = itertools.count()
    policies = [*POLICIES, Rehearsed(POLICIES[0], 3)]
    settings = replace(
        SETTINGS, max_new_tokens=72
    )  # the first round of a text is not timed, and writes a good part of it
    found = tune(replace(small_pair, target=target), policies, PROMPTS, settings, lambda: float(next(ticks)))
    row = next(row for row in found.rows if not row.replayed)
    assert found.best is row
    assert row.total.gamma > 1 + row.total.tau > 1 + 3  # accepted whole, and a part of the tree behind it
    assert row.measured == roughly(1 + row.total.tau, 0.2)  # but where a text ends
    assert row.corrected == figure(row.measured * found.plain.corrected / found.plain.measured)
    assert len(found.candidates) == len(POLICIES) + 1, "it is not replayed"
    assert found.said.startswith("rehearsed:of=eagle2:K=4,levels=3,N=12, ")
    assert "predicted" not in found.said


def test_the_clock_decides_among_those_that_it_saw() -> None:
    """A prediction is corrected by what the clock found of it; on the timed prompts all are twice as fast."""
    total = Totals(10, 10, 60, 20)
    promised, kept = Row("a", "a", total, 90.0, 180.0, 120.0), Row("b", "b", total, 80.0, 160.0, 150.0)
    unseen, plain = Row("c", "c", total, 85.0), Row("plain", "plain", total, 50.0, 100.0, 100.0)
    found = tuning.Tuning(TuneSettings(), None, [promised, unseen, kept, plain], [])
    assert [row.corrected for row in found.rows] == [60.0, 0.0, 75.0, 50.0]
    assert found.best is kept
    assert found.said == "b, 1.50 times as fast as plain decoding (1.60 predicted)"
    slow = found._replace(rows=[promised._replace(measured=80.0), plain])
    assert slow.best is slow.plain
    assert "plain decoding is the fastest here" in slow.said


def test_ngrams_double_the_candidates(small_pair: Pair, made_up: Callable) -> None:
    """Each of them drafts with its own pair, in the count and against the clock, and pays its own overhead."""
    made_up(FLAT, Curve((1,), (0.0,)))
    settings = TuneSettings(**{**SETTINGS.__dict__, "ngrams": True, "compared": 9, "max_new_tokens": 6})
    ticks = itertools.count()
    found = tune(small_pair, POLICIES, PROMPTS, settings, lambda: float(next(ticks)))
    drafted = [each for each in found.candidates if not isinstance(each.policy, Plain)]
    assert [each.name.endswith("+ngrams") for each in drafted] == [False, False, True, True]
    assert all(isinstance(each.mixed.draft, NgramDraft) for each in drafted[2:])
    assert found.costs.overhead.keys() == {each.name for each in found.candidates}
    assert {row.label.endswith(" +ngrams"): row.ngrams for row in found.rows} == {True: True, False: False}
    assert sum(row.ngrams for row in found.rows) == 2
    for row in found.rows:
        assert row.measured == figure(row.predicted_there)
    with pytest.raises(InputError, match=r"has \+ngrams already"):
        tune(with_ngrams(small_pair), POLICIES, PROMPTS, settings, float)


def test_predictions_are_checked_on_other_batches_than_overheads_are_fitted_on(small_pair: Pair) -> None:
    texts = continuations(small_pair, [[5]] * 12, 1, 0, Sampling())
    for batch, timed, checking, fitting in [(1, 4, 4, 4), (1, 8, 8, 4), (4, 4, 2, 1), (6, 1, 1, 1)]:
        settings = TuneSettings(batch=batch, limit=12, timed=timed)
        race = Race(small_pair, texts, settings, float)
        assert (len(race.checking), len(race.fitting)) == (checking, fitting)
        assert not set(race.checking) & set(race.fitting)


class MadeUpRace(Race):
    """Rounds take their forwards and 0.1 s a pass; plain ones 0.5 s more."""

    settings, fitting, checking = SETTINGS, range(1), range(1, 2)

    def __init__(self, costs: Costs):
        self.costs, self.ran = costs, []

    def run(self, candidates: list[Candidate], batches: range) -> list[list[tuple[Round, float]]]:
        self.ran += candidates
        return [
            [(r, self.costs.forwards(r) + 0.1 * len(r.widths) + 0.5 * (not r.widths)) for r in each.batches[0]]
            for each in candidates
        ]


def test_overheads_are_fitted_for_each_kind_on_members_that_are_fast_by_their_forwards() -> None:
    costs = costs_of(FLAT, FLAT)
    wins = {3: 9, 1: 3, 6: 2, 2: 6, 5: 2, 4: 9}  # tokens of a round of so many drafts
    chains = [candidate(Chain(n), [[a_round(9, (1,), 1), a_round(n + 1, (1,) * n, wins[n])]], 1) for n in wins]
    plain = candidate(Plain(), [[a_round(1, (), 1), a_round(1, (), 1)]], 1)
    race = MadeUpRace(costs)
    found = overheads(costs, [plain, *chains], race)
    assert [each.policy for each in race.ran] == [Plain(), Chain(1), Chain(4)]  # 5 and 6 are slower
    assert found["plain"] == figure((0.5, 0.0))
    assert found["chain"] == figure((0.0, 0.1))
    with pytest.raises(InputError, match="too short to time"):
        overheads(costs, [candidate(Plain(), [[a_round(1, (), 1)]], 1)], race)


def test_of_members_that_draft_as_often_the_fastest_is_timed() -> None:
    trees = [
        candidate(Eagle2(K=4, levels=2, N=N), [[a_round(1, (), 1), a_round(N, (1, 1), new)]], 1)
        for N, new in ((60, 3), (8, 4), (12, 2))
    ]
    assert [each.policy.N for each in runners(costs_of(FLAT, FLAT), trees)] == [8]


def test_costs_are_measured_on_texts_of_middle_length(small_pair: Pair) -> None:
    ids = [[5] * length for length in (9, 1, 5, 7, 3)]
    texts = continuations(small_pair, ids, 4, 0, Sampling())
    assert [text.prompt for text in typical(texts, 1)] == [5]
    assert [text.prompt for text in typical(texts, 3)] == [3, 5, 7]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch": 0}, "batch"),
        ({"timed": 0}, "timed"),
        ({"compared": 0}, "compared"),
        ({"repeats": 0}, "repeats"),
        ({"batch": 4, "limit": 7}, "use --limit 12"),
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
    with pytest.raises(InputError, match="1 prompts fill less than two batches"):
        tune(small_pair, POLICIES, PROMPTS[:1], SETTINGS)
