"""Draft phases of fixed shapes give the trees of the policies that they stand in for."""

import pytest
import torch

from c2t import decoding
from c2t.classifier import ClassifierConfig, TreeClassifier
from c2t.cuda_graphs.draft import StaticDraft, StaticPolicy
from c2t.errors import InputError
from c2t.policies import C2T, Chain, Eagle2, EntropyTree, JointThreshold, Plain
from c2t.protocols import Policy
from c2t.sampling import Sampling
from tests.marks import slow_except
from tests.rounding import assert_same_column
from tests.toys import PROMPTS, deep_pairs, emitted, random_eagle, root_of, run, toy_classifier, toy_target

POLICIES = {
    "eagle2": Eagle2(K=4, levels=4, N=15),
    "eagle2-small": Eagle2(K=3, levels=2, N=40),
    "c2t": C2T(toy_classifier(), beta=0.4, K=4, W=5, levels=5),
    "c2t-conditional": C2T(toy_classifier(label="accepted_given_parent"), beta=0.1, K=4, W=5, levels=5),
    "c2t-naive": C2T(toy_classifier(), beta=0.45, K=3, W=None, levels=3, max_width=6),
    "threshold": JointThreshold(0.01, K=4, W=4, levels=6),
    "chain": Chain(4),
    "eagle2, all its candidates": Eagle2(K=3, levels=3, N=None),
    "eagle2 with entropies": Eagle2(K=3, levels=3, N=8, M=5),
    "entropy": EntropyTree(K=3, levels=3, max_width=5),
}


def assert_same_nodes(tree, other, row: int) -> None:
    """Alive slots in order, whatever stands between them."""
    slots, others = (one.alive[row].nonzero()[:, 0] for one in (tree, other))
    places = [
        [chosen.tolist().index(parent) for parent in one.parent[row, chosen[1:]].tolist()]
        for one, chosen in ((tree, slots), (other, others))
    ]
    assert places[0] == places[1]
    for name in ("token", "depth", "rank", "log_prob", "log_joint", "entropy", "max_log_prob", "score"):
        assert_same_column(getattr(tree, name)[row, slots], getattr(other, name)[row, others], name)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, seed=3)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", slow_except(POLICIES, "eagle2-small", "c2t-naive"))
def test_every_round_is_the_policys_own(name: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows end at different times, which moves the others. Graphs do not hear the target's noise."""
    monkeypatch.setattr(decoding, "coupled", lambda draft, policy, verifier: draft)
    policy, target = POLICIES[name], toy_target()
    draft, prompts, eos = random_eagle(target), PROMPTS, frozenset({11, 30})
    _, expected = run(target, draft, policy, prompts, new=11, sampling=sampling, eos=eos)
    static = StaticDraft(draft, policy, rows=6, capacity=64)
    for _ in range(2 if name == "c2t" else 1):  # the second generation finds the first one's memory
        _, found = run(target, static, StaticPolicy(policy), prompts, new=11, sampling=sampling, eos=eos)
        assert len({len(step.rows) for step in found}) > 1
        for step, other in zip(found[1:], expected[1:], strict=True):
            assert step.rows.tolist() == other.rows.tolist()
            assert step.draft_passes.tolist() == other.draft_passes.tolist()
            assert step.tree.capped.tolist() == other.tree.capped.tolist()
            for row in range(len(step.rows)):
                assert_same_nodes(step.tree, other.tree, row)
        assert emitted(found, len(prompts)) == emitted(expected, len(prompts))


def test_what_has_no_fixed_shapes_is_refused() -> None:
    deep, eagle = TreeClassifier(ClassifierConfig(layers=3)), random_eagle(toy_target())
    for policy in (Eagle2(expand="confidence"), EntropyTree(leaf_above=1.0), C2T(deep), Plain()):
        with pytest.raises(InputError, match=r"CUDA graphs draft eagle2 .*c2t with a classifier of two layers"):
            StaticDraft(eagle, policy, rows=1, capacity=64)
    with pytest.raises(InputError, match="CUDA graphs draft fewer than 64 levels"):
        StaticDraft(eagle, Chain(64), rows=1, capacity=64)
    with pytest.raises(InputError, match="CUDA graphs draft with EAGLE-1/2 heads"):
        StaticDraft(deep_pairs()["mtp"][1], Eagle2(), rows=1, capacity=64)


@pytest.mark.parametrize("policy", [Eagle2(K=2, levels=4, N=8), JointThreshold(0.01, K=3, W=3, levels=3)])
def test_a_draft_that_is_not_a_number_is_named_and_leaves_none(policy: Policy) -> None:
    """The next generation has fewer rows: those without a text count, too."""
    target = toy_target()
    draft = random_eagle(target)
    weight = draft.head.layers[0].mlp.down_proj.weight.data
    whole = weight.clone()
    static = StaticDraft(draft, policy, rows=2, capacity=64)
    weight.fill_(float("nan"))
    with pytest.raises(InputError, match="the draft's logits contain NaN"):
        run(target, static, StaticPolicy(policy), PROMPTS[:2], new=4)
    weight.copy_(whole)
    expected, _ = run(target, draft, policy, PROMPTS[:1], new=8)
    assert run(target, static, StaticPolicy(policy), PROMPTS[:1], new=8)[0] == expected


def test_no_level_is_drafted_long_after_the_last_survivor() -> None:
    """The flag of a level is read one level late."""
    target = toy_target()
    policy = JointThreshold(0.9999, K=2, W=2, levels=6)
    static = StaticDraft(random_eagle(target), policy, rows=1, capacity=64)
    drafted = []
    session = static.session()
    features = torch.randn(1, 3, 32, dtype=torch.float64)
    session.observe(torch.tensor([[1, 2, 3, 4]]), features, torch.tensor([3]))
    for number, level in enumerate(static.phase.levels):
        work = level.work
        level.work = lambda number=number, work=work: (drafted.append(number), work())
    tree = session.grow(root_of(4))
    depth = int(tree.depth.max()) + 1  # levels with survivors
    assert drafted == list(range(depth + 2))
    assert session.passes.tolist() == [depth + 1]
