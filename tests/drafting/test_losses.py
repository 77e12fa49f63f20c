"""Rows judge answers only, and the losses of a head's unrolled levels are those of drafting."""

import pytest
import torch
from torch.nn import functional as F

from c2t.drafting import losses
from c2t.drafting.kinds import KINDS
from c2t.drafting.rows import best_of, rows_of, thinned
from c2t.models.target.target import Target
from tests.drafting.targets import END, SIZES, in_float32, new_head, small_target, some_texts, text_of
from tests.rounding import assert_same_sums


@pytest.fixture(scope="module")
def target() -> Target:
    return small_target()


def test_rows_judge_the_answers_positions_only() -> None:
    texts = [text_of([3, 4, 5, 6, 7, END], 3), text_of([3, 4, END], 1)]
    rows = rows_of(texts)
    # Slot j predicts state j + 1, from which token j + 2 is drawn: the answer's tokens begin at place `question`.
    assert rows.judged.tolist() == [[False, True, True, True], [True, False, False, False]]
    learned = rows_of([text_of(list(range(30)), 26), text_of([3, 4, END], 1)], 24)
    assert learned.judged.sum(1).tolist() == [5, 1]  # one more than the first answer has
    assert rows.ids.shape == (2, 6)
    assert rows.features.shape == (2, 5, SIZES["hidden_size"])
    assert rows.inputs.shape == (2, 5, SIZES["hidden_size"])
    assert best_of(texts, rows.judged).tolist() == [6, 7, END, END]
    assert thinned(rows, 2).judged.tolist() == [[False, True, False, True], [True, False, False, False]]


@pytest.mark.parametrize("name", KINDS)
def test_padding_changes_no_loss(name: str, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch's losses are its texts' ones, weighted by the positions that each depth has."""
    monkeypatch.setattr(losses, "NOISE", 0.0)
    monkeypatch.setattr(losses, "JUDGED", 1.0)
    recipe, head, texts = KINDS[name], new_head(name, target), some_texts(name)
    lm_head = recipe.rows(head, in_float32(target).lm_head.weight[:40], torch.arange(40))
    together = recipe.losses(head, lm_head, rows_of(texts)).figures
    alone = [recipe.losses(head, lm_head, rows_of([text])).figures for text in texts]
    for key, value in together.items():
        depth = int(key[-1]) if key[-2] == "_" else 0  # the l1 of smooth_l1 is none
        counts = [len(text.ids) - text.question - depth for text in texts]
        parts = [(count, shown[key].item()) for count, shown in zip(counts, alone, strict=True) if count > 0]
        wanted = sum(count * part for count, part in parts) / sum(count for count, _ in parts)
        assert_same_sums(value.float(), wanted)


def test_answers_are_predicted_as_by_the_whole_head(target: Target) -> None:
    head, rows = new_head("eagle", target), rows_of(some_texts("eagle"))
    whole = head(rows.inputs[:, :-1], rows.ids[:, 1:-1])
    assert_same_sums(next(losses.eagle_states(head, rows)), whole[rows.judged])


@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_unrolled_levels_are_those_of_drafting(name: str, target: Target) -> None:
    """A session drafts the true path, level after level, from the true states before it."""
    head, levels = new_head(name, target), 3
    rows = rows_of(some_texts(name))
    states = list(getattr(losses, f"{name}_states")(head, rows, levels=levels))
    row, slot = rows.judged.nonzero(as_tuple=True)
    for at, (r, j) in enumerate(zip(row.tolist(), slot.tolist(), strict=True)):
        ids = F.pad(rows.ids[r : r + 1], (0, levels))
        read = head.read(rows.inputs[r : r + 1, : j + 1])
        for level in range(levels):
            whole = head(read, ids[:, 1 : read.shape[1] + 1])
            assert_same_sums(states[level][at], whole[0, -1])
            read = torch.cat([read, whole[:, -1:]], 1)


def test_deeper_guesses_come_from_earlier_positions(target: Target) -> None:
    """A head that knows the state k positions ahead has nothing to learn at depth k."""
    rows = rows_of(some_texts("eagle"))
    lm_head, true = in_float32(target).lm_head.weight, rows.features[:, 1:][rows.judged]
    states = [true.roll(-depth, 0).requires_grad_() for depth in range(3)]
    found = losses.by_depth(states, lm_head, rows, torch.arange(len(true)))
    parts = [found.figures[f"cross_entropy{suffix}"] for suffix in ("", "_1", "_2")]
    assert_same_sums(found.total, sum(losses.DEEPER**k * part.item() for k, part in enumerate(parts)), 8)
    wrong = losses.by_depth([true] * 2, lm_head, rows, torch.arange(len(true)))
    assert wrong.figures["cross_entropy_1"] > parts[1]
    assert_same_sums(wrong.figures["cross_entropy"], parts[0])


def test_the_cross_entropy_and_its_gradient_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more states than are computed together."""
    monkeypatch.setattr(losses, "CHUNK", 3)
    true, hidden, lm_head = torch.randn(8, 16).double(), torch.randn(8, 16).double(), torch.randn(40, 16).double()
    hidden.requires_grad_()
    found = losses.SoftCrossEntropy.apply(hidden, lm_head, losses.mean_rows(true, lm_head))
    wanted = F.cross_entropy(hidden @ lm_head.T, (true @ lm_head.T).softmax(-1), reduction="sum")
    assert_same_sums(found.float(), wanted.float(), 40)
    (gradient,) = torch.autograd.grad(3 * found, hidden)
    (expected,) = torch.autograd.grad(3 * wanted, hidden)
    assert_same_sums(gradient.float(), expected.float(), 40)


def test_eagle3_learns_nothing_where_the_next_token_is_not_its_own(target: Target) -> None:
    head, rows = (
        new_head("eagle3", target),
        rows_of([text_of([3, 4, 45, 46, 47], 2, width=3 * SIZES["hidden_size"])]),
    )
    assert losses.eagle3_losses(head, head.lm_head.weight, rows).total == 0
