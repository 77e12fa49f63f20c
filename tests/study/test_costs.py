"""Curves are interpolated, rounds add up, overheads are fitted; forwards run at the sizes that they are timed for."""

from collections import Counter

import pytest
import torch

from c2t.batch_costs import regular
from c2t.models.draft import DraftSession
from c2t.models.loading import Pair
from c2t.models.target import TargetSession
from c2t.sampling import Sampling
from c2t.study import costs
from c2t.study.costs import Costs, Curve, Overhead, fit_overhead, measure
from c2t.study.evaluate import continuations
from c2t.study.rounds import Round
from tests.rounding import figure, roughly
from tests.small_pair import TURNS

VERIFY, DRAFT = Curve((1, 4, 8), (1.0, 2.0, 10.0)), Curve((1, 2), (0.5, 0.75))


@pytest.mark.parametrize(
    ("size", "seconds"), [(0.5, 1.0), (1, 1.0), (2.5, 1.5), (4, 2.0), (6, 6.0), (8, 10.0), (10, 14.0)]
)
def test_a_curve_is_interpolated_and_goes_on_as_it_ended(size: float, seconds: float) -> None:
    assert VERIFY.at(size) == figure(seconds)


def test_curves_that_end_falling_or_have_one_point_stay_level() -> None:
    assert Curve((1, 2), (2.0, 1.0)).at(9) == 1.0
    assert Curve((3,), (2.0,)).at(1) == Curve((3,), (2.0,)).at(9) == 2.0


def test_a_round_costs_its_forwards_and_the_overhead_of_its_policy() -> None:
    known = Costs(1, 50, VERIFY, DRAFT, {"eagle2": Overhead(0.1, 0.01), "plain": Overhead(0.3, 0.0)})
    drafted = Round(1, 6, (2, 1, 2), 2, 3)
    assert known.forwards(drafted) == figure(6.0 + 0.75 + 0.5 + 0.75)
    assert known.seconds("eagle2", drafted) == figure(8.0 + 0.1 + 3 * 0.01)
    assert known.seconds("plain", Round(1, 1, (), 0, 1)) == figure(1.3)


def test_rows_that_have_left_a_batch_cost_nothing() -> None:
    known = Costs(4, 50, VERIFY, DRAFT, {})
    assert known.forwards(Round(4, 8, (2,), 0, 4)) == figure(10.75)
    assert known.forwards(Round(2, 8, (2,), 0, 2)) == figure(2.5)


def test_the_overhead_is_a_line_through_medians() -> None:
    passes = [2, 2, 2, 4, 4, 4]
    seconds = [0.5, 0.5, 90.0, 0.9, 0.9, 0.0]  # the outliers do not count
    assert fit_overhead(passes, seconds) == figure((0.1, 0.2))
    assert fit_overhead([0, 0, 0], [0.2, 0.3, 9.0]) == (0.3, 0.0)


def test_common_numbers_of_passes_weigh_more() -> None:
    rare, common = [1] * 1 + [2] * 100 + [3] * 100, [9.0] + [2.0] * 100 + [3.0] * 100
    assert fit_overhead(rare, common).a_pass == roughly(1.0, 0.3)


def test_regular_trees() -> None:
    tree = regular(torch.tensor([7, 8]), 7, 2)
    assert tree.token.tolist() == [[7] * 7, [8] * 7]
    assert tree.parent.tolist() == [[-1, 0, 0, 1, 1, 2, 2]] * 2
    assert tree.depth.tolist() == [[-1, 0, 0, 1, 1, 1, 1]] * 2
    assert tree.sizes.tolist() == [7, 7]
    assert regular(torch.tensor([7]), 1, 4).size == 1


def test_each_forward_is_timed_at_its_size(small_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that only forwards advance: the target's by 1 s a token and row, the draft's by 10 s a token; a
    hundred times that in the warm-up and in one of the three repeats."""
    now, calls = [0.0], Counter()
    verify, expand = TargetSession.verify, DraftSession.expand

    def slowly_verify(session: TargetSession, tree):
        calls[tree.size] += 1
        now[0] += tree.token.numel() * (100 if calls[tree.size] in (1, 3) else 1)
        return verify(session, tree)

    def slowly_expand(session: DraftSession, tree, slots):
        now[0] += 10 * slots.shape[1]
        return expand(session, tree, slots)

    monkeypatch.setattr(costs, "VERIFIED", (1, 2, 5, 9))
    ids = [small_pair.tokenizer(turn).input_ids for turn in TURNS[:2]]
    texts = continuations(small_pair, ids, 8, 1, Sampling())
    monkeypatch.setattr(TargetSession, "verify", slowly_verify)
    monkeypatch.setattr(DraftSession, "expand", slowly_expand)
    found = measure(small_pair, texts, largest=7, widest=5, repeats=3, clock=lambda: now[0])
    assert calls == {1: 4, 2: 4, 5: 4, 7: 4}
    assert found.verify == Curve((1, 2, 5, 7), (2.0, 4.0, 10.0, 14.0))
    assert found.draft == Curve((1, 2, 3, 4, 5), (10.0, 20.0, 30.0, 40.0, 50.0))
    assert found.batch == 2
    assert min(map(len, ids)) < found.prefix < max(map(len, ids)) + 8
