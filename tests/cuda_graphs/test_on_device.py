"""Graphs that are recorded and replayed write the text of the ordinary loop."""

import copy
from dataclasses import replace

import pytest
from transformers import LlamaConfig

from c2t.cuda_graphs.draft import StaticDraft, StaticPolicy
from c2t.cuda_graphs.target import StaticTarget
from c2t.errors import InputError
from c2t.models.drafts.eagle import EagleHead
from c2t.models.drafts.head_draft import EagleDraft
from c2t.models.target.target import Target
from c2t.policies import C2T, Eagle2, Plain
from c2t.sampling import Sampling
from tests.cuda_graphs.test_draft import POLICIES
from tests.toys import PROMPTS, SIZES, language_model, randomise, run

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::UserWarning")]
WIDE = {**SIZES, "head_dim": 16}  # which the kernel has blocks for
EOS = frozenset({11, 30})
SAMPLINGS = [Sampling(), Sampling(0.8, seed=3), Sampling(0.8, top_k=20, repetition_penalty=1.1, seed=3)]


@pytest.fixture(scope="module")
def target() -> Target:
    """In float32, which the kernels compute in; ties are not to be expected."""
    return Target(language_model(LlamaConfig(**WIDE)).float().cuda())


def draft_of(target: Target) -> EagleDraft:
    head = randomise(EagleHead(LlamaConfig(**WIDE | {"num_hidden_layers": 1})), seed=1, spread=0.3).eval()
    head.embed_tokens = target.embed_tokens
    return EagleDraft(head.cuda(), target.lm_head)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "processed"])
@pytest.mark.parametrize("name", POLICIES)
def test_text_is_plain_decodings(name: str, sampling: Sampling, target: Target) -> None:
    """Rows end at different times, which moves the others; the second generation finds the first one's memory."""
    draft, policy = draft_of(target), POLICIES[name]
    if isinstance(policy, C2T):
        policy = replace(policy, classifier=copy.deepcopy(policy.classifier).float().cuda())
    expected, _ = run(target, None, Plain(), PROMPTS, sampling, new=14, eos=EOS)
    looped, steps = run(target, draft, policy, PROMPTS, sampling, new=14, eos=EOS)
    assert looped == expected
    static, phase = StaticTarget(target, 5, 64), StaticDraft(draft, policy, 5, 64)
    for _ in range(2):
        found, replayed = run(static, phase, StaticPolicy(policy), PROMPTS, sampling, new=14, eos=EOS)
        assert found == expected
        if not sampling.temperature:  # graphs do not hear the draws' noise, which shapes the loop's trees
            assert [step.tree.sizes.tolist() for step in replayed[1:]] == [s.tree.sizes.tolist() for s in steps[1:]]
    assert static.graph.graph is not None


def test_plain_decoding(target: Target) -> None:
    expected, _ = run(target, None, Plain(), PROMPTS, new=14, eos=EOS)
    found, _ = run(StaticTarget(target, 4, 64), None, Plain(), PROMPTS, new=14, eos=EOS)
    assert found == expected


def test_a_draft_that_is_not_a_number_is_named(target: Target) -> None:
    draft, policy = draft_of(target), Eagle2(K=2, levels=4, N=8)
    draft.head.layers[0].mlp.down_proj.weight.data.fill_(float("nan"))
    with pytest.raises(InputError, match="the draft's logits contain NaN"):
        run(target, StaticDraft(draft, policy, 1, 64), StaticPolicy(policy), PROMPTS[:1], new=4)
