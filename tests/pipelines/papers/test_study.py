"""What the reproductions share: studies of a pair, verdicts on conclusions, and the check of exact rounds."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from c2t.costs.statistics import Statistics
from c2t.errors import InputError
from c2t.policies import Chain, Eagle2
from c2t.study.interval import Interval
from c2t.study.points import Point
from pipelines.papers import study as paper
from pipelines.papers import verdicts
from pipelines.papers.report import Row, ends_where_plain_decoding_does
from pipelines.papers.study import Counted
from pipelines.papers.verdicts import FAILS, HOLDS, OPEN, above, all_of, apart, at_equal_tau, below
from tests.pipelines.papers.small_study import SMALL, small_training
from tests.rounding import figure

TEXTS = 40


@pytest.fixture
def study(home: Path, monkeypatch: pytest.MonkeyPatch) -> paper.Study:
    small_training(monkeypatch)
    return paper.study(**SMALL)


def counted(accepted: int, verified: int, rounds: int = 100, spread: int = 0) -> Counted:
    """A policy with these counts of every text; `spread` makes texts differ."""
    varied = [accepted + (spread if number % 2 else -spread) for number in range(TEXTS)]
    point = Point("pair", "p", "p:x=1", None, (rounds,) * TEXTS, tuple(varied), (verified,) * TEXTS, (0,) * TEXTS)
    return Counted(point, Statistics(), [], [])


@pytest.mark.slow
def test_a_harvest_is_made_once_and_a_classifier_once_per_settings(study: paper.Study) -> None:
    harvest = study.harvest()
    assert harvest.rows == 1010 * harvest.trees > 0
    assert re.fullmatch(r"tiny-eagle-T0\.4-[0-9a-f]{8}", harvest.folder.name)
    longer = paper.Study(study.pair, replace(study.settings, harvest_tokens=2))
    assert longer.harvest().folder != harvest.folder != study.harvest(levels=2).folder
    written = (harvest.folder / "part-00000.parquet").stat().st_mtime_ns
    first = study.classifier()
    assert study.classifier() is first
    assert study.classifier(("entropy", "depth")).config.features == ("entropy", "depth")
    assert study.classifier(negatives=20).config.negatives == 20
    places = sorted(path.name for path in harvest.folder.parents[2].glob("checkpoints/local/papers/*"))
    assert len(places) == 3
    again = paper.study(**SMALL)
    again.classifier()
    assert (harvest.folder / "part-00000.parquet").stat().st_mtime_ns == written
    assert sorted(path.name for path in harvest.folder.parents[2].glob("checkpoints/local/papers/*")) == places
    tuned = study.finetuned(first)
    assert tuned.config.features == first.config.features
    assert not all((a == b).all() for a, b in zip(tuned.parameters(), first.parameters(), strict=True))


def test_counts_are_those_of_all_texts_and_the_search_closes_in(study: paper.Study) -> None:
    goal = study.count(Eagle2(K=4, levels=4, N=12))
    assert study.count(Eagle2(K=4, levels=4, N=12)) is goal
    assert len(goal.point.rounds) == SMALL["limit"]
    assert sum(goal.point.verified) == goal.verified_tokens == 12 * goal.total.rounds
    found = study.around(lambda x: Chain(round(x)), study.count(Chain(3)).tau, 1, 9)
    assert min(abs(one.tau - study.count(Chain(3)).tau) for one in found) < 0.5
    assert [one.label for one in found] == ["length=5", "length=1"]
    assert paper.nearest(found, study.count(Chain(1))) is found[1]
    c2t = study.c2t_around(study.classifier(), goal, levels=3)
    assert len({one.label for one in c2t}) == len(c2t) == 1 + paper.STEPS


@pytest.mark.parametrize("change", ["a token too many", "a round too many", "a round too few", "a longer text"])
def test_rounds_that_do_not_end_with_the_text_are_seen(study: paper.Study, change: str) -> None:
    good = study.count(Chain(2))
    first, *others = good.prompts
    accepted = first.accepted
    changed = {
        "a token too many": [accepted[0] + 99, *accepted[1:]],
        "a round too many": [*accepted, 0],
        "a round too few": accepted[:-1],
        "a longer text": accepted,
    }[change]
    plain = [good.plain[0] + 99 * (change == "a longer text"), *good.plain[1:]]
    bad = good._replace(prompts=[replace(first, accepted=changed), *others], plain=plain)
    (said,) = ends_where_plain_decoding_does([Row("", "", good), Row("", "", bad)])
    assert said == f"rounds end where plain decoding's texts end: FAILS for {good.point.label}"


def test_gamma_at_equal_tau_is_read_between_points() -> None:
    subject, goal = [counted(100, 1000), counted(300, 3000)], counted(200, 4000)
    found = at_equal_tau(subject, [goal], goal)
    assert found == Interval(*[figure(2000 / 4000)] * 3)
    assert at_equal_tau(subject, [goal], counted(400, 1)).estimate is None
    few = at_equal_tau([counted(200, 2000)], [goal], counted(200, 1, spread=50))
    assert few.estimate is not None
    assert few.low is None


@pytest.mark.parametrize(
    ("found", "is_below", "is_above"),
    [
        (Interval(0.8, 0.7, 0.9), HOLDS, FAILS),
        (Interval(1.2, 1.1, 1.3), FAILS, HOLDS),
        (Interval(0.9, 0.7, 1.1), OPEN, OPEN),
        (Interval(0.8, None, None), OPEN, OPEN),
        (Interval(None, None, None), FAILS, HOLDS),
    ],
)
def test_verdicts_follow_the_interval(found: Interval, is_below: str, is_above: str) -> None:
    assert below("a", "b", found).verdict == is_below
    assert above("a", "b", found).verdict == is_above


def test_the_interval_covers_what_texts_differ_in() -> None:
    one, other = counted(200, 1000, spread=100), counted(190, 1000)
    found = verdicts.tau_ratio(one, other)
    assert found.estimate == figure(200 / 190)
    assert found.low < 1 < found.high
    assert verdicts.tau_ratio(counted(200, 1000), other).low == figure(200 / 190)
    assert verdicts.gamma_ratio(counted(1, 50), counted(1, 100)) == Interval(*[figure(0.5)] * 3)
    assert verdicts.gamma_ratio(counted(1, 50), counted(1, 0)) == Interval(None, None, None)


def test_statements_about_several_figures() -> None:
    low, high, wide = Interval(0.5, 0.4, 0.6), Interval(2, 1.9, 2.1), Interval(1, 0.5, 2.0)
    good, bad, open_ = below("", "", low), below("", "", high), below("", "", wide)
    assert all_of("", [good, good]).verdict == HOLDS
    assert all_of("", [good, open_]).verdict == OPEN
    assert all_of("", [good, open_, bad]).verdict == FAILS
    assert apart("", "", low, high).verdict == HOLDS
    assert apart("", "", high, low).verdict == FAILS
    assert apart("", "", low, wide).verdict == OPEN
    assert apart("", "", low, Interval(1, None, None)).verdict == OPEN


def test_pairs_of_the_recipes_share_the_prompts(home: Path) -> None:
    assert paper.default("tiny-qwen", "bench") == paper.default("tiny", "bench") != paper.default("tiny", "harvest")
    with pytest.raises(InputError, match="no prompts come with"):
        paper.default("llama2-7b", "bench")


def test_an_open_question_says_how_many_more_texts_would_close_it() -> None:
    opened = below("s", "w", Interval(0.9, 0.7, 1.1))  # the end to move is 1.1, twice as far away as the limit
    assert (opened.verdict, opened.more) == (OPEN, figure(4))
    assert below("s", "w", Interval(1.2, 0.9, 1.3)).more == figure(2.25)
    assert below("s", "w", Interval(1.0, 0.9, 1.1)).more is None
    assert below("s", "w", Interval(0.9, None, None)).more is None
    assert below("s", "w", Interval(0.5, 0.4, 0.6)).more is None
    both = all_of("s", [opened, below("", "w", Interval(1.2, 0.9, 1.3))])
    assert (both.verdict, both.more) == (OPEN, figure(4))
    assert both.figures == (Interval(0.9, 0.7, 1.1), Interval(1.2, 0.9, 1.3))
    assert all_of("s", [opened, below("", "w", Interval(1.5, 1.4, 1.6))]).more is None


def test_prompts_are_taken_from_all_data_sets_alike(tmp_path: Path) -> None:
    for name, categories in (("a", "x"), ("b", "pqrs")):
        (tmp_path / name).mkdir()
        asked = [{"question_id": i, "category": c, "turns": [f"{c}{i}"]} for c in categories for i in range(3)]
        (tmp_path / name / "question.jsonl").write_text("\n".join(map(json.dumps, asked)))
    files = [tmp_path / name / "question.jsonl" for name in ("a", "b")]
    found = paper.evenly(files, 5)
    assert [prompt.turns[0] for prompt in found] == ["x0", "p0", "x1", "q0", "x2"]
    assert {prompt.file for prompt in found} == {"a.jsonl", "b.jsonl"}
    assert len(paper.evenly(files, None)) == 15
