"""A language model as draft: its trees hold its own probabilities, and its cache the committed text."""

import pytest
import torch

from c2t.errors import InputError
from c2t.models.drafts.language_model import DraftLM, check_tokens, check_vocabulary
from c2t.models.target.target import Target
from c2t.models.wrappers.ngrams import NgramDraft
from c2t.policies import Chain, Eagle2, Plain, SpecInfer
from c2t.sampling import Sampling
from tests.marks import slow_except
from tests.rounding import NETWORK, assert_same_network
from tests.toys import PROMPTS, VOCABULARY, emitted, path_of, run, toy_drafts, toy_target, toy_tokenizer


@torch.no_grad()
def test_every_tree_of_a_run_holds_the_models_own_probabilities() -> None:
    draft, prompts = toy_drafts()["perturbed"], PROMPTS[:3]
    _, steps = run(toy_target(), draft, Eagle2(K=2, levels=3, N=None), prompts, new=10)
    assert {1, 4} <= set(torch.cat([step.count for step in steps[1:]]).tolist()), "want short and long rounds"
    texts = [[*prompt, *tokens] for prompt, tokens in zip(prompts, emitted(steps, 3), strict=True)]
    for step in steps[1:]:
        for row, (prompt, position) in enumerate(zip(step.rows.tolist(), step.position.tolist(), strict=True)):
            for slot in range(1, step.tree.size):
                *above, token = path_of(step.tree, row, slot)
                text = torch.tensor([[*texts[prompt][: position + 1], *above]])
                own = draft.model.model(text).logits[0, -1].log_softmax(-1)[token]
                assert_same_network(step.tree.log_prob[row, slot], own)


@torch.no_grad()
def test_the_target_as_its_own_draft_is_always_accepted() -> None:
    _, steps = run(toy_target(), toy_drafts()["same"], Eagle2(K=1, levels=5, N=None), PROMPTS, new=24)
    assert all(set(step.count.tolist()) == {6} for step in steps[1:])
    assert len(steps) == 1 + -(-23 // 6)


def with_rows(rows: int, size: int) -> DraftLM:
    """The draft "perturbed" with other numbers of embeddings and of outputs: fewer, or more that are random."""
    known = toy_drafts()["perturbed"].model.model.state_dict()
    model = toy_target.__wrapped__(rows, seed=3).model
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            here = min(len(weight), len(known[name]))
            weight[:here] = known[name][:here]
    return DraftLM(Target(model), size)


PADDED = [[1, 5, 9, VOCABULARY - 1], [VOCABULARY - 2], *PROMPTS[:2]]  # with tokens that a smaller draft lacks


@pytest.mark.parametrize("rows", [VOCABULARY - 8, VOCABULARY + 16])
@pytest.mark.parametrize("end", slow_except(("", "+ngrams"), "+ngrams"))
@torch.no_grad()
def test_a_draft_may_be_padded_otherwise(rows: int, end: str) -> None:
    """Texts are those of plain decoding. Its trees hold its probabilities among the tokens that both have, and no
    others; the target's text may hold all."""
    draft = with_rows(rows, VOCABULARY)
    both = min(rows, VOCABULARY)
    used = NgramDraft(draft) if end else draft
    for sampling in (Sampling(), Sampling(temperature=0.8, seed=3), Sampling(temperature=0.8, top_k=9, seed=5)):
        plain, _ = run(toy_target(), None, Plain(), PADDED, sampling)
        for policy in (Eagle2(K=3, levels=3, N=9), SpecInfer((2, 2)), Chain(4)):
            texts, steps = run(toy_target(), used, policy, PADDED, sampling)
            if policy.proposal == "ranked" or sampling == Sampling():  # else only the law is the same
                assert texts == plain
            assert max(int(step.tree.token[:, 1:].max()) for step in steps[1:]) < both
            assert any(step.count.max() > 1 for step in steps[1:])
    if not end:
        _, steps = run(toy_target(), draft, Eagle2(K=3, levels=2, N=None), PADDED[2:], new=8)
        text = torch.tensor([[*PADDED[2], int(steps[1].tree.token[0, 0])]])
        own = draft.model.model(text.clamp(max=rows - 1)).logits[0, -1, :both].log_softmax(-1)
        for slot in range(1, 4):
            token = int(steps[1].tree.token[0, slot])
            wanted = own[token].item()
            assert steps[1].tree.log_prob[0, slot].item() == pytest.approx(wanted, abs=NETWORK, rel=NETWORK)


def test_another_vocabulary_is_refused() -> None:
    """But for padding."""
    with pytest.raises(InputError, match="the draft has 40 tokens, the target 48"):
        check_vocabulary(toy_target(40), toy_target(), "somewhere")
    check_vocabulary(toy_target(seed=5), toy_target(), "somewhere")
    check_vocabulary(toy_target(101), toy_target(100), "somewhere")


def test_tokens_that_were_added_may_differ() -> None:
    """As between a base model and a chat model."""
    base, chat, other = toy_tokenizer(), toy_tokenizer(), toy_tokenizer(50)
    base.add_tokens(["<a>", "<b>"])
    chat.add_special_tokens({"eos_token": "<end>"})
    check_tokens(chat, base, "somewhere")
    check_tokens(other, base, "somewhere")
