"""The two sides of the comparison draft the same trees."""

import pytest
import torch

from c2t.policies import C2T, Eagle2
from c2t.replay.lockstep import write_continuations
from c2t.sampling import Sampling
from pipelines.bench.draft import Modules, compare
from tests.rounding import assert_same_network
from tests.toys import PROMPTS, random_eagle, root_of, toy_classifier, toy_target


@torch.no_grad()
@pytest.mark.parametrize(
    "policy", [Eagle2(K=3, levels=3, N=12), C2T(toy_classifier(M=20), beta=0.4, K=3)], ids=["eagle2", "c2t"]
)
def test_modules_and_session_draft_the_same_trees(policy) -> None:
    target = toy_target()
    draft = random_eagle(target)
    features = torch.randn(1, 5, 32, dtype=torch.float64)
    trees = []
    for session in (Modules(draft), draft.session()):
        session.observe(torch.tensor([[1, 2, 3, 4, 5, 6]]), features, torch.tensor([5]))
        trees.append(policy(session, root_of(6)))
    assert trees[0].size > 5
    assert trees[0].token.equal(trees[1].token)
    assert trees[0].parent.equal(trees[1].parent)
    assert_same_network(trees[0].log_joint, trees[1].log_joint)


def test_every_round_is_timed_on_all_sides() -> None:
    class Pair:
        draft = random_eagle(toy_target())

    texts = write_continuations(toy_target(), PROMPTS[:2], max_new_tokens=8, beyond=0, sampling=Sampling())
    assert [len(seconds) for seconds in compare(Pair, Eagle2(K=2, levels=2, N=4), texts)] == 3 * [2 * 2]
