"""Replayed runs are live runs: the same Steps, from a text that was written once."""

import pytest
import torch

from c2t.costs.statistics import Trace, total
from c2t.decoding import Step, cut
from c2t.policies import C2T, Eagle2, Plain
from c2t.replay.lockstep import replay, write_continuations
from c2t.sampling import Sampling
from tests.marks import slow_except
from tests.rounding import assert_same_column, assert_same_network
from tests.toys import PROMPTS, run, toy_classifier, toy_drafts, toy_target

POLICIES = {
    "full": (Eagle2(K=3, levels=4, N=None, M=10), 4),
    "eagle2": (Eagle2(K=4, levels=3, N=10), 3),
    "c2t": (C2T(toy_classifier(), beta=0.25, K=4, W=4, levels=5), 5),
}
SAMPLINGS = {
    "T=0": Sampling(),
    "T=0.8": Sampling(temperature=0.8, seed=3),
    "processors": Sampling(temperature=0.8, top_k=12, repetition_penalty=1.3, seed=4),
}
NEW = 16


def assert_same(live: list[Step], replayed: list[Step]) -> None:
    assert len(live) == len(replayed)
    for one, other in zip(live, replayed, strict=True):
        for name in ("rows", "position", "count", "draft_passes"):
            assert getattr(one, name).equal(getattr(other, name)), name
        real = torch.arange(one.tokens.shape[1]) < one.count[:, None]
        assert one.tokens[real].equal(other.tokens[real])
        assert (one.tree is None) == (other.tree is None)
        if one.tree is None:
            continue
        assert one.accepted.slots.equal(other.accepted.slots)
        assert one.accepted.length.equal(other.accepted.length)
        assert one.accepted.bonus.equal(other.accepted.bonus)
        assert one.tree.capped.equal(other.tree.capped)
        for name, column in one.tree.columns().items():
            assert_same_column(column, other.tree.columns()[name], name)


@pytest.mark.parametrize("sampling", slow_except(SAMPLINGS, "processors"))
@pytest.mark.parametrize("draft", ["eagle", "perturbed"])
@pytest.mark.parametrize("policy", slow_except(POLICIES, "c2t"))
def test_replay_is_the_live_run(policy: str, draft: str, sampling: str) -> None:
    tree, levels = POLICIES[policy]
    drafter, chosen = toy_drafts()[draft], SAMPLINGS[sampling]
    free, _ = run(toy_target(), None, Plain(), PROMPTS, chosen, new=NEW)
    ends_early = frozenset({free[0][6], free[2][0], free[3][12]})
    for eos in (frozenset(), ends_early) if draft == "eagle" else (ends_early,):
        text, live = run(toy_target(), drafter, tree, PROMPTS, chosen, new=NEW, eos=eos)
        texts = write_continuations(
            toy_target(), PROMPTS, max_new_tokens=NEW, beyond=levels + 1, sampling=chosen, eos=eos
        )
        replayed = list(replay(drafter, tree, texts, seed=chosen.seed, temperature=chosen.temperature))
        assert_same(live, replayed)
        assert any(len(tokens) < NEW for tokens in text) == bool(eos)

        ends = [written.end - written.prompt for written in texts]
        assert ends == [len(tokens) for tokens in text]
        traces = [Trace(len(PROMPTS)), Trace(len(PROMPTS))]
        for trace, steps in zip(traces, (live, replayed), strict=True):
            for step in steps:
                trace.add(step)
            assert trace.finish(ends) == text
        assert traces[0].statistics == traces[1].statistics
        for one in (*traces[1].statistics, total(traces[1].statistics)):
            assert one.new_tokens == one.prompts + sum(a + 1 for a in one.accepted) - one.cut


@torch.no_grad()
def test_written_texts_are_the_targets_with_its_features() -> None:
    sampling = Sampling(temperature=0.8, seed=5)
    free, _ = run(toy_target(), None, Plain(), PROMPTS, sampling, new=30)
    eos = frozenset({free[1][7]})
    texts = write_continuations(
        toy_target(), PROMPTS, max_new_tokens=20, beyond=6, sampling=sampling, eos=eos, sequences=[0, 1, 2, 3]
    )
    for prompt, plain, text in zip(PROMPTS, free, texts, strict=True):
        end = len(cut(plain, 20, eos))
        assert text.prompt == len(prompt)
        assert text.end == len(prompt) + end
        assert text.tokens.tolist() == prompt + plain[: end + 6]
        states = toy_target().model(text.tokens[None], output_hidden_states=True).hidden_states[-1][0]
        assert_same_network(text.features, states[:-1])
    assert [text.end - text.prompt for text in texts][1] <= 8


def test_the_last_tree_is_judged_in_full() -> None:
    """The text goes on far enough past its end: a draft that is always right is always accepted in full."""
    levels = 5
    policy = Eagle2(K=1, levels=levels, N=None)
    texts = write_continuations(toy_target(), PROMPTS, max_new_tokens=9, beyond=levels + 1, sampling=Sampling())
    steps = list(replay(toy_drafts()["same"], policy, texts))
    assert all(set(step.accepted.length.tolist()) == {levels} for step in steps[1:])


@pytest.mark.parametrize("new", [1, 2])
def test_shortest_texts(new: int) -> None:
    policy, levels = POLICIES["eagle2"]
    drafter = toy_drafts()["perturbed"]
    _, live = run(toy_target(), drafter, policy, PROMPTS, new=new)
    texts = write_continuations(toy_target(), PROMPTS, max_new_tokens=new, beyond=levels + 1, sampling=Sampling())
    replayed = list(replay(drafter, policy, texts))
    assert len(replayed) == new
    assert_same(live, replayed)
