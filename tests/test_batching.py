"""Requests that come and go: each text is what it would be alone, limits hold, and the order is fair."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from c2t import batching
from c2t.batching import BatchDecoder, Full, Refused, Request, Update
from c2t.decoder import SpeculativeDecoder
from c2t.decoding import cut
from c2t.errors import InputError
from c2t.models.loading.load import Pair
from c2t.models.wrappers.ngrams import NgramDraft
from c2t.policies import C2T, Budget, Eagle2, JointThreshold, MCSDPlus, Plain, SpecInfer
from c2t.sampling import Sampling
from c2t.verification.target_verifier import TargetVerifier
from tests.every_policy import toy_costs
from tests.marks import slow_except
from tests.toys import PROMPTS, VOCABULARY, run, toy_classifier, toy_drafts, toy_target, toy_tokenizer

NEW = 12  # most new tokens of a request
COUNTED = {"repetition_penalty": 1.3, "frequency_penalty": 1.1, "presence_penalty": -0.3, "logit_bias": {7: 1.5}}
SAMPLINGS = [Sampling(), Sampling(1.0, seed=4), Sampling(0.8, top_k=12, top_p=0.9, **COUNTED)]
POLICIES = {
    "plain": Plain(),
    "eagle2": Eagle2(K=3, levels=3, N=8),
    "threshold": JointThreshold(0.05, K=3, W=4, levels=4),
    "c2t": C2T(toy_classifier(), beta=0.25, K=3, W=3, levels=4),
    "budget": Budget(Eagle2(K=3, levels=3, N=None), nodes=7),
    "budget by costs": Budget(Eagle2(K=3, levels=3, N=None), costs=toy_costs(3)),
    "specinfer": SpecInfer((2, 2, 1)),
    "eagle2 and ngrams": Eagle2(K=3, levels=3, N=8),
    "specinfer and ngrams": SpecInfer((2, 2, 1)),
}


def pair_of(name: str) -> Pair:
    draft = toy_drafts()["perturbed"]
    if "ngrams" in name:
        draft = NgramDraft(draft, 2.0)
    return Pair("toy", toy_target(), draft, toy_tokenizer(), "", {})


def decoder_of(name: str = "eagle2", **limits) -> BatchDecoder:
    return BatchDecoder(pair_of(name), POLICIES[name], **limits)


@cache
def alone(name: str, prompt: int, sampling: int) -> list[int]:
    """What the policy writes for one prompt by itself; under target-only, plain decoding's text."""
    if POLICIES[name].proposal == "ranked":
        name = "plain"
    one = [PROMPTS[prompt]], SAMPLINGS[sampling]
    return run(toy_target(), pair_of(name).draft, POLICIES[name], *one, new=NEW, sequences=[prompt])[0][0]


REQUEST = st.fixed_dictionaries(
    {
        "at": st.integers(0, 4),  # step before which it arrives
        "prompt": st.integers(0, len(PROMPTS) - 1),  # also the number of its random stream
        "sampling": st.integers(0, len(SAMPLINGS) - 1),
        "new": st.sampled_from([1, 5, NEW, NEW]),
        "eos": st.sampled_from([frozenset(), frozenset({7, 30}), frozenset(range(0, VOCABULARY, 8))]),
        "cancel": st.sampled_from([None, None, None, 0, 1, 3]),  # steps after its arrival
    }
)


