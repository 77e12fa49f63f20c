"""The target's choice: processors against Hugging Face's own, draws against their plain definition, and the hash."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from c2t.caches.ragged import SlotLogits
from c2t.errors import InputError
from c2t.sampling import Sampling, TokenCounts, padded_sums, uniform
from c2t.tree import Tree
from c2t.verification.sampler import TargetSampler
from tests.rounding import assert_equal, assert_within, growth

MASK, STEP = 2**64 - 1, 0x9E3779B97F4A7C15
SETTINGS = [
    Sampling(temperature=0.7),
    Sampling(temperature=1.0, top_k=5),
    Sampling(temperature=0.5, top_p=0.9),
    Sampling(temperature=1.3, top_p=0.01),
    Sampling(temperature=1.0, top_k=200),  # more than the vocabulary
    Sampling(temperature=0.8, top_k=12, top_p=0.6, repetition_penalty=1.4),
    Sampling(temperature=0.8, repetition_penalty=0.7),
    Sampling(repetition_penalty=1.2),
    Sampling(temperature=0.7, min_p=0.3),
    Sampling(temperature=1.2, min_p=0.02, top_k=20, top_p=0.9),
    Sampling(temperature=1.0, min_p=1.0),
]


def as_hugging_face(sampling: Sampling) -> LogitsProcessorList:
    """What `generate` builds, in its order, but for min-p, which comes before top-k and top-p as in vLLM."""
    chain = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.temperature:
        chain.append(TemperatureLogitsWarper(sampling.temperature))
        if sampling.min_p:
            chain.append(MinPLogitsWarper(sampling.min_p))
        if sampling.top_k:
            chain.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1:
            chain.append(TopPLogitsWarper(sampling.top_p))
    return chain


def counts_of(sampling: Sampling, ids: torch.Tensor, new: int = 0) -> TokenCounts | None:
    """The counts of texts of 50 tokens' vocabulary, of which the last `new` tokens were generated."""
    every = torch.ones(len(ids), dtype=torch.long)
    return sampling.count(ids, ids.shape[1] * every, new * every, 50)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_processors_are_those_of_generate(sampling: Sampling, dtype: torch.dtype) -> None:
    logits = torch.randn(6, 50, dtype=dtype) * 3
    ids = torch.randint(0, 50, (6, 20))
    expected = as_hugging_face(sampling)(ids, logits.clone())
    assert_equal(sampling.process(logits, counts_of(sampling, ids)), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_half_precision_logits_are_processed_in_float32_as_generate_does(
    sampling: Sampling, dtype: torch.dtype
) -> None:
    logits = (torch.randn(6, 50) * 3).to(dtype)
    ids = torch.randint(0, 50, (6, 20))
    expected = as_hugging_face(sampling)(ids, logits.float())
    assert_equal(sampling.process(logits, counts_of(sampling, ids)), expected)


PENALISED = [
    Sampling(frequency_penalty=1.25, presence_penalty=-0.5, logit_bias={3: -100.0, 7: 2.5}),
    Sampling(0.7, repetition_penalty=1.3, seed=1, frequency_penalty=-2.0, presence_penalty=2.0, logit_bias={0: 100.0}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("sampling", PENALISED, ids=["greedy", "sampled"])
def test_bias_and_penalties_are_those_of_vllm(sampling: Sampling, dtype: torch.dtype) -> None:
    """Token by token, in Python's numbers: bias, repetition of prompt and text, then the counts of the text alone."""
    logits = (torch.randn(6, 50) * 3).to(dtype)
    ids = torch.randint(0, 12, (6, 20))
    found = sampling.process(logits, counts_of(sampling, ids, new=15))
    exact = logits.double()
    bias = dict(sampling.logit_bias)
    for row, text in enumerate(ids.tolist()):
        for token in range(50):
            value = exact[row, token].item() + bias.get(token, 0.0)
            if token in text:
                value = value * sampling.repetition_penalty if value < 0 else value / sampling.repetition_penalty
            times = text[5:].count(token)
            value -= sampling.frequency_penalty * times + sampling.presence_penalty * (times > 0)
            exact[row, token] = value / (sampling.temperature or 1.0)
    size = (logits.double().abs() + 100 + 2 * 15 + 2) / (sampling.temperature or 1.0)  # of each term at most
    assert_within(found, exact, growth(8, found.dtype) * 2 * size)


def test_counts_are_those_of_a_text_as_it_grows() -> None:
    """With padding that does not count, of rows that leave and others that come."""
    sampling = Sampling(repetition_penalty=1.5, frequency_penalty=1.0)
    ids, lengths, new = torch.randint(0, 50, (4, 9)), torch.tensor([9, 4, 7, 1]), torch.tensor([0, 2, 7, 0])
    texts = [row[:length] for row, length in zip(ids.tolist(), lengths.tolist(), strict=True)]
    starts = (lengths - new).tolist()
    counts = sampling.count(ids, lengths, new, 50)
    more, real = torch.randint(0, 50, (4, 3)), torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]]).bool()
    counts = counts.plus(torch.where(real, more, -1), real)
    for row, text in enumerate(texts):
        text += more[row][real[row]].tolist()
    order = torch.tensor([3, 1, 0, 2])
    counts = counts.select(order[:2]).join(counts.select(order[2:]))
    for row, number in enumerate(order.tolist()):
        text = texts[number]
        assert counts.text[row].tolist() == [text.count(token) for token in range(50)]
        assert counts.generated[row].tolist() == [text[starts[number] :].count(token) for token in range(50)]
    assert Sampling(temperature=0.5, top_k=4).count(ids, lengths, new, 50) is None


