"""A language model as draft: its trees hold its own probabilities, and its cache the committed text."""

import pytest
import torch

from c2t.errors import InputError
from c2t.models.draft_lm import check_vocabulary
from c2t.policies import Eagle2
from tests.rounding import NETWORK
from tests.toys import PROMPTS, emitted, path_of, run, toy_drafts, toy_target


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
                assert step.tree.log_prob[row, slot].item() == pytest.approx(own.item(), abs=NETWORK, rel=NETWORK)


@torch.no_grad()
def test_the_target_as_its_own_draft_is_always_accepted() -> None:
    _, steps = run(toy_target(), toy_drafts()["same"], Eagle2(K=1, levels=5, N=None), PROMPTS, new=24)
    assert all(set(step.count.tolist()) == {6} for step in steps[1:])
    assert len(steps) == 1 + -(-23 // 6)


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(InputError, match="the draft has 40 tokens, the target 48"):
        check_vocabulary(toy_target(40), toy_target(), "somewhere")
    check_vocabulary(toy_target(seed=5), toy_target(), "somewhere")