@pytest.mark.parametrize("name", slow_except(POLICIES, "eagle2"))
@settings(max_examples=6, deadline=None)
@given(
    plans=st.lists(REQUEST, min_size=3, max_size=7).map(lambda plans: sorted(plans, key=lambda plan: plan["at"])),
    max_rows=st.integers(2, 4),
    max_tokens=st.sampled_from([40, 1000]),
)
def test_every_text_is_what_it_would_be_alone(name: str, plans: list[dict], max_rows: int, max_tokens: int) -> None:
    decoder = decoder_of(name, max_rows=max_rows, max_tokens=max_tokens)
    requests: list[Request] = []
    said: dict[Request, list[int]] = {}
    began: list[Request] = []
    moment = 0
    while moment <= 10 or decoder.waiting or decoder.running:
        for plan in plans[len(requests) :]:
            if plan["at"] > moment:
                break
            settings = SAMPLINGS[plan["sampling"]], plan["prompt"], plan["eos"]
            requests.append(decoder.submit(PROMPTS[plan["prompt"]], plan["new"], *settings))
        for plan, request in zip(plans, requests, strict=False):
            if plan["cancel"] is not None and plan["at"] + plan["cancel"] == moment:
                decoder.cancel(request)
        for request, tokens, finish in decoder.step():
            assert tokens
            began += [] if request in said else [request]
            said.setdefault(request, []).extend(tokens)
            assert said[request] == request.tokens
            assert finish == request.finish
        assert decoder.running <= max_rows
        assert decoder.tokens_in_use <= max_tokens
        moment += 1
        assert moment < 150
    assert began == [request for request in requests if request in said]  # first come, first served
    for plan, request in zip(plans, requests, strict=True):
        text = cut(alone(name, plan["prompt"], plan["sampling"]), plan["new"], plan["eos"])
        if request.finish == "cancelled":
            assert request.tokens == text[: len(request.tokens)]
            assert len(request.tokens) < len(text)
        else:
            assert request.tokens == text
            assert request.finish == ("stop" if text[-1] in plan["eos"] else "length")
        counts = request.statistics
        assert counts.new_tokens == len(request.tokens)
        assert counts.new_tokens + counts.cut == bool(request in said) + sum(count + 1 for count in counts.accepted)
    assert len(requests) == len(plans)
    assert decoder.tokens_in_use == 0


def finish(decoder: BatchDecoder) -> list[list[Update]]:
    steps = []
    while news := decoder.step():
        steps.append(news)
    return steps


