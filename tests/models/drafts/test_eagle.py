"""The EAGLE head and its session against a plain re-implementation over one path at a time."""

import pytest
import torch

from c2t.errors import InputError
from c2t.models.drafts.head_draft import EagleDraft
from c2t.models.loading.eagle_checkpoint import load_head, save_head
from c2t.policies import Eagle2, Plain
from c2t.tree import Tree
from tests.eagle_reference import CONFIG, head_forward, head_state, write_head
from tests.rounding import assert_same_network
from tests.toys import PROMPTS, VOCABULARY, emitted, observed, path_of, root_of, run, toy_target

VARIANTS = {
    "published": {},
    "no bias": {"bias": False},
    "qkv bias": {"qkv_bias": True},
    "rope base": {"rope_theta": 500000.0},
    "own kv heads": {"num_key_value_heads": 1},
    "kv heads absent": {"num_key_value_heads": None},
}


def variant(changes: dict) -> dict:
    return {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}


@pytest.mark.parametrize("name", VARIANTS)
def test_forward_is_upstreams(name: str, tmp_path) -> None:
    config = variant(VARIANTS[name])
    state = head_state(config)
    target = toy_target()
    head = load_head(write_head(tmp_path, config, state), target.embed_tokens)
    features, tokens = torch.randn(2, 30, 32, dtype=torch.float64), torch.randint(0, VOCABULARY, (2, 30))
    predicted = head(features, tokens)
    for row in range(2):
        expected = head_forward(config, state, target.embed_tokens.weight, features[row], tokens[row])
        assert_same_network(predicted[row], expected)


@pytest.fixture
def draft(tmp_path) -> EagleDraft:
    target = toy_target()
    head = load_head(write_head(tmp_path, CONFIG, head_state(CONFIG)), target.embed_tokens)
    return EagleDraft(head, target.lm_head)


@torch.no_grad()
def test_tree_slots_continue_the_prefix_along_their_own_path(draft: EagleDraft) -> None:
    """Root distribution from the last prefix slot; a child of depth d at the position after its parent, fed with the
    parent's predicted feature (rows of different lengths)."""
    target, state = toy_target(), head_state(CONFIG)
    texts = [[*prompt, 11] for prompt in PROMPTS[:3]]  # the last token is the root
    session, features = observed(draft, target, *texts)
    tree = Eagle2(K=3, levels=4, N=None)(session, root_of(11, 11, 11))
    assert session.passes.tolist() == [4, 4, 4]

    embedding = target.embed_tokens.weight
    for row, text in enumerate(texts):
        for slot in range(1, tree.size):
            *above, token = path_of(tree, row, slot)
            fed, known = torch.tensor(text[1:]), features[row, : len(text) - 1]
            for next_token in [*above, None]:
                predicted = head_forward(CONFIG, state, embedding, known, fed)
                if next_token is not None:
                    known, fed = torch.cat([known, predicted[-1:]]), torch.cat([fed, torch.tensor([next_token])])
            log_probs = target.lm_head(predicted[-1]).log_softmax(-1)
            assert_same_network(tree.log_prob[row, slot], log_probs[token])


@torch.no_grad()
def test_prefix_keys_and_values_come_from_true_features_only(draft: EagleDraft) -> None:
    """After every round the draft's cache is what a clean prefill of the whole text leaves behind."""
    seen = []

    class Watching(Eagle2):
        def __call__(self, session, root):
            tree = super().__call__(session, root)
            length = session.cache.lengths
            seen.append([session.cache.buffers[0][:, row, :, :n].clone() for row, n in enumerate(length.tolist())])
            return tree

    prompts = PROMPTS[:3]
    _, steps = run(toy_target(), draft, Watching(K=4, levels=3, N=None), prompts, new=15)
    assert max(int(step.count.max()) for step in steps) > 1, "nothing was accepted, so nothing was tested"
    texts = [[*prompt, *tokens] for prompt, tokens in zip(prompts, emitted(steps, 3), strict=True)]
    assert len(seen) == len(steps) - 1
    for step, caches in zip(steps[1:], seen, strict=True):
        for prompt, position, cache in zip(step.rows.tolist(), step.position.tolist(), caches, strict=True):
            text = texts[prompt][: position + 1]
            clean, _ = observed(draft, toy_target(), text)
            assert cache.shape[2] == position
            assert_same_network(cache, clean.cache.buffers[0][:, 0, :, :position])


def with_tokens(folder, tokens: list[int]) -> EagleDraft:
    """The head above, stored with a vocabulary of its own, and loaded."""
    target = toy_target()
    head = load_head(write_head(folder, CONFIG, head_state(CONFIG)), target.embed_tokens)
    head.tokens = torch.tensor(tokens)
    save_head(head, folder / "narrow")
    return EagleDraft(load_head(folder / "narrow", target.embed_tokens), target.lm_head)


@torch.no_grad()
def test_a_head_with_few_tokens_drafts_these_and_the_texts_own(tmp_path, draft: EagleDraft) -> None:
    """Its distributions are the whole head's, renormalised; the text is the target's."""
    narrow = with_tokens(tmp_path, [2, 3, 5, 11, 13, 17])
    tokens = sorted({2, 3, 5, 11, 13, 17, *PROMPTS[0]})
    assert len(tokens) > 6
    rows = []
    for one in (draft, narrow):
        session, _ = observed(one, toy_target(), [*PROMPTS[0], 11])
        rows.append(session.expand(Tree.root(torch.tensor([11])), torch.tensor([[0]])))
    whole, few = rows
    wanted = whole.logits[..., tokens].log_softmax(-1)
    assert_same_network(few.log_probs[..., tokens], wanted)
    assert few.logits.isfinite().sum() == len(tokens)
    found, log_probs, entropy = few.topk_entropy(4, None)
    best = wanted.topk(4)
    assert found[0, 0].tolist() == [tokens[place] for place in best.indices[0, 0]]
    assert_same_network(log_probs, best.values)
    assert_same_network(entropy, -(wanted.exp() * wanted).sum(-1))
    policy = Eagle2(K=3, levels=3, N=8)
    assert run(toy_target(), narrow, policy, PROMPTS, new=12)[0] == run(toy_target(), None, Plain(), PROMPTS, new=12)[0]


@pytest.mark.parametrize("tokens", [[], [3, 3], [5, 2], [-1, 4], [4, VOCABULARY]])
def test_tokens_that_do_not_rise_in_the_vocabulary_are_refused(tmp_path, tokens: list[int]) -> None:
    with pytest.raises(InputError, match="not a list of rising ids"):
        with_tokens(tmp_path, tokens)


def test_broken_tokens_are_refused(tmp_path) -> None:
    folder = write_head(tmp_path, CONFIG, head_state(CONFIG))
    (folder / "tokens.safetensors").write_bytes(b"x")
    with pytest.raises(InputError, match="cannot be read"):
        load_head(folder, toy_target().embed_tokens)
