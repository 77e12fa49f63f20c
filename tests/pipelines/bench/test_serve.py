"""The load test of the server: in short, and what it would notice."""

import os
from collections import Counter

import pytest

from c2t.decoder import SpeculativeDecoder
from c2t.models.loading.chat_templates import conversation
from c2t.models.loading.load import load_pair
from c2t.policies import Eagle2
from c2t.replay.prompts import default_prompts, read_prompts
from pipelines.bench.serve import Load, Planned, Seen, measure, miscounted, plan, texts_alone, wrong
from tests.rounding import mean_bound, within
from tests.serving.served import serving


@pytest.mark.slow
def test_thirty_requests() -> None:
    pair = load_pair("tiny")
    prompts = [one for file in default_prompts("tiny", "bench") for one in read_prompts(file)[:4]]
    ids = [conversation(pair.tokenizer, "", one.turns[:1]) for one in prompts]
    requests = plan(ids, 30, 24, rate=50, cancelled=0.1, malformed=0.2, seed=1)
    load = Load("tiny", requests, 16, list(texts_alone(pair, requests)))
    with serving(SpeculativeDecoder(pair, Eagle2(K=3, levels=3, N=8)), max_rows=16) as server:
        figures, problems = measure(server.address, os.getpid(), load)
    assert problems == []
    assert figures["texts_compared"] == 21
    assert figures["outcomes"]["refused"] == 6
    assert sum(figures["outcomes"].values()) == 30
    assert 0 < figures["first_token"]["p50"] <= figures["first_token"]["p99"]
    assert 0 < figures["per_token"]["p50"] <= figures["per_token"]["p99"]
    assert figures["gamma"] == 8
    assert min(figures["memory"]) > 0


def test_a_plan_has_its_shares_and_is_the_same_for_every_policy() -> None:
    requests = plan([[1], [2, 3]], 200, 64, rate=4, cancelled=0.1, malformed=0.05, seed=0)
    assert requests == plan([[1], [2, 3]], 200, 64, rate=4, cancelled=0.1, malformed=0.05, seed=0)
    assert sum(one.pieces is not None for one in requests) == 20
    assert sum(one.malformed is not None for one in requests) == 10
    assert len({one.seed for one in requests}) == 200
    assert {one.temperature for one in requests} == {0.0, 1.0}
    assert 4 <= min(one.new_tokens for one in requests) < max(one.new_tokens for one in requests) <= 64
    # the deviation of exponential times is their mean
    assert sum(one.after for one in requests) / 200 == within(1 / 4, mean_bound(1 / 4, 200))


def test_what_is_wrong_is_noticed() -> None:
    whole = Planned(0.0, [1], 4, 0.0, 0)
    gone, bad = whole._replace(pieces=1), whole._replace(malformed=(b"{", 400))
    load = Load("tiny", [whole, gone, bad], 16, ["text", "", ""])
    right = [Seen("length", "text"), Seen("cancelled"), Seen("refused")]
    assert list(wrong(right, load)) == []
    assert list(wrong([Seen("length", "test"), *right[1:]], load)) == ["request 0: 'test' instead of 'text'"]
    assert list(wrong([Seen("status 500"), *right[1:]], load)) == ["request 0: status 500 instead of stop or length"]
    assert len(list(wrong([right[0], Seen("ReadTimeout"), Seen("status 200")], load))) == 2


def test_what_is_miscounted_is_noticed() -> None:
    seen = Counter({"stop": 2, "cancelled": 1, "refused": 1})
    counted = {"stop": 2.0, "length": 0.0, "cancelled": 1.0, "refused": 1.0, "full": 0.0, "failed": 0.0}
    idle = {"c2t_requests_running": 0.0, "c2t_requests_waiting": 0.0}
    assert list(miscounted(seen, counted, idle)) == []
    assert list(miscounted(seen, counted | {"stop": 3.0, "cancelled": 0.0}, idle)) == [], "it ended as its client left"
    assert list(miscounted(seen, counted | {"stop": 1.0}, idle))
    assert list(miscounted(seen, counted | {"stop": 1.0, "failed": 1.0}, idle))
    assert list(miscounted(seen, counted, idle | {"c2t_requests_running": 1.0}))
