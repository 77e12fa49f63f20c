"""A draft that knows the target's random numbers: it guesses what will be sampled, and the text stays as it is."""

import math
from functools import cache

import pytest
import torch
from scipy import stats
from transformers import LlamaConfig

from c2t import decoding
from c2t.batching import BatchDecoder
from c2t.decoding import Step
from c2t.kernels import noise as kernel
from c2t.kernels.native import kernels
from c2t.kernels.noise import Noise
from c2t.models.drafts.medusa import AtDepth, ByDepth
from c2t.models.loading.load import Pair
from c2t.models.target.target import Target
from c2t.models.wrappers.ngrams import NgramDraft
from c2t.policies import Chain, Eagle2, JointThreshold, Plain, SampledChain
from c2t.protocols import DraftVocabulary, NextTokenDistributions, Policy
from c2t.sampling import Sampling
from c2t.sessions import coupled
from c2t.sessions.coupled import CoupledSession, scaled, with_noise
from c2t.sessions.wrapped import find
from c2t.tree import Tree
from c2t.verification.mixed_sampler import MixedSampler
from c2t.verification.target_verifier import TargetVerifier
from tests.rounding import assert_equal, assert_same_sums, figure
from tests.toys import (
    PROMPTS,
    SIZES,
    VOCABULARY,
    deep_pairs,
    language_model,
    run,
    toy_drafts,
    toy_target,
    toy_tokenizer,
)

SAMPLING = Sampling(temperature=0.9, seed=5)
POLICIES: dict[str, Policy] = {
    "chain": Chain(3),
    "eagle2": Eagle2(K=3, levels=3, N=7),
    "threshold": JointThreshold(0.05, K=3, W=4, levels=3),
}


