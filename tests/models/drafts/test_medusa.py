"""Medusa-style heads: the states of all depths, distributions that hang on the depth only, exact decoding."""

import pytest
import torch
from torch.nn import functional as F

from c2t.decoding import DraftModel
from c2t.models.loading.load import load_pair
from c2t.models.wrappers.ngrams import NgramDraft
from c2t.policies import MCSD, Eagle2, Plain
from c2t.protocols import Policy
from c2t.replay.every_position import replay_all
from c2t.replay.lockstep import replay, write_continuations
from c2t.replay.prompts import default_prompts, read_prompts
from c2t.sampling import Sampling
from c2t.verification.target_verifier import TargetModel, generate
from tests.replay.test_every_position import assert_same, visited
from tests.rounding import assert_same_network
from tests.test_law import chi_square, p_value
from tests.toys import PROMPTS, VOCABULARY, deep_pairs, emitted, observed, root_of, run

TARGET, DRAFT = deep_pairs()["medusa"]
HEADS = len(DRAFT.head.heads)


@torch.no_grad()
def test_each_depth_reads_the_layers_state_at_the_root() -> None:
    text, head = PROMPTS[1], DRAFT.head
    session, features = observed(DRAFT, TARGET, text)
    h = head(features, torch.tensor([text[1:]]))[0, -1]
    wanted = [h] + [h + F.silu(block.weight @ h + block.bias) for block in head.heads]
    tree = Eagle2(K=2, levels=HEADS + 2, N=None)(session, root_of(text[-1]))
    for depth in range(-1, HEADS + 2):
        slots = (tree.depth[0] == depth).nonzero()[:, 0][None]
        rows = session.expand(tree, slots)
        state = wanted[depth + 1] if depth < HEADS else torch.zeros_like(h)
        assert_same_network(rows.logits[0], (TARGET.lm_head.weight @ state).expand(slots.shape[1], -1))
        assert_same_network(rows.hidden[0], state.expand(slots.shape[1], -1))
        assert_same_network(rows.log_norm[0].exp(), rows.logits[0].exp().sum(-1, keepdim=True))
        tokens, log_probs = rows.top(3)
        assert tokens.equal(rows.logits.sort(descending=True, stable=True).indices[..., :3])
        assert_same_network(log_probs, rows.log_probs.gather(2, tokens))
        assert_same_network(rows.entropy(None), -(rows.log_probs.exp() * rows.log_probs).sum(-1))
    assert session.passes.tolist() == [1]


def test_greedy_text_is_the_targets_and_replay_its_rounds() -> None:
    assert_greedy_text_and_replay(TARGET, DRAFT, Eagle2(K=3, levels=3, N=10))


def test_the_head_of_tiny_guesses_further_than_its_layer() -> None:
    """Whose own guess is one token: with the blocks' two, rounds accept more."""
    pair = load_pair("tiny", draft="medusa", dtype=torch.float32)
    (file, *_) = default_prompts("tiny", "bench")
    prompts = [pair.tokenizer(prompt.turns[0]).input_ids for prompt in read_prompts(file)[:6]]
    plain, _ = run(pair.target, None, Plain(), prompts)
    texts, steps = run(pair.target, pair.draft, Eagle2(K=4, levels=3, N=20), prompts)
    assert texts == plain
    assert torch.cat([step.accepted.length for step in steps[1:]]).double().mean() > 1


def assert_greedy_text_and_replay(target: TargetModel, own: DraftModel, policy: Policy, new: int = 12) -> None:
    """Greedy text is the target's, a round costs one pass, and replays make the same rounds; also with n-grams."""
    plain, _ = run(target, None, Plain(), PROMPTS, new=new)
    written = write_continuations(target, PROMPTS, max_new_tokens=new, beyond=policy.levels + 1, sampling=Sampling())
    for draft in (own, NgramDraft(own)):
        texts, steps = run(target, draft, policy, PROMPTS, new=new)
        assert texts == plain
        assert len(set(torch.cat([step.accepted.length for step in steps[1:]]).tolist())) > 1
        assert all(set(step.draft_passes.tolist()) == {1} for step in steps[1:])
        replayed = list(replay(draft, policy, written))
        assert_same(steps, replayed)
        assert_same(replayed, visited(replay_all(draft, policy, written)))


@pytest.mark.slow
def test_sampled_trees_keep_the_law() -> None:
    assert_law_is_kept(DRAFT)


def assert_law_is_kept(draft: DraftModel, target: TargetModel = TARGET) -> None:
    """Of the second and third token, the first that are drafted, by the exact law of the target; the residual rule
    reads the draft's whole distributions."""
    prompt, rows, sampling = PROMPTS[0], 4000, Sampling(temperature=1.0, top_p=0.8, seed=4)
    settings = {"max_new_tokens": 3, "sampling": sampling, "rule": "residual"}
    steps = list(generate(target, draft, MCSD((3, 2)), [prompt] * rows, **settings))
    assert torch.cat([step.accepted.length for step in steps[1:]]).double().mean() > 0.02  # or this would say nothing
    seen = torch.zeros(VOCABULARY, VOCABULARY)
    found = torch.tensor([tokens[:3] for tokens in emitted(steps, rows)])
    seen.index_put_((found[:, 1], found[:, 2]), torch.ones(rows), accumulate=True)
    paths, probs = torch.tensor([prompt]), torch.ones(1, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(3):
            following = sampling.process(target.model(paths).logits[:, -1]).softmax(-1)
            probs = (probs[:, None] * following).flatten()
            new = torch.arange(VOCABULARY).repeat(len(paths))[:, None]
            paths = torch.cat([paths.repeat_interleave(VOCABULARY, 0), new], 1)
            paths, probs = paths[probs > 0], probs[probs > 0]
    law = torch.zeros(VOCABULARY, VOCABULARY, dtype=torch.float64)
    law.index_put_((paths[:, -2], paths[:, -1]), probs, accumulate=True)
    assert p_value(chi_square(seen, rows * law)) > 1e-4
