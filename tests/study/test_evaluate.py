"""Replayed and live counts are the same; loops are found."""

import pytest

from c2t.costs.statistics import total
from c2t.models.loading.load import Pair
from c2t.policies import C2T, Budget, Eagle2, Plain
from c2t.replay.prompts import Prompt
from c2t.sampling import Sampling
from c2t.study.evaluate import BATCH, continuations, encode, evaluate, loops, share_of_loops
from tests.small_pair import TURNS
from tests.toys import toy_classifier

NEW = 20
POLICIES = [
    Plain(),
    Eagle2(K=4, levels=3, N=12),
    Budget(Eagle2(K=4, levels=3, N=None), nodes=90),
    C2T(toy_classifier(), beta=0.25, K=4, W=4, levels=5),
]


def ids_of(pair: Pair) -> list[list[int]]:
    assert len(TURNS) > BATCH, "more than one batch"
    return [pair.tokenizer(turn).input_ids for turn in TURNS]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_replay_counts_what_live_runs_count(small_pair: Pair, temperature: float) -> None:
    sampling, ids = Sampling(temperature, seed=3), ids_of(small_pair)
    texts = continuations(small_pair, ids, NEW, max(policy.levels for policy in POLICIES), sampling)
    for policy in POLICIES:
        live = evaluate(small_pair, policy, ids, max_new_tokens=NEW, sampling=sampling, live=True)
        shared = evaluate(small_pair, policy, ids, max_new_tokens=NEW, sampling=sampling, texts=texts)
        assert live == shared
        for one in live:
            assert 1 + sum(one.accepted) + one.rounds - one.cut == one.new_tokens <= NEW
    assert total(live).tau > 0
    assert live == evaluate(small_pair, policy, ids, max_new_tokens=NEW, sampling=sampling), "with texts of its own"


def test_progress_counts_prompts(small_pair: Pair) -> None:
    seen: list[int] = []
    evaluate(small_pair, Plain(), ids_of(small_pair), max_new_tokens=2, sampling=Sampling(), progress=seen.append)
    assert seen == [BATCH, len(TURNS)]


def test_later_turns_use_the_targets_answers(small_pair: Pair) -> None:
    prompts = [Prompt(0, "", ["def add(a, b):", "The sum"], "f"), Prompt(1, "", ["a number"], "f")]
    encoded = encode(small_pair, prompts, 5, Sampling())
    [text, *_] = continuations(small_pair, encoded.ids[:1], 5, 0, Sampling())
    answer = small_pair.tokenizer.decode(text.tokens[text.prompt : text.end], skip_special_tokens=True)
    assert small_pair.tokenizer.decode(encoded.ids[2]) == f"def add(a, b):{answer}\nThe sum"


def test_loops() -> None:
    assert loops([7] * 32)
    assert loops([1, 2, 3, 4, *[5, 6, 7] * 11])
    assert loops(list(range(16)) * 2)
    assert not loops(list(range(17)) * 2)
    assert not loops([7] * 31)
    assert not loops([*[7] * 40, 8])


def test_share_of_loops(small_pair: Pair) -> None:
    ids = ids_of(small_pair)[:4]
    greedy = share_of_loops(continuations(small_pair, ids, 60, 0, Sampling()))
    sampled = share_of_loops(continuations(small_pair, ids, 60, 0, Sampling(1.0)))
    assert greedy > 0 == sampled
