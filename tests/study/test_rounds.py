"""Replay and real decoding ask the models for the same rounds, alone and in a batch."""

from dataclasses import replace

import pytest
import torch

from c2t.caches.ragged import Ragged
from c2t.classifier import TreeClassifier
from c2t.costs.statistics import total
from c2t.models.drafts.session import DraftSession
from c2t.models.drafts.uniform import UniformDraft
from c2t.models.loading.load import Pair
from c2t.models.wrappers.ngrams import NgramDraft
from c2t.policies import C2T, Budget, Chain, Eagle2, Plain
from c2t.replay.lockstep import Continuation
from c2t.sampling import Sampling
from c2t.study.evaluate import continuations, evaluate
from c2t.study.rounds import RECORD, Round, by_prompt, replayed, together
from c2t.verification.target_verifier import generate
from tests.every_policy import toy_costs
from tests.small_pair import TURNS

NEW, SAMPLING = 16, Sampling(0.8, seed=2)
POLICIES = [Plain(), Chain(2), Eagle2(K=4, levels=3, N=12), C2T(TreeClassifier(), beta=0.45, K=4, W=4, levels=5)]


@pytest.fixture(scope="module")
def ids(small_pair: Pair) -> list[list[int]]:
    return [small_pair.tokenizer(turn).input_ids for turn in TURNS[:6]]


@pytest.fixture(scope="module")
def texts(small_pair: Pair, ids: list[list[int]]) -> list[Continuation]:
    return continuations(small_pair, ids, NEW, max(policy.levels for policy in POLICIES), SAMPLING)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_rounds_are_those_of_the_evaluation(small_pair: Pair, ids: list, texts: list[Continuation], policy) -> None:
    expected = total(evaluate(small_pair, policy, ids, max_new_tokens=NEW, sampling=SAMPLING, texts=texts))
    alone = replayed(small_pair, policy, texts, SAMPLING.seed, temperature=SAMPLING.temperature)
    rounds = [round for prompt in alone for round in prompt]
    assert [round.verified for round in rounds] == expected.verified
    assert [round.accepted for round in rounds] == expected.accepted
    assert [len(round.widths) for round in rounds] == expected.passes
    assert len(ids) + sum(round.new for round in rounds) == expected.new_tokens
    for prompt in alone:  # the first forward of a round takes in what the round before accepted, and the bonus token
        observed = [round.widths[0] for round in prompt[1:] if round.widths]
        assert observed == [round.accepted + 1 for round in prompt[:-1]][: len(observed)]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_live_batch_takes_the_replayed_rounds_together(
    small_pair: Pair, texts: list[Continuation], policy, batch: int
) -> None:
    alone = replayed(small_pair, policy, texts, SAMPLING.seed, temperature=SAMPLING.temperature)
    assert played(small_pair, policy, texts[3 : 3 + batch]) == together(alone[3 : 3 + batch])


def played(pair: Pair, policy, texts: list[Continuation]) -> list[Round]:
    """The rounds of texts 3, 4, ... as one live batch, to the ends that they have."""
    ends = [text.end - text.prompt for text in texts]
    steps = generate(
        pair.target,
        pair.draft,
        policy,
        [text.tokens[: text.prompt].tolist() for text in texts],
        max_new_tokens=ends,
        sampling=SAMPLING,
        sequences=range(3, 3 + len(texts)),
        record=RECORD,
    )
    return together(by_prompt(steps, ends))


@pytest.mark.parametrize("nodes", [None, 9])
def test_a_live_batch_with_a_budget_takes_the_rounds_replayed_in_that_batch(
    small_pair: Pair, texts: list[Continuation], nodes: int | None
) -> None:
    policy = Budget(POLICIES[2], nodes, toy_costs(3, per_level=0.01))
    found = replayed(small_pair, policy, texts, SAMPLING.seed, 3, SAMPLING.temperature)
    assert played(small_pair, policy, texts[3:]) == together(found[3:])
    alone = replayed(small_pair, policy, texts, SAMPLING.seed, 1, SAMPLING.temperature)
    assert [round.verified for round in found[3]] != [round.verified for round in alone[3]], "or nothing was shared"


def test_widths_are_what_the_draft_forwards(
    small_pair: Pair, texts: list[Continuation], monkeypatch: pytest.MonkeyPatch
) -> None:
    forwarded: list[int] = []
    rows = DraftSession._rows

    def count(session: DraftSession, hidden: torch.Tensor, real: Ragged):
        forwarded.append(hidden.shape[1])
        return rows(session, hidden, real)

    monkeypatch.setattr(DraftSession, "_rows", count)
    [prompt] = replayed(small_pair, POLICIES[2], texts[:1], SAMPLING.seed, temperature=SAMPLING.temperature)
    levels = [width for round in prompt for width in (1, *round.widths[1:])]
    assert forwarded == levels  # the root's row is read off the forward that took in the accepted tokens


def test_a_draft_without_a_model_has_levels_too(small_pair: Pair, ids: list) -> None:
    """It makes no forward, but a level of it takes time, as a draft's does; plain rounds have none."""
    draft = NgramDraft(UniformDraft(small_pair.target.config.vocab_size, torch.float64))
    repeating = [[*prompt, *prompt, *prompt] for prompt in ids[:2]]
    pair = replace(small_pair, draft=draft)
    texts = continuations(pair, repeating, NEW, 3, SAMPLING)
    rounds = [one for prompt in replayed(pair, POLICIES[2], texts, SAMPLING.seed) for one in prompt]
    assert all(len(one.widths) == 3 for one in rounds)
    plain = [one for prompt in replayed(pair, Plain(), texts, SAMPLING.seed) for one in prompt]
    assert all(one.widths == () for one in plain)


def test_together_trees_and_levels_add_up() -> None:
    first = [Round(1, 5, (2, 4), 1, 2), Round(1, 3, (1,), 0, 1)]
    second = [Round(1, 2, (3,), 0, 1)]
    assert together([first, second]) == [Round(2, 7, (5, 4), 1, 3), Round(1, 3, (1,), 0, 1)]