def test_all_that_run_share_one_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of three settings, one of which comes later, cost one forward a round, and one for each arrival."""
    rows: list[int] = []
    forward = type(toy_target()).forward_rows

    def counted(self, tokens, positions, sees, batch, *others):
        rows.append(len(batch.sizes))
        return forward(self, tokens, positions, sees, batch, *others)

    monkeypatch.setattr(type(toy_target()), "forward_rows", counted)
    decoder = decoder_of("plain")
    for number, sampling in enumerate(SAMPLINGS):
        decoder.submit(PROMPTS[number], 4, sampling)
    decoder.step()
    decoder.submit(PROMPTS[3], 4)
    decoder.step()
    assert rows == [3, 3, 1, 4]


def test_a_cancelled_request_frees_its_row_before_the_next_round() -> None:
    decoder = decoder_of(max_rows=1)
    first, second, third = (decoder.submit(prompt, NEW) for prompt in PROMPTS[:3])
    assert [news.request for news in decoder.step()] == [first]
    decoder.cancel(first)
    decoder.cancel(second)
    assert (decoder.waiting, decoder.running) == (1, 1)
    written = list(first.tokens)
    assert [news.request for news in decoder.step()] == [third]
    assert (first.finish, second.finish) == ("cancelled", "cancelled")
    assert (first.tokens, second.tokens) == (written, [])
    finish(decoder)
    decoder.cancel(third)  # too late
    assert third.finish == "length"


def test_a_request_cancelled_during_a_step_says_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """By another thread, as a server does."""
    decoder = decoder_of()
    first, second = (decoder.submit(prompt, NEW) for prompt in PROMPTS[:2])
    decoder.step()
    written = list(first.tokens)

    def speculate(*parts):
        decoder.cancel(first)
        return whole(*parts)

    whole = batching.speculate
    monkeypatch.setattr(batching, "speculate", speculate)
    assert [news.request for news in decoder.step()] == [second]
    assert first.tokens == written


def test_statistics_that_another_thread_reads_do_not_change() -> None:
    decoder = decoder_of()
    request = decoder.submit(PROMPTS[0], NEW)
    decoder.step()
    before, rounds = request.statistics, request.statistics.rounds
    decoder.step()
    assert (before.rounds, request.statistics.rounds) == (rounds, rounds + 1)


def test_the_first_in_the_queue_holds_back_what_would_fit() -> None:
    """Or a stream of short requests would keep a long one waiting for ever."""
    decoder = decoder_of("plain", max_tokens=30)
    running, long, short = (decoder.submit([1] * count, 5) for count in (10, 25, 1))
    decoder.step()
    assert (decoder.running, decoder.waiting, decoder.tokens_in_use) == (1, 2, 15)
    ends = [news.request for step in finish(decoder) for news in step if news.finish]
    assert ends == [running, long, short]


def test_a_round_that_fails_alone_ends_its_request_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_of(max_rows=1)
    first, second = (decoder.submit(prompt, NEW, sequence=number) for number, prompt in enumerate(PROMPTS[:2]))
    with monkeypatch.context() as broken:
        broken.setattr(batching, "speculate", raising(torch.OutOfMemoryError))
        assert [(news.request, news.tokens, news.finish) for news in decoder.step()] == [
            (first, first.tokens, "failed")
        ]
    assert isinstance(first.error, torch.OutOfMemoryError)
    assert (decoder.running, decoder.tokens_in_use) == (0, 0)
    finish(decoder)
    assert second.tokens == alone("plain", 1, 0)


@pytest.mark.parametrize(("name", "sampling"), [("eagle2", 2), ("eagle2 and ngrams", 1), ("budget", 1)])
def test_an_error_of_one_request_costs_no_other_its_text(
    name: str, sampling: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, played = decoder_of(name), BatchDecoder._run_round
    requests = [decoder.submit(prompt, NEW, SAMPLINGS[sampling], number) for number, prompt in enumerate(PROMPTS[:3])]
    later = decoder.submit(PROMPTS[3], NEW, SAMPLINGS[sampling], 3)

    def fail(self: BatchDecoder, arrived: list) -> None:
        played(self, arrived)
        if len(requests[1].tokens) > 2 and requests[1] in self._requests:
            raise ZeroDivisionError

    monkeypatch.setattr(BatchDecoder, "_run_round", fail)
    news = [each for step in finish(decoder) for each in step]
    assert [request.finish for request in (*requests, later)] == ["length", "failed", "length", "length"]
    assert isinstance(requests[1].error, ZeroDivisionError)
    for request, text in zip((*requests, later), (alone(name, number, sampling) for number in range(4)), strict=True):
        said = [token for each in news if each.request is request for token in each.tokens]
        assert said == request.tokens == text[: len(said)], "each token is told once"
        assert len(said) == NEW or request is requests[1]
    assert (decoder.running, decoder.waiting) == (0, 0)


def test_who_ran_alone_goes_on_where_the_last_suspect_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_of()
    ran, gone = (decoder.submit(prompt, NEW, sequence=number) for number, prompt in enumerate(PROMPTS[:2]))
    with monkeypatch.context() as broken:
        broken.setattr(batching, "speculate", raising(torch.OutOfMemoryError))
        decoder.step()
    assert [news.request for news in decoder.step()] == [ran]
    decoder.cancel(gone)
    finish(decoder)
    assert (ran.finish, ran.tokens) == ("length", alone("plain", 0, 0))
    assert (decoder.running, decoder.waiting) == (0, 0)


def test_rows_go_on_after_a_step_that_fails_while_it_drops_others(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_of(max_rows=2)
    gone, ran, waits = (decoder.submit(prompt, NEW, sequence=number) for number, prompt in enumerate(PROMPTS[:3]))
    decoder.step()
    decoder.cancel(gone)
    with monkeypatch.context() as broken:
        broken.setattr(TargetVerifier, "select", raising(torch.OutOfMemoryError))
        decoder.step()
    assert isinstance(decoder.failure, torch.OutOfMemoryError)
    assert (gone.finish, ran.finish, waits.finish) == ("cancelled", None, None)
    finish(decoder)
    assert (ran.tokens, waits.tokens) == (alone("plain", 1, 0), alone("plain", 2, 0))
    assert (decoder.running, decoder.waiting, decoder.tokens_in_use) == (0, 0, 0)


def raising(error: type[Exception]) -> Callable:
    def fail(*parts):
        raise error

    return fail


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 4), "an empty prompt"),
        (([VOCABULARY], 4), "outside the target's vocabulary 0..47"),
        (([1], 0), "max_new_tokens = 0 must be"),
        (([1], 4, Sampling(), 2**63), "must be at most 9223372036854775807"),
        (([1] * 200, 100), "200 tokens \\+ 100 new ones exceed the target's 256 positions"),
        (([1] * 50, 40), r"needs 93 tokens \(50 tokens \+ 40 new ones \+ 3 of a tree\), .* 90 \(max_tokens\)"),
    ],
)
def test_impossible_requests_are_refused(arguments: tuple, message: str) -> None:
    decoder = decoder_of(max_tokens=90)
    with pytest.raises(InputError, match=message) as refused:
        decoder.submit(*arguments)
    assert isinstance(refused.value, Refused) == ("max_tokens" in message)
    assert not decoder.waiting


def test_too_many_waiting_are_told_to_come_again() -> None:
    decoder = decoder_of(max_waiting=2)
    for prompt in PROMPTS[:2]:
        decoder.submit(prompt, 4)
    with pytest.raises(Full, match="2 requests are waiting, the limit is 2"):
        decoder.submit([1], 4)
    decoder.step()
    decoder.submit([1], 4)


def test_impossible_decoders_are_refused() -> None:
    with pytest.raises(InputError, match="max_rows = 0 must be at least 1"):
        decoder_of(max_rows=0)
    with pytest.raises(InputError, match="MCSDPlus decodes fixed batches only"):
        BatchDecoder(pair_of("eagle2"), MCSDPlus(W=2, D=1))
    with pytest.raises(InputError, match="residual rule would change the text's law"):
        decoder_of(rule="residual")


def test_a_stream_writes_what_generate_writes() -> None:
    """Of prompts that are taken from an iterator only when a row is free."""
    decoder = SpeculativeDecoder(pair_of("eagle2"), POLICIES["eagle2"])
    whole = decoder.generate(PROMPTS, NEW, temperature=1.0, seed=2)
    taken: list[int] = []

    def coming():
        for number, prompt in enumerate(PROMPTS):
            taken.append(number)
            yield prompt

    texts: list[list[int]] = [[] for _ in PROMPTS]
    for count, (number, tokens) in enumerate(decoder.stream(coming(), NEW, temperature=1.0, seed=2, max_rows=2)):
        assert count or taken == [0, 1]
        texts[number] += tokens
    assert texts == whole.sequences
    together: list[list[int]] = [[] for _ in PROMPTS]
    for number, tokens in decoder.stream(PROMPTS, NEW, temperature=1.0, seed=2):
        together[number] += tokens
    assert together == texts


def test_a_stream_refuses_what_generate_refuses() -> None:
    decoder = SpeculativeDecoder(pair_of("eagle2"), POLICIES["eagle2"])
    with pytest.raises(InputError, match="an empty prompt"):
        decoder.stream([[1], []])
    with pytest.raises(InputError, match="max_new_tokens = 0"):
        decoder.stream([[1]], 0)
    decoder.graph_tokens = 8
    with pytest.raises(InputError, match="stream does not use CUDA graphs"):
        decoder.stream([[1]])


def test_a_budget_that_never_drafts_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a fixed batch, and among requests: their rounds are plain decoding's."""

    def asked(*_: object) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(Eagle2, "__call__", asked)
    costs = toy_costs(2, per_level=0.5)
    never, pair = Budget(Eagle2(K=3, levels=2, N=8), costs=costs), pair_of("eagle2")
    batch = BatchDecoder(pair, never, max_rows=4)
    requests = [batch.submit(prompt, 6) for prompt in PROMPTS]
    while any(request.finish is None for request in requests):
        batch.step()
    plain, _ = run(pair.target, None, Plain(), PROMPTS, new=6)
    assert [request.tokens for request in requests] == plain
    assert run(pair.target, pair.draft, never, PROMPTS, new=6)[0] == plain
