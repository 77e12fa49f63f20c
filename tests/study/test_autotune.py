"""The search halves its candidates by the clock, keeps plain decoding, and fits into its minutes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from c2t.costs.statistics import Statistics
from c2t.errors import InputError
from c2t.models.drafts.session import BaseDraft
from c2t.models.loading.load import Pair, with_ngrams
from c2t.models.wrappers.ngrams import NgramDraft
from c2t.policies import Chain, Eagle2, JointThreshold, Plain
from c2t.replay.prompts import Prompt
from c2t.study import autotune as tuning
from c2t.study.autotune import TuneSettings, Tuning, candidate, heats, plan, tune
from c2t.study.batches import Entrant, Group, Run
from tests.rounding import figure
from tests.small_pair import TURNS

PROMPTS = [Prompt(i, "", [turn], "f") for i, turn in enumerate(TURNS[:6])]
POLICIES = [Eagle2(K=4, levels=3, N=12), *map(Chain, range(1, 9))]
SETTINGS = TuneSettings(limit=6, max_new_tokens=6)
ONE = Group([[1]], [0])


def run(new: int, seconds: float) -> Run:
    return Run(new, seconds, Statistics(1, new, 0, 0, [2], [1], [1]))


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Entrant], float]], list[tuple[int, int]]]:
    """A race in which a token takes what the function says of its entrant. Returns a list that collects the numbers of
    candidates and of batches of each heat."""

    def use(seconds: Callable[[Entrant], float]) -> list[tuple[int, int]]:
        sizes: list[tuple[int, int]] = []

        def race(entrants: Sequence[Entrant], groups: Sequence[Group], settings: TuneSettings) -> Iterator:
            sizes.append((len(entrants), len(groups)))
            for _ in groups:
                for number, entrant in enumerate(entrants):
                    yield number, run(settings.max_new_tokens, settings.max_new_tokens * seconds(entrant))

        monkeypatch.setattr(tuning, "race", race)
        return sizes

    return use


def by_levels(entrant: Entrant) -> float:
    """Chains of four tokens are the fastest, and plain decoding the slowest."""
    return 1.0 + abs(entrant.policy.levels - 4) / 10


def test_the_slower_half_leaves_until_few_are_left(small_pair: Pair, raced: Callable) -> None:
    sizes, done = raced(by_levels), []
    found = tune(small_pair, POLICIES, PROMPTS, SETTINGS, lambda *told: done.append(told[:2]))
    assert sizes == [(1, 1), (1, 1), (10, 1), (5, 1), (4, 1), (4, 3)]
    assert done[1:] == [(count, 31) for count in range(1, 32)]
    assert found.best.policy == Chain(4)
    assert found.best.against_plain == figure(1.4 / 1.0)
    assert found.summary == "chain:length=4, 1.40 times as fast as plain decoding"
    assert [row.texts for row in found.rows] == [6] * 4 + [2] + [1] * 5
    assert found.plain.texts == 6, "it is never dropped, though it is the slowest"


def test_where_no_tree_is_profitable_plain_decoding_is_chosen(small_pair: Pair, raced: Callable) -> None:
    raced(lambda entrant: 1.0 + entrant.policy.levels)
    found = tune(small_pair, POLICIES, PROMPTS, SETTINGS)
    assert found.best is found.plain
    assert "plain decoding is the fastest here" in found.summary


def test_rows_are_compared_on_the_texts_that_both_decoded() -> None:
    """The second half of plain decoding's texts is twice as fast."""
    plain = [run(4, 4.0), run(4, 2.0)]
    assert candidate(Chain(1), False, [run(4, 2.0)], plain).against_plain == figure(2.0)
    assert candidate(Chain(1), False, [run(4, 2.0), run(4, 1.0)], plain).against_plain == figure(2.0)


def test_heats_use_every_batch_once() -> None:
    for count in range(1, 40):
        groups = [ONE._replace(numbers=[number]) for number in range(count)]
        found = heats(41, groups)
        assert [group for heat in found for group in heat.groups] == groups
        assert found[0].candidates == 41
    assert [(heat.candidates, len(heat.groups)) for heat in heats(41, [ONE] * 16)] == [
        (41, 2),
        (21, 2),
        (11, 4),
        (6, 8),
    ]


@pytest.mark.parametrize("seconds", [0.01, 1.0, 5.0, 100.0])
def test_a_search_fits_into_its_minutes(seconds: float) -> None:
    """With fewer texts, or else with shorter ones, of eight tokens at least."""
    tokens, found = plan(41, [ONE] * 16, seconds, TuneSettings(minutes=4.0))
    needed = seconds * sum(heat.candidates * len(heat.groups) for heat in found)
    assert needed <= 240 or [len(heat.groups) for heat in found] == [1]
    assert tokens == {0.01: 32, 1.0: 32, 5.0: 32, 100.0: 8}[seconds]


def test_ngrams_double_the_candidates(small_pair: Pair, raced: Callable) -> None:
    """Each of them drafts with its own pair."""
    drafts: set[type[BaseDraft]] = set()
    raced(lambda entrant: drafts.add(type(entrant.pair.draft)) or 1.0)
    found = tune(small_pair, POLICIES, PROMPTS, replace(SETTINGS, ngrams=True))
    assert {row.label.endswith(" +ngrams"): row.ngrams for row in found.rows} == {True: True, False: False}
    assert sum(row.ngrams for row in found.rows) == len(POLICIES)
    assert NgramDraft in drafts
    with pytest.raises(InputError, match=r"has \+ngrams already"):
        tune(with_ngrams(small_pair), POLICIES, PROMPTS, replace(SETTINGS, ngrams=True))


@pytest.mark.parametrize("batch", [1, 2])
def test_a_race_of_real_texts(small_pair: Pair, batch: int) -> None:
    """What the machine takes is its own."""
    found = tune(
        small_pair, [Chain(2), JointThreshold(0.1, K=3, W=3, levels=2)], PROMPTS, replace(SETTINGS, batch=batch)
    )
    assert all(row.tokens_per_second > 0 for row in found.rows)
    assert found.plain.against_plain == 1.0
    assert {type(row.policy) for row in found.rows} == {Plain, Chain, JointThreshold}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch": 0}, "batch"),
        ({"minutes": 0.0}, "minutes = 0.0 must be more than 0"),
        ({"max_new_tokens": 1}, "too short to time"),
        ({"batch": 4, "limit": 3}, "use --limit 4"),
    ],
)
def test_settings_are_checked(wrong: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TuneSettings(**wrong)


def test_defaults_have_three_batches() -> None:
    assert (TuneSettings().prompts, TuneSettings(batch=32).prompts) == (16, 96)


def test_what_cannot_be_tuned(small_pair: Pair) -> None:
    with pytest.raises(InputError, match="1 prompts do not fill a batch of 2"):
        tune(small_pair, POLICIES, PROMPTS[:1], replace(SETTINGS, batch=2))


def tuned(*rows: tuple[object, int, float]) -> Tuning:
    """A tuning of these policies, their gamma and their speed over plain decoding, which is added."""
    made = [
        tuning.Candidate(policy, False, 2, 100 * ratio, ratio, Statistics(1, 9, 0, 0, [gamma], [1], [2]))
        for policy, gamma, ratio in (*rows, (Plain(), 1, 1.0))
    ]
    return Tuning(TuneSettings(), sorted(made, key=lambda row: -row.against_plain))