def test_a_bias_is_a_setting_like_any_other() -> None:
    """However it is given, it can be compared, hashed and copied; zeros are none."""
    given = {7: 2.0, 3: -1.0, 5: 0.0}
    sampling = Sampling(1.0, logit_bias=given)
    assert sampling == Sampling(1.0, logit_bias=((3, -1.0), (7, 2.0)))
    assert len({sampling, Sampling(1.0, logit_bias=given), Sampling(1.0)}) == 2
    assert replace(sampling, seed=3).logit_bias == sampling.logit_bias == ((3, -1.0), (7, 2.0))
    assert Sampling(logit_bias={4: 0.0}) == Sampling()
    sampling.check_vocabulary(8)
    with pytest.raises(InputError, match=r"logit_bias: token id 7 is outside the vocabulary 0\.\.6"):
        sampling.check_vocabulary(7)


def splitmix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def plain_key(seed: int, sequence: int, position: int, draw: int) -> int:
    state = splitmix(seed & MASK)
    for coordinate in (sequence, position, draw):
        state = splitmix((state + (coordinate + 1) * STEP) & MASK)
    return state


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_draw_is_the_largest_logit_with_the_noise_of_its_token(dtype: torch.dtype) -> None:
    sampling = Sampling(temperature=0.6, top_p=0.95, seed=4)
    logits = torch.randn(200, 30, dtype=dtype) * 2
    sequence, position = torch.arange(200) % 7, torch.arange(200)
    expected = []
    for number, row in enumerate(as_hugging_face(sampling)(None, logits.clone()).tolist()):
        key = plain_key(4, number % 7, number, 0)
        uniforms = [((splitmix((key + i * STEP) & MASK) >> 11) + 0.5) / 2**53 for i in range(1, 31)]
        noisy = [x - math.log(-math.log1p(-u)) for x, u in zip(row, uniforms, strict=True)]
        expected.append(noisy.index(max(noisy)))
    assert sampling.sample(logits, sequence, position).tolist() == expected


@pytest.mark.parametrize("off", [0.02, 0.2])
def test_distributions_that_are_close_draw_the_same_token(off: float) -> None:
    """With a probability of at least (1 - d) / (1 + d), d their distance, however many tokens there are."""
    torch.manual_seed(0)
    logits, rows = torch.randn(2000) * 2, torch.arange(5000)
    other = logits + torch.randn(2000) * off
    distance = (logits.softmax(-1) - other.softmax(-1)).abs().sum().item() / 2
    one, two = (Sampling(temperature=1.0).sample(each.expand(5000, -1), rows, rows) for each in (logits, other))
    same = int((one == two).sum())
    bound = (1 - distance) / (1 + distance)
    assert stats.binomtest(same, 5000, bound, alternative="less").pvalue > 1e-3
    assert same < 5000  # they are not the same distribution


def test_draws_follow_the_law_and_never_hit_an_excluded_token() -> None:
    logits = torch.tensor([2.0, float("-inf"), 1.0, 0.0, -1.0]).expand(20_000, -1)
    rows = torch.arange(20_000)
    drawn = Sampling(temperature=1.0, seed=1).sample(logits, rows, torch.full_like(rows, 3))
    counts = torch.bincount(drawn, minlength=5).numpy()
    law = logits[0].double().softmax(-1).numpy()
    assert counts[1] == 0
    assert stats.chisquare(counts[law > 0], 20_000 * law[law > 0]).pvalue > 1e-3


