"""Served pairs count as if they had been among the texts before; weight and epochs are chosen on other texts than those
that are learned from."""

import pytest
import torch

from c2t.models.bigrams import Bigrams
from pipelines.gain import served
from pipelines.gain.served import Served, with_pairs
from pipelines.pair.smollm2.shards import Text

VOCABULARY = 12


def texts(count: int, seed: int) -> list[Text]:
    generator = torch.Generator().manual_seed(seed)
    made = torch.randint(0, VOCABULARY, (count, 9), generator=generator, dtype=torch.int32)
    return [Text(ids, 3, torch.zeros(8, 4), torch.zeros(8, 4), "set", 0.0) for ids in made]


@pytest.mark.parametrize("weight", [0, 1, 3])
def test_served_pairs_count_as_often_as_their_weight_says(weight: int) -> None:
    before, more = texts(5, 0), texts(4, 1)
    counted = [text.ids[3:] for text in before]
    found = with_pairs(Bigrams.counted(counted, VOCABULARY), more, weight)
    wanted = Bigrams.counted([*counted, *weight * [text.ids[3:] for text in more]], VOCABULARY)
    for one, other in zip(vars(found).values(), vars(wanted).values(), strict=True):
        assert one.equal(other)


def test_weight_and_epochs_are_those_that_explain_other_texts_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss of its own for each weight and epoch, and what each was judged on."""
    mine, judged = texts(10, 2), []
    losses = iter([5.0, 4.0, 1.0, 2.0, 3.0, 9.0, 3.0, 2.0, 4.0])

    def loss(_self: Served, _fit: object, chosen: list[Text]) -> float:
        judged.append(chosen)
        return next(losses)

    monkeypatch.setattr(Served, "_loss", loss)
    monkeypatch.setattr(
        Served, "_epochs", lambda _self, _fit, learn: iter([f"{len(learn)} once", f"{len(learn)} twice"])
    )
    run = Served(None, mine)
    weight, counts = run.counted(Bigrams.counted([text.ids for text in texts(3, 3)], VOCABULARY))
    assert weight == served.WEIGHTS[2]
    assert counts.counts.sum() == 3 * 8 + weight * 10 * 5
    assert run.learned("as it was") == (1, "10 once")
    assert all(chosen == mine[:: served.CHOOSING] for chosen in judged)
