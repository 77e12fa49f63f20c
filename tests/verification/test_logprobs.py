"""Log-probabilities of a text's tokens: the stock model's, and with every tree those of plain decoding, bit for bit."""

from collections.abc import Iterator

import pytest
import torch

from c2t import batching
from c2t.batching import BatchDecoder, Request
from c2t.caches.ragged import SlotLogits
from c2t.decoder import SpeculativeDecoder
from c2t.errors import InputError
from c2t.models.loading.load import Pair, load_pair
from c2t.models.target.prefixes import Prefixes
from c2t.policies import DySpec, Eagle2, Hierarchical, JointThreshold, Plain
from c2t.sampling import Sampling
from c2t.verification.logprobs import AT_ONCE, MOST, TokenLogprob, of_path, scored
from tests.rounding import assert_same_network, assert_within, log_prob_bound
from tests.table_constraint import TableConstraint, follows
from tests.toys import PROMPTS, VOCABULARY, toy_drafts, toy_target, toy_tokenizer

POLICIES = [Eagle2(K=3, levels=3, N=8), JointThreshold(0.05, K=3, W=4, levels=4), DySpec(N=8, K=3)]
NEW = 12


@pytest.fixture(scope="module")
def tiny() -> Pair:
    return load_pair("tiny")


@pytest.fixture(scope="module")
def toy() -> Pair:
    return Pair("toy", toy_target(), toy_drafts()["perturbed"], toy_tokenizer(), "", {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_they_are_the_log_softmax_and_the_largest_of_it(dtype: torch.dtype) -> None:
    logits, tokens = (torch.randn(5, 400) * 4).to(dtype), torch.randint(0, 400, (5,))
    tokens[0] = logits[0].argmax()
    exact = logits.double().log_softmax(-1)
    bound = log_prob_bound(logits, torch.float64 if dtype == torch.float64 else torch.float32)
    for row, (value, count) in enumerate(
        zip(scored(logits, tokens, [3, 0, 20, 1, 20]), [3, 0, 20, 1, 20], strict=True)
    ):
        assert value.token == tokens[row]
        assert_within([value.logprob], exact[row, tokens[row], None], bound)
        ids, values = [token for token, _ in value.top], [logprob for _, logprob in value.top]
        assert len(ids) == count
        assert_within(values, exact[row].sort(descending=True).values[:count], bound)
        assert_within(values, exact[row, ids], bound)
        assert dict(value.top).get(value.token, value.logprob) == value.logprob, "a token has one log-probability"


def test_rows_that_ask_for_none_have_none() -> None:
    logits = SlotLogits.of(torch.randn(3, 4, 20))
    slots, tokens = torch.tensor([[0, 2, -1], [0, -1, -1], [0, 1, 3]]), torch.randint(0, 20, (3, 3))
    found = of_path(logits, slots, tokens, [2, None, 0])
    assert [len(row) for row in found] == [2, 0, 3]
    assert [value.token for value in found[0] + found[2]] == [*tokens[0, :2].tolist(), *tokens[2].tolist()]
    assert [len(value.top) for row in found for value in row] == [2, 2, 0, 0, 0]


def test_logits_of_nan_are_refused() -> None:
    with pytest.raises(InputError, match="the target's logits contain NaN"):
        scored(torch.tensor([[0.0, float("nan")]]), torch.tensor([0]), [1])


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_trees_have_those_of_plain_decoding_bit_for_bit(tiny: Pair, temperature: float) -> None:
    """Also where settings that change the text have no part in them."""
    if tiny.target.packed is None:
        pytest.skip("bits are promised for the packed form")
    prompts = ["def add(a, b):", "The sum of"]
    settings = {"max_new_tokens": NEW, "temperature": temperature, "seed": 2, "chat": False, "logit_bias": {5: -3.0}}
    plain = SpeculativeDecoder(tiny, Plain()).generate(prompts, **settings, frequency_penalty=0.4, logprobs=4)
    assert [len(row) for row in plain.logprobs] == [len(row) for row in plain.sequences]
    for policy in POLICIES:
        rule = "target-only" if policy.proposal == "sampled" else None
        more = {"rule": rule, "frequency_penalty": 0.4, "logprobs": 4}
        found = SpeculativeDecoder(tiny, policy).generate(prompts, **settings, **more)
        assert (found.sequences, found.logprobs) == (plain.sequences, plain.logprobs)
        assert found.total.accepted_tokens > 0
    batch, [ids] = BatchDecoder(tiny, POLICIES[0]), SpeculativeDecoder(tiny, Plain()).encode(prompts[0], chat=False)
    again = batch.submit(ids + plain.sequences[0], 0, prompt_logprobs=4)
    batch.step()
    assert again.prompt_logprobs[len(ids) :] == plain.logprobs[0], "nor does it matter when a text is scored"
    assert SpeculativeDecoder(tiny, Plain()).generate(prompts, **settings).logprobs is None


def stock(prompt: list[int], text: list[int]) -> torch.Tensor:
    """Log-probabilities of the tokens after each one but the last, by the stock model."""
    with torch.no_grad():
        return toy_target().model(torch.tensor([prompt + text])).logits[0, :-1].log_softmax(-1)


def check(values: list[TokenLogprob], exact: torch.Tensor, tokens: list[int], count: int) -> None:
    assert [value.token for value in values] == tokens
    chosen = torch.tensor([value.logprob for value in values], dtype=torch.float64)
    assert_same_network(chosen, exact[torch.arange(len(tokens)), tokens])
    if count:
        top = torch.tensor([[logprob for _, logprob in value.top] for value in values], dtype=torch.float64)
        assert_same_network(top.view(-1, count), exact.topk(count).values)
    assert all(len(value.top) == count for value in values)


def finish(decoder: BatchDecoder) -> Iterator[Request]:
    while updates := decoder.step():
        yield from (update.request for update in updates if update.finish)


@pytest.mark.parametrize("policy", [Plain(), POLICIES[0]], ids=["plain", "eagle2"])
def test_requests_of_a_batch_have_what_each_asked_for(toy: Pair, policy) -> None:
    decoder = BatchDecoder(toy, policy, max_rows=3)
    asked: list[dict[str, int]] = [{"logprobs": 3}, {}, {"logprobs": 0, "prompt_logprobs": 2}, {"prompt_logprobs": 0}]
    warm = Sampling(0.9, seed=3, presence_penalty=0.5)
    requests = [
        decoder.submit(prompt, NEW, warm, number, **more)
        for number, (prompt, more) in enumerate(zip(PROMPTS, asked, strict=False))
    ]
    assert len(list(finish(decoder))) == len(requests)
    for request, more in zip(requests, asked, strict=True):
        exact, start = stock(request.prompt, request.tokens), len(request.prompt) - 1
        if "logprobs" in more:
            check(request.logprobs, exact[start:], request.tokens, more["logprobs"])
        else:
            assert request.logprobs is None
        if "prompt_logprobs" in more:
            assert request.prompt_logprobs[0] == (request.prompt[0], None, ())
            check(request.prompt_logprobs[1:], exact[:start], request.prompt[1:], more["prompt_logprobs"])
        else:
            assert request.prompt_logprobs is None


def test_a_prompt_is_scored_without_new_tokens_and_in_parts(toy: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its logits are never in memory together."""
    rows: list[int] = []
    logits = type(toy.target.session()).logits
    monkeypatch.setattr(
        type(toy.target.session()), "logits", lambda self, states: rows.append(len(states)) or logits(self, states)
    )
    decoder = BatchDecoder(toy, POLICIES[0])
    prompt = [number * 7 % VOCABULARY for number in range(2 * AT_ONCE + 10)]
    request = decoder.submit(prompt, 0, prompt_logprobs=1)
    [update] = decoder.step()
    assert (update.tokens, update.finish, request.tokens) == ([], "length", [])
    check(request.prompt_logprobs[1:], stock(prompt, []), prompt[1:], 1)
    assert max(rows) <= AT_ONCE
    assert decoder.running == decoder.tokens_in_use == 0
    single = decoder.submit([5], 0, prompt_logprobs=1)
    decoder.step()
    assert single.prompt_logprobs == [(5, None, ())]


def test_a_cached_prompt_is_scored_in_full(tiny: Pair) -> None:
    tiny.target.prefixes = Prefixes()
    try:
        ids = tiny.tokenizer("def add(a, b):\n    return a + b").input_ids
        decoder, found = BatchDecoder(tiny, POLICIES[0]), []
        decoder.submit(ids, 2)
        decoder.step()
        for _ in range(2):
            request = decoder.submit(ids, 2, prompt_logprobs=1)
            other = decoder.submit(ids[:-2], 2)  # which takes what is cached
            list(finish(decoder))
            found.append(request.prompt_logprobs)
            assert (request.finish, other.finish) == ("length", "length")
        assert found[0] == found[1]
        assert len(found[0]) == len(ids)
    finally:
        tiny.target.prefixes = None


def test_they_go_on_after_a_round_that_failed(toy: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(decoder: BatchDecoder) -> list[Request]:
        return [decoder.submit(prompt, NEW, Sampling(), logprobs=2, prompt_logprobs=1) for prompt in PROMPTS[:2]]

    undisturbed, decoder = BatchDecoder(toy, POLICIES[0]), BatchDecoder(toy, POLICIES[0])
    expected, requests = ask(undisturbed), ask(decoder)
    list(finish(undisturbed))
    decoder.step()
    decoder.step()
    with monkeypatch.context() as broken:
        broken.setattr(batching, "speculate", lambda *_: 1 / 0)
        decoder.step()
    assert isinstance(decoder.failure, ZeroDivisionError)
    list(finish(decoder))
    for request, right in zip(requests, expected, strict=True):
        assert (request.tokens, request.finish) == (right.tokens, right.finish)
        assert request.prompt_logprobs == right.prompt_logprobs
        exact = stock(request.prompt, request.tokens)[len(request.prompt) - 1 :]
        check(request.logprobs, exact, request.tokens, 2)


def test_decoding_ahead_in_few_bits_asks_for_none(toy: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the rounds that are rolled back nothing is told."""
    monkeypatch.setitem(vars(toy.target), "quantized", toy.draft.model)
    decoder = SpeculativeDecoder(toy, Hierarchical(Eagle2(K=2, levels=2, N=4)))
    output = decoder.generate(PROMPTS[0], NEW, logprobs=1)
    check(output.logprobs[0], stock(PROMPTS[0], output.sequences[0])[len(PROMPTS[0]) - 1 :], output.sequences[0], 1)


def test_a_constraint_takes_nothing_from_them_and_takes_bias_and_penalties(toy: Pair) -> None:
    """They are of the target's own distribution, also of tokens that may not follow; the text is plain decoding's."""
    settings = {
        "frequency_penalty": 0.9,
        "logit_bias": {7: 3.0},
        "min_p": 0.01,
        "logprobs": 2,
        "temperature": 0.9,
        "seed": 3,
    }
    found = [
        SpeculativeDecoder(toy, policy).generate(PROMPTS, NEW, constraint=TableConstraint(), **settings)
        for policy in (Plain(), POLICIES[0])
    ]
    assert found[0].sequences == found[1].sequences
    outside = 0
    for prompt, text, values in zip(PROMPTS, found[1].sequences, found[1].logprobs, strict=True):
        assert follows(text, VOCABULARY)
        exact = stock(prompt, text)[len(prompt) - 1 :]
        check(values, exact, text, 2)
        outside += sum(int(row.argmax()) != token for row, token in zip(exact, text, strict=True))
    assert outside > 0


@pytest.mark.parametrize("count", [-1, MOST + 1, 10**30])
def test_numbers_out_of_range_are_refused(toy: Pair, count: int) -> None:
    decoder = BatchDecoder(toy, Plain())
    for name in ("logprobs", "prompt_logprobs"):
        with pytest.raises(InputError, match=f"{name} = .* must be at (least 0|most 20)"):
            decoder.submit([1], 4, **{name: count})
    with pytest.raises(InputError, match="max_new_tokens = 0 must be at least 1"):
        decoder.submit([1], 0, logprobs=1)
    with pytest.raises(InputError, match="logit_bias: token id 48 is outside the vocabulary"):
        decoder.submit([1], 4, Sampling(logit_bias={VOCABULARY: 1.0}))
