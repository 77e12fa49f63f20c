"""What every draft session promises, on an independent language model and on an EAGLE head."""

import pytest
import torch

from c2t.caches.ragged import whole
from c2t.errors import InputError
from c2t.models.drafts import session
from c2t.models.drafts.language_model import DraftLM
from c2t.policies import Eagle2, JointThreshold, Plain
from c2t.protocols import Draft
from c2t.sampling import Sampling
from c2t.tree import Tree
from c2t.verification.target_verifier import generate
from tests.rounding import assert_same_network
from tests.toys import PROMPTS, observed, random_eagle, root_of, run, toy_drafts, toy_target


@pytest.mark.parametrize("name", ["eagle", "same"])
@torch.no_grad()
def test_slots_may_be_expanded_in_any_order_and_grouping(name: str) -> None:
    """A node's distribution depends on its path, not on what else is drafted, or when."""
    draft, text = toy_drafts()[name], PROMPTS[1]
    root = root_of(text[-1])
    session, _ = observed(draft, toy_target(), text)
    assert isinstance(session, Draft)
    tree = Eagle2(K=3, levels=2, N=None)(session, root)  # expands the root and slots 1, 2, 3
    together = session.expand(tree, torch.tensor([[4, 8, 12]])).logits[0]
    again, _ = observed(draft, toy_target(), text)
    again.expand(tree, torch.tensor([[0]]))
    again.expand(tree, torch.tensor([[3, 1]]))
    last = again.expand(tree, torch.tensor([[12]])).logits[0, 0]
    first = again.expand(tree, torch.tensor([[4]])).logits[0, 0]
    again.expand(tree, torch.tensor([[2]]))
    middle = again.expand(tree, torch.tensor([[8]])).logits[0, 0]
    assert_same_network(together, torch.stack([first, middle, last]))
    assert again.passes.tolist() == [6]


@torch.no_grad()
def test_passes_count_for_rows_that_took_part() -> None:
    session = toy_drafts()["same"].session()
    session.observe(torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.zeros(2, 2, 32), torch.tensor([2, 2]))
    tree = Tree.root(torch.tensor([3, 6]))
    roots = torch.zeros(2, 1, dtype=torch.long)
    rows = session.expand(tree, roots)
    tree = tree.extend(tree.children(roots, *rows.topk_entropy(2, 0)))
    tree.alive[1, 1:] = False
    session.expand(tree, torch.tensor([[1, 2], [1, 2]]))
    assert session.passes.tolist() == [2, 1]


@pytest.mark.parametrize("name", ["eagle", "same"])
def test_a_round_costs_one_pass_a_level(name: str) -> None:
    _, steps = run(toy_target(), toy_drafts()[name], Eagle2(K=2, levels=3, N=None), PROMPTS, new=8)
    assert steps[0].draft_passes.tolist() == [0] * len(PROMPTS)
    assert all(set(step.draft_passes.tolist()) == {3} for step in steps[1:])
    _, steps = run(toy_target(), None, Plain(), PROMPTS, new=8)
    assert all(set(step.draft_passes.tolist()) == {0} for step in steps)


@pytest.mark.parametrize("name", ["eagle", "lm", "target"])
def test_a_model_that_says_no_numbers_is_named(name: str) -> None:
    broken, eagle = toy_target.__wrapped__(seed=9), random_eagle(toy_target(), seed=9)
    (eagle.head.fc if name == "eagle" else broken.embed_tokens).weight.data[:] = float("nan")
    target, draft, policy = {
        "eagle": (toy_target(), eagle, Eagle2(K=2, levels=2)),
        "lm": (toy_target(), DraftLM(broken), Eagle2(K=2, levels=2)),
        "target": (broken, None, Plain()),
    }[name]
    with pytest.raises(InputError, match=f"{'target' if draft is None else 'draft'}'s logits contain NaN"):
        run(target, draft, policy, PROMPTS, new=8)


@pytest.mark.parametrize("name", ["perturbed", "eagle"])
def test_levels_that_compute_all_slots_are_those_that_compute_the_used_ones(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CUDA, whose answer which ones are used would have to be waited for."""
    policy, asked = JointThreshold(0.05, K=4, W=4, levels=3), []

    def trees() -> list[Tree]:
        steps = generate(toy_target(), toy_drafts()[name], policy, PROMPTS, max_new_tokens=8, sampling=Sampling())
        return [step.tree for step in steps if step.tree is not None]

    packed = trees()
    monkeypatch.setattr(
        session, "computed", lambda used: asked.append(bool(used.all())) or whole(*used.shape, used.device)
    )
    for one, other in zip(packed, trees(), strict=True):
        for column in ("token", "parent", "alive"):
            assert getattr(one, column)[one.alive].equal(getattr(other, column)[other.alive])
        assert_same_network(one.log_joint[one.alive], other.log_joint[other.alive])
    assert False in asked, "every level was full"
