"""A draft that knows the target's random numbers: it guesses what the target will draw, and the text stays as it is."""

import pytest
import torch
from scipy import stats

from c2t import decoding
from c2t.decoding import Policy, Step, TargetVerifier
from c2t.mixed_sampler import MixedSampler
from c2t.models.ngrams import NgramDraft
from c2t.policies import Chain, Eagle2, EntropyGate, JointThreshold, Plain, SampledChain
from c2t.sampling import Sampling
from tests.toys import PROMPTS, deep_pairs, run, toy_drafts, toy_target

SAMPLING = Sampling(temperature=0.9, seed=5)
POLICIES: dict[str, Policy] = {
    "chain": Chain(3),
    "eagle2": Eagle2(K=3, levels=3, N=7),
    "threshold": JointThreshold(0.05, K=3, W=4, levels=3),
    "gate": EntropyGate(Eagle2(K=3, levels=2, N=5), high=9.0, low=8.0),
}


def accepted(steps: list[Step]) -> float:
    """Accepted tokens of a round, without the last one, which a text's end may cut."""
    rounds = [step.accepted.length for step in steps[1:-1]]
    return torch.cat(rounds).float().mean().item()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_the_target_itself_as_a_draft_is_always_right(temperature: float) -> None:
    """A chain of its most probable tokens would seldom be what it draws."""
    sampling = Sampling(temperature, seed=1)
    _, steps = run(toy_target(), toy_drafts()["same"], Chain(3), PROMPTS, sampling, new=30)
    assert all((step.accepted.length == 3).all() for step in steps[1:])


@pytest.mark.parametrize("name", POLICIES)
def test_guesses_are_better_and_the_text_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a draft that is right often, but not always; text n-grams are mixed in before the noise."""
    drafter = NgramDraft(toy_drafts()["perturbed"], 2.0)
    plain, _ = run(toy_target(), None, Plain(), PROMPTS, SAMPLING, new=60)
    text, steps = run(toy_target(), drafter, POLICIES[name], PROMPTS, SAMPLING, new=60)
    monkeypatch.setattr(decoding, "hearing", lambda draft, policy, root: draft)
    deaf, without = run(toy_target(), drafter, POLICIES[name], PROMPTS, SAMPLING, new=60)
    assert text == plain == deaf
    assert accepted(steps) > 1.2 * accepted(without)


@pytest.mark.parametrize("draft", ["medusa", "published medusa", "eagle3", "mtp"])
def test_text_is_that_of_plain_decoding_with_other_drafts(draft: str) -> None:
    target, drafter = deep_pairs()[draft]
    plain, _ = run(target, None, Plain(), PROMPTS[:2], SAMPLING, new=12)
    assert run(target, drafter, POLICIES["threshold"], PROMPTS[:2], SAMPLING, new=12)[0] == plain


def test_texts_keep_the_targets_law() -> None:
    """The second and third token of many sequences, whose trees were grown with the numbers that drew them."""
    count, sampling = 3000, Sampling(temperature=1.0, seed=9)
    target, prompt = toy_target(), PROMPTS[0]
    texts, steps = run(
        target, toy_drafts()["perturbed"], Chain(3), [prompt] * count, sampling, new=2, sequences=range(count)
    )
    assert accepted(steps[:3]) > 0.2 if len(steps) > 2 else True
    with torch.inference_mode():
        first = (
            target.session().prefill(torch.tensor([prompt]), torch.tensor([len(prompt)])).logits.values[0].softmax(0)
        )
        pairs = torch.zeros(len(first), len(first), dtype=torch.double)
        for token in range(len(first)):
            longer = torch.tensor([[*prompt, token]])
            after = target.session().prefill(longer, torch.tensor([longer.shape[1]])).logits.values[0].softmax(0)
            pairs[token] = first[token] * after
    seen = torch.zeros_like(pairs)
    for one, two in texts:
        seen[one, two] += 1
    expected, seen = pairs.flatten() * count, seen.flatten()
    common = expected >= 5
    observed = [*seen[common].tolist(), seen[~common].sum().item()]
    law = [*expected[common].tolist(), expected[~common].sum().item()]
    assert stats.chisquare(observed, torch.tensor(law) * sum(observed) / sum(law)).pvalue > 1e-3


def test_only_ranked_candidates_of_rows_that_draw_have_noise() -> None:
    verifier = TargetVerifier(toy_target(), Chain(2), PROMPTS[:1], max_new_tokens=4, sampling=Sampling())
    verifier.prefill()
    assert verifier.root().noise is None
    drawn = TargetVerifier(toy_target(), SampledChain(2), PROMPTS[:1], max_new_tokens=4, sampling=SAMPLING)
    drawn.prefill()
    assert drawn.root().noise is None
    position = torch.tensor([4, 9, 1])
    settings = [Sampling(), SAMPLING, Sampling(0.5, seed=2)]
    mixed = MixedSampler(settings, 9, torch.zeros(3, 1, dtype=torch.long), torch.ones(3, dtype=torch.long))
    noise = mixed.root(position, position, sampled=False).noise
    torch.testing.assert_close(noise.temperature, torch.tensor([0.0, 0.9, 0.5]))
    assert torch.equal(noise.root, position)
    for row, sampling in enumerate(settings):
        alone = MixedSampler([sampling], 9, torch.zeros(1, 1, dtype=torch.long), torch.ones(1, dtype=torch.long), [row])
        assert alone.samplers[0].noise(position[row : row + 1]).stream == noise.stream[row]
