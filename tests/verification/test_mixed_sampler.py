"""A sampler of mixed rows against the samplers of its rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from c2t.caches.ragged import SlotLogits
from c2t.policies import Eagle2, SpecInfer
from c2t.protocols import Root
from c2t.sampling import Sampling
from c2t.verification.mixed_sampler import MixedSampler
from c2t.verification.sampler import TargetSampler
from tests.toys import TableDraft, random_table

VOCABULARY = 12
SAMPLINGS = [
    Sampling(),
    Sampling(1.0, seed=5),
    Sampling(0.7, top_k=4),
    Sampling(1.3, top_p=0.8, repetition_penalty=1.4, seed=1, frequency_penalty=0.5, logit_bias={3: 1.0}),
]
SEQUENCE = [4, 0, 7, 2, 9, 1]


def sampler_of(kinds: list[int], first: int = 0) -> MixedSampler:
    """Rows first, first + 1, ... with these settings, each with a prompt and a sequence of its own."""
    rows = range(first, first + len(kinds))
    tokens = torch.tensor([[row, row + 1, row + 2] for row in rows])
    lengths = torch.tensor([1 + row % 3 for row in rows])
    return MixedSampler(
        [SAMPLINGS[kind] for kind in kinds], VOCABULARY, tokens, lengths, [SEQUENCE[row] for row in rows]
    )


def alone(kind: int, row: int) -> TargetSampler:
    tokens, length = torch.tensor([[row, row + 1, row + 2]]), torch.tensor([1 + row % 3])
    return TargetSampler(SAMPLINGS[kind], VOCABULARY, tokens, length, [SEQUENCE[row]])


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(data=st.data(), policy=st.sampled_from([Eagle2(K=2, levels=3, N=6), SpecInfer((2, 2))]))
def test_each_row_is_drawn_and_accepted_as_alone(data, policy) -> None:
    """Whatever else is in the batch, and whatever has left it or joined it before."""
    kinds = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=len(SEQUENCE)))
    cut = data.draw(st.integers(1, len(kinds)))
    mixed = sampler_of(kinds[:cut])
    kept = data.draw(st.lists(st.integers(0, cut - 1), min_size=1, unique=True))
    mixed.select(torch.tensor(kept))
    if kinds[cut:]:
        mixed.join(sampler_of(kinds[cut:], cut))
    rows = [*kept, *range(cut, len(kinds))]
    logits, position = torch.randn(len(rows), 16, VOCABULARY, dtype=torch.float64) * 2, torch.tensor(rows) + 5
    one = [alone(kinds[row], row) for row in rows]
    first = mixed.sample(logits[:, 0], position)
    assert first.tolist() == [int(own.sample(logits[i : i + 1, 0], position[i : i + 1])) for i, own in enumerate(one)]
    rule = "residual" if policy.proposal == "sampled" else "target-only"
    for _ in range(2):  # the second time after what the first has shown to the penalty
        root = Root(first, mixed.key(position))
        tree = policy(TableDraft(random_table(VOCABULARY)), root)
        accepted = mixed.accept(tree, SlotLogits.of(logits[:, : tree.size]), position, rule)
        for i, own in enumerate(one):
            part = slice(i, i + 1)
            assert own.key(position[part]).equal(root.key[part])
            its = own.accept(tree.of_rows(part), SlotLogits.of(logits[part, : tree.size]), position[part], rule)
            count = int(its.length) + 1
            assert accepted.length[i] == its.length
            assert accepted.slots[i, :count].tolist() == its.slots[0, :count].tolist()
            assert (accepted.slots[i, count:] == -1).all()
            assert accepted.bonus[i] == its.bonus


def test_rows_of_one_kind_are_not_copied() -> None:
    """A batch in which all rows have the same settings costs what it did: logits are many, and copies show."""
    mixed = sampler_of([1, 1, 1])
    logits = torch.randn(3, VOCABULARY)
    [(sampler, rows)] = mixed._parts()
    assert logits[rows].data_ptr() == logits.data_ptr()
    assert sampler.sampling == SAMPLINGS[1]