@pytest.mark.parametrize("name", ["temperature", "repetition_penalty"])
@pytest.mark.parametrize("value", [1e-5, 1e-320, -1.0, float("nan"), float("inf")])
def test_what_logits_cannot_be_divided_by_is_refused(name: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{name} = .* 0.0001"):
        Sampling(**{name: value})


def test_greedy_takes_the_lowest_of_equal_tokens() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    zeros = torch.zeros(2, dtype=torch.long)
    assert Sampling().sample(logits, zeros, zeros).tolist() == [1, 0]


def test_a_row_is_drawn_as_if_alone() -> None:
    sampling = Sampling(temperature=1.0, top_k=20, seed=2)
    logits, rows = torch.randn(9, 40), torch.arange(9)
    together = sampling.sample(logits, rows, rows + 5)
    alone = [sampling.sample(logits[i : i + 1], rows[i : i + 1], rows[i : i + 1] + 5) for i in range(9)]
    assert together.tolist() == torch.cat(alone).tolist()


@pytest.mark.parametrize("seed", [0, 1, -1, -(2**63), 2**63 - 1, 2**64 - 1, 10**30])
def test_uniforms_look_uniform_for_every_seed(seed: int) -> None:
    sequence, position = (
        grid.flatten() for grid in torch.meshgrid(torch.arange(200), torch.arange(100), indexing="ij")
    )
    points = uniform(seed, sequence, position)
    assert points.dtype == torch.float64
    assert 0 <= points.min() < 1e-3
    assert 1 - 1e-3 < points.max() < 1
    assert stats.kstest(points.numpy(), "uniform").pvalue > 1e-4
    assert abs(points.var().item() - 1 / 12) < 0.002
    grid = points.reshape(200, 100).numpy()
    for one, other in ((grid[:, 1:], grid[:, :-1]), (grid[1:], grid[:-1]), (grid[1:, 1:], grid[:-1, :-1])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.03


def test_uniforms_differ_in_every_coordinate_and_do_not_depend_on_the_batch() -> None:
    corners = list(product((0, 1, 2, -1, 2**40), (0, 1, 2, 10**6), (0, 1, 2, 10**6)))
    points = [uniform(seed, torch.tensor([s]), torch.tensor([i])).item() for seed, s, i in corners]
    assert len(set(points)) == len(corners)
    again = uniform(2, torch.tensor([s for seed, s, i in corners]), torch.tensor([i for seed, s, i in corners]))
    assert [p for p, corner in zip(points, corners, strict=True) if corner[0] == 2] == [
        p for p, corner in zip(again.tolist(), corners, strict=True) if corner[0] == 2
    ]


def test_uniforms_are_the_stream_that_texts_were_made_with() -> None:
    """A change of the hash would change every stored text of the same seed."""
    for seed, sequence, position, draw in product((0, 7, -3, 2**63), (0, 5), (0, 1000), (0, 1, -1)):
        point = uniform(seed, torch.tensor([sequence]), torch.tensor([position]), draw).item()
        assert point == (plain_key(seed, sequence, position, draw) >> 11) / 2**53


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -0.1},
        {"temperature": float("inf")},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"repetition_penalty": 0.0},
        *({"min_p": value} for value in (-0.1, 1.1, float("nan"), 1e9)),
        *({name: value} for name in ("frequency_penalty", "presence_penalty") for value in (2.1, -1e9, float("nan"))),
        {"logit_bias": {5: 101.0}},
        {"logit_bias": {5: float("nan")}},
        {"logit_bias": {5: float("inf")}},
        {"logit_bias": {-1: 1.0}},
    ],
    ids=str,
)
def test_impossible_settings_are_refused_by_name(settings: dict) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        Sampling(**settings)


def test_a_bias_of_too_many_tokens_is_refused_before_it_is_read() -> None:
    with pytest.raises(InputError, match="logit_bias has 1,000,000 tokens: at most 1,024 can be biased"):
        Sampling(logit_bias=dict.fromkeys(range(10**6), math.nan))
    assert len(Sampling(logit_bias=dict.fromkeys(range(1024), 1.0)).logit_bias) == 1024


def test_rows_that_have_ended_are_not_drawn_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And every row's path is the one that it takes alone."""
    torch.manual_seed(0)
    rows, vocabulary, drawn = 12, 3, []
    tree, slots = Tree.root(torch.zeros(rows, dtype=torch.long)), torch.zeros(rows, 1, dtype=torch.long)
    for _ in range(3):
        tokens = torch.arange(2).expand(*slots.shape, 2)
        nodes = tree.children(slots, tokens, torch.zeros(tokens.shape), torch.zeros(slots.shape))
        slots = tree.size + torch.arange(nodes.size).expand(rows, -1)
        tree = tree.extend(nodes)
    logits, root = torch.randn(rows, tree.size, vocabulary), torch.arange(rows)
    sample = Sampling.sample
    monkeypatch.setattr(Sampling, "sample", lambda self, *of: drawn.append(len(of[0])) or sample(self, *of))

    def accept(some: slice):
        tokens = torch.zeros(rows, 1, dtype=torch.long)[some]
        sampler = TargetSampler(
            Sampling(temperature=1.0), vocabulary, tokens, torch.ones_like(root[some]), range(rows)[some]
        )
        return sampler.accept(tree.of_rows(some), SlotLogits.of(logits[some]), root[some], "target-only")

    together = accept(slice(None))
    assert drawn == [int((together.length >= level).sum()) for level in range(len(drawn))]
    assert together.length.unique().tolist() == [0, 1, 2, 3]
    for row in range(rows):
        alone = accept(slice(row, row + 1))
        path = together.slots[row, : together.length[row] + 1]
        assert alone.slots[0].tolist() == path.tolist()
        assert alone.bonus[0] == together.bonus[row]


@pytest.mark.parametrize("rows", [1, 5, 70])
def test_padded_sums_are_the_sums(rows: int) -> None:
    ascending = torch.randn(rows, 13, dtype=torch.float64).sort().values
    ascending[0, :4] = float("-inf")
    exact = ascending.softmax(-1).cumsum(-1)
    assert_within(padded_sums(ascending), exact, growth(40, torch.float64) * exact)