def accepted(steps: list[Step]) -> float:
    """Accepted tokens of a round, without the last one, which a text's end may cut."""
    rounds = [step.accepted.length for step in steps[1:-1]]
    return torch.cat(rounds).float().mean().item()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_the_target_itself_as_a_draft_is_always_right(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of its most probable tokens would seldom be what it samples."""
    monkeypatch.setattr(coupled, "NOISE_SCALE", 1.0)
    sampling = Sampling(temperature, seed=1)
    _, steps = run(toy_target(), toy_drafts()["same"], Chain(3), PROMPTS, sampling, new=30)
    assert all((step.accepted.length == 3).all() for step in steps[1:])


def test_rows_that_join_and_leave_have_their_own_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each at its own position and temperature: a wrong one would make guesses of the target itself wrong."""
    monkeypatch.setattr(coupled, "NOISE_SCALE", 1.0)
    decoder = BatchDecoder(
        Pair("toy", toy_target(), toy_drafts()["same"], toy_tokenizer(), "", {}), Chain(3), max_rows=3
    )
    samplings = [Sampling(1.0, seed=1), Sampling(), Sampling(0.5, seed=2), Sampling(2.0, seed=3)]
    for number, (prompt, sampling, new) in enumerate(zip(PROMPTS, samplings, (9, 30, 17, 25), strict=True)):
        decoder.submit(prompt, new, sampling, sequence=number)
        decoder.step()
        assert (decoder.last.accepted.length == 3).all()
    while decoder.step():
        assert (decoder.last.accepted.length == 3).all()


def test_the_noise_is_scaled_once() -> None:
    noise = Noise(torch.tensor([0.5, 0.0]), torch.tensor([3, 4]), torch.tensor([7, 8]))
    of_draft = scaled(noise)
    assert of_draft.temperature.tolist() == figure([0.5 * coupled.NOISE_SCALE, 0.0], 2, torch.float32)
    assert 0.5 < coupled.NOISE_SCALE < 1
    assert noise.temperature.tolist() == [0.5, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_guesses_are_better_and_the_text_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a draft that is right often, but not always; text n-grams are mixed in before the noise."""
    drafter = NgramDraft(toy_drafts()["perturbed"], 2.0)
    plain, _ = run(toy_target(), None, Plain(), PROMPTS, SAMPLING, new=60)
    text, steps = run(toy_target(), drafter, POLICIES[name], PROMPTS, SAMPLING, new=60)
    monkeypatch.setattr(decoding, "coupled", lambda draft, policy, verifier: draft)
    uncoupled, without = run(toy_target(), drafter, POLICIES[name], PROMPTS, SAMPLING, new=60)
    assert text == plain == uncoupled
    assert accepted(steps) > 1.2 * accepted(without)


@pytest.mark.parametrize("draft", ["medusa", "published medusa", "eagle3", "mtp", "dspark"])
def test_text_is_that_of_plain_decoding_with_other_drafts(draft: str) -> None:
    target, drafter = deep_pairs()[draft]
    plain, _ = run(target, None, Plain(), PROMPTS[:2], SAMPLING, new=12)
    assert run(target, drafter, POLICIES["threshold"], PROMPTS[:2], SAMPLING, new=12)[0] == plain


def test_texts_keep_the_targets_law() -> None:
    """Second and third tokens of many sequences: trees hold them that were grown with the numbers that drew them."""
    count, sampling = 3000, Sampling(temperature=1.0, seed=9)
    target, prompt = toy_target(), PROMPTS[0]
    texts, steps = run(
        target, toy_drafts()["perturbed"], Chain(3), [prompt] * count, sampling, new=3, sequences=range(count)
    )
    assert steps[1].accepted.length.float().mean() > 0.2
    pairs = torch.zeros(VOCABULARY, VOCABULARY, dtype=torch.double)
    first = following(prompt, torch.empty(1, 0, dtype=torch.long))[0]
    second = following(prompt, torch.arange(VOCABULARY)[:, None])
    for token in range(VOCABULARY):
        behind = torch.stack([torch.full((VOCABULARY,), token), torch.arange(VOCABULARY)], 1)
        pairs += first[token] * second[token][:, None] * following(prompt, behind)
    seen = torch.zeros_like(pairs)
    for _, two, three in texts:
        seen[two, three] += 1
    expected, seen = pairs.flatten() * count, seen.flatten()
    common = expected >= 5
    observed = [*seen[common].tolist(), seen[~common].sum().item()]
    law = [*expected[common].tolist(), expected[~common].sum().item()]
    assert len(law) > 20
    assert stats.chisquare(observed, law).pvalue > 1e-3


def following(prompt: list[int], texts: torch.Tensor) -> torch.Tensor:
    """The target's probabilities of what follows the prompt and each of these texts."""
    tokens = torch.cat([torch.tensor(prompt).expand(len(texts), -1), texts], 1)
    with torch.inference_mode():
        verified = toy_target().session().prefill(tokens, torch.full((len(tokens),), tokens.shape[1]))
    return verified.logits.values.softmax(1)


@pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")
@pytest.mark.parametrize("kind", ["all tokens", "few tokens", "by depth"])
def test_distributions_in_float32_are_those_of_torch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place."""
    random = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 3, 40, generator=random)
    vocabulary = (
        DraftVocabulary(torch.arange(0, 80, 2), 80, torch.tensor([[3], [-1]])) if kind == "few tokens" else None
    )
    if vocabulary:
        logits = torch.cat([logits, torch.tensor([0.5, -math.inf]).view(2, 1, 1).expand(2, 3, 1)], 2)
    tree = Tree.root(torch.tensor([4, 5]))
    tree = tree.extend(tree.children(torch.zeros(2, 1, dtype=torch.long), torch.tensor([[[1, 2]]] * 2), *blank(2)))
    slots = torch.tensor([[0, 1, 2], [0, 2, -1]])

    def given() -> NextTokenDistributions:
        if kind == "by depth":
            return AtDepth(
                ByDepth(logits.clone(), torch.zeros(2, 3, 4), None), tree.depth.gather(1, slots.clamp(0)) + 1
            )
        return NextTokenDistributions(logits.clone(), None, vocabulary)

    noise = scaled(Noise(torch.tensor([0.7, 1.3]), torch.tensor([11, -5]), torch.tensor([8, 2])))
    found = with_noise(given(), tree, slots, noise)
    monkeypatch.setattr(kernel, "serves", lambda logits: False)
    expected = with_noise(given(), tree, slots, noise)
    real = slots >= 0
    assert_same_sums(found.log_probs[real], expected.log_probs[real])
    assert found.top(5)[0][real].equal(expected.top(5)[0][real])


def blank(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(rows, 1, 2), torch.zeros(rows, 1)


def test_torchs_usual_dtype_changes_nothing() -> None:
    """The kernels read float32."""
    plain, _ = run(packable(), None, Plain(), PROMPTS[:1], SAMPLING, new=8)
    torch.set_default_dtype(torch.float64)
    try:
        assert run(packable(), None, Plain(), PROMPTS[:1], SAMPLING, new=8)[0] == plain
    finally:
        torch.set_default_dtype(torch.float32)


@cache
def packable() -> Target:
    sizes = {**SIZES, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2}
    return Target(language_model(LlamaConfig(**sizes)).float())


def test_only_ranked_candidates_of_rows_that_draw_have_noise() -> None:
    def session(policy: Policy, sampling: Sampling | list[Sampling]) -> object:
        verifier = TargetVerifier(toy_target(), policy, PROMPTS[:1], max_new_tokens=4, sampling=sampling)
        verifier.prefill()
        return decoding.open_session(toy_drafts()["same"], policy, 1, verifier)

    assert not isinstance(session(Chain(2), Sampling()), CoupledSession)
    assert not isinstance(session(SampledChain(2), SAMPLING), CoupledSession)
    assert isinstance(session(Chain(2), SAMPLING), CoupledSession)
    joinable = session(Chain(2), [Sampling()])  # rows that draw may join it
    assert find(joinable, CoupledSession).noise() is None
    position = torch.tensor([4, 9, 1])
    settings = [Sampling(), SAMPLING, Sampling(0.5, seed=2)]
    mixed = MixedSampler(settings, 9, torch.zeros(3, 1, dtype=torch.long), torch.ones(3, dtype=torch.long))
    noise = mixed.noise(position)
    assert_equal(noise.temperature, torch.tensor([0.0, 0.9, 0.5]))
    assert torch.equal(noise.root, position)
    for row, sampling in enumerate(settings):
        alone = MixedSampler([sampling], 9, torch.zeros(1, 1, dtype=torch.long), torch.ones(1, dtype=torch.long), [row])
        assert alone.samplers[0].noise(position[row : row + 1]).stream == noise.stream[row]
