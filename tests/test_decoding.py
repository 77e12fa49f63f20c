"""Exactness: whatever the draft and the tree, the text is the target's own, token for token and in law."""

import pytest
import torch
from scipy import stats
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from c2t import decoding
from c2t.decoding import cut
from c2t.models.drafts.language_model import DraftLM
from c2t.models.target.target import Target
from c2t.policies import C2T, Eagle2, Plain
from c2t.sampling import Sampling
from c2t.sessions import coupled
from c2t.tree import Tree
from c2t.verification import target_verifier
from c2t.verification.sampler import TargetSampler
from c2t.verification.target_verifier import generate
from tests.toys import PROMPTS, perturbed, random_eagle, run, toy_classifier, toy_drafts, toy_target

POLICIES = {
    "eagle2": Eagle2(K=4, levels=4, N=12),
    "c2t": C2T(toy_classifier(), beta=0.25, K=4, W=4, levels=5),
}
SAMPLINGS = {
    "greedy": Sampling(),
    "greedy with penalty": Sampling(repetition_penalty=1.3),
    "greedy with counts": Sampling(frequency_penalty=0.9, presence_penalty=0.3, logit_bias={7: -100.0, 30: 1.5}),
    "T=1": Sampling(temperature=1.0, seed=1),
    "T=0.4": Sampling(temperature=0.4, seed=-5),
    "all": Sampling(temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.2, seed=10**20),
    "all with counts": Sampling(0.8, 20, 0.9, 1.2, 7, 0.01, -0.5, 0.6, {7: 2.0, 12: -1.0}),
}
DRAFTS = ["eagle", "same", "perturbed"]
NEW = 16


@pytest.fixture(scope="module")
def plain() -> dict[str, list[list[int]]]:
    return {
        name: run(toy_target(), None, Plain(), PROMPTS, sampling, new=NEW)[0] for name, sampling in SAMPLINGS.items()
    }


def hugging_face(prompt: list[int], new: int, target: Target | None = None, **settings) -> list[int]:
    ids = (target or toy_target()).model.generate(
        torch.tensor([prompt]), max_new_tokens=new, do_sample=False, pad_token_id=0, **settings
    )
    return ids[0, len(prompt) :].tolist()


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("draft", DRAFTS)
def test_text_is_that_of_plain_decoding(draft: str, sampling: str, plain) -> None:
    """With every way of sampling; every policy: tests/policies/test_every_policy.py."""
    texts, _ = run(toy_target(), toy_drafts()[draft], POLICIES["eagle2"], PROMPTS, SAMPLINGS[sampling], new=NEW)
    assert texts == plain[sampling]


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_greedy_text_is_that_of_generate(penalty: float, plain) -> None:
    name = "greedy" if penalty == 1 else "greedy with penalty"
    assert plain[name] == [hugging_face(prompt, NEW, repetition_penalty=penalty) for prompt in PROMPTS]


def test_greedy_text_with_counts_is_the_stock_models(plain) -> None:
    """Token by token: bias, and penalties of what was written so far, but not of the prompt."""
    sampling = SAMPLINGS["greedy with counts"]
    for prompt, text in zip(PROMPTS, plain["greedy with counts"], strict=True):
        for number, token in enumerate(text):
            with torch.no_grad():
                logits = toy_target().model(torch.tensor([prompt + text[:number]])).logits[0, -1]
            for biased, value in sampling.logit_bias:
                logits[biased] += value
            for written in set(text[:number]):
                logits[written] -= sampling.frequency_penalty * text[:number].count(written) + sampling.presence_penalty
            assert int(logits.argmax()) == token
    assert plain["greedy with counts"] != plain["greedy"]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.slow
def test_greedy_text_does_not_hang_on_the_weights(seed: int) -> None:
    """Other targets, with drafts of theirs: EAGLE-2 and C2T write what generate writes."""
    target = toy_target(seed=seed)
    for draft in (random_eagle(target, seed + 10), perturbed(target, seed=seed + 20)):
        for policy in (POLICIES["eagle2"], POLICIES["c2t"]):
            texts, _ = run(target, draft, policy, PROMPTS, Sampling(), new=NEW)
            assert texts == [hugging_face(prompt, NEW, target) for prompt in PROMPTS]


def test_drafts_of_these_tests_are_partly_accepted() -> None:
    """Else exactness would say nothing."""
    for draft, sampling in (("perturbed", "greedy"), ("perturbed", "all"), ("eagle", "T=1")):
        _, steps = run(toy_target(), toy_drafts()[draft], POLICIES["eagle2"], PROMPTS, SAMPLINGS[sampling], new=NEW)
        accepted = torch.cat([step.accepted.length for step in steps[1:]])
        assert 0 < accepted.float().mean() < 4
        assert len(set(accepted.tolist())) > (1 if draft == "eagle" else 2)


@pytest.mark.parametrize(("policy", "sampling"), [("eagle2", "greedy"), ("c2t", "all")])
def test_each_row_is_its_run_alone(policy: str, sampling: str) -> None:
    draft, eos = toy_drafts()["perturbed"], frozenset({7, 30})
    together, steps = run(toy_target(), draft, POLICIES[policy], PROMPTS, SAMPLINGS[sampling], new=NEW, eos=eos)
    for prompt in range(len(PROMPTS)):
        alone, own = run(
            toy_target(),
            draft,
            POLICIES[policy],
            PROMPTS[prompt : prompt + 1],
            SAMPLINGS[sampling],
            new=NEW,
            eos=eos,
            sequences=[prompt],
        )
        assert alone == together[prompt : prompt + 1]
        shared = [(step, step.rows.tolist().index(prompt)) for step in steps if prompt in step.rows.tolist()]
        assert len(shared) == len(own)
        for (step, row), mine in zip(shared[1:], own[1:], strict=True):
            size = int(mine.tree.sizes[0])
            assert step.tree.sizes[row] == size
            assert step.tree.token[row, :size].tolist() == mine.tree.token[0, :size].tolist()
            assert step.tree.parent[row, :size].tolist() == mine.tree.parent[0, :size].tolist()
            assert step.count[row] == mine.count[0]
            assert step.draft_passes[row] == mine.draft_passes[0]


def test_rounds_run_in_inference_mode_and_what_the_caller_does_between_them_does_not() -> None:
    """With and without checks of types, which wrap functions and would hide a generator from a decorator."""
    for step in generate(toy_target(), toy_drafts()["eagle"], Eagle2(), PROMPTS, max_new_tokens=4, sampling=Sampling()):
        assert step.tokens.is_inference()
        assert not torch.is_inference_mode_enabled()


def test_the_seed_and_the_number_of_the_sequence_choose_the_text() -> None:
    def texts(seed: int, sequences: list[int] | None = None) -> list[list[int]]:
        sampling = Sampling(temperature=1.0, seed=seed)
        return run(toy_target(), None, Plain(), [PROMPTS[0]] * 2, sampling, new=12, sequences=sequences)[0]

    assert texts(3) == texts(3)
    assert texts(3) != texts(4)
    assert texts(3)[0] != texts(3)[1]
    assert texts(3, [1, 0]) == texts(3)[::-1]
    assert texts(3, [8, 8])[0] == texts(3, [8, 8])[1]


@pytest.mark.parametrize("policy", ["eagle2", "c2t", "plain"])
@pytest.mark.parametrize("new", [1, 2, 5, NEW])
def test_the_limit_and_eos_cut_where_generate_cuts(policy: str, new: int) -> None:
    free = [hugging_face(prompt, NEW) for prompt in PROMPTS]
    # as the first token of one prompt, later in others, and never in some
    for eos in ({free[0][0]}, {free[1][4]}, {free[2][9], free[3][2]}):
        expected = [hugging_face(prompt, new, eos_token_id=sorted(eos)) for prompt in PROMPTS]
        chosen, draft = (Plain(), None) if policy == "plain" else (POLICIES[policy], toy_drafts()["perturbed"])
        texts, steps = run(toy_target(), draft, chosen, PROMPTS, new=new, eos=frozenset(eos))
        assert texts == expected
        # nobody is decoded on after its end
        for prompt, text in enumerate(texts):
            rounds = [int(s.count[s.rows.tolist().index(prompt)]) for s in steps if prompt in s.rows.tolist()]
            assert sum(rounds[:-1]) < len(text) <= sum(rounds)


def test_cut_ends_with_the_first_eos_or_at_the_limit() -> None:
    assert cut([1, 2, 3], 5, frozenset({9})) == [1, 2, 3]
    assert cut([1, 2, 3], 2, frozenset({3})) == [1, 2]
    assert cut([1, 9, 3, 9], 4, frozenset({9})) == [1, 9]
    assert cut([9], 4, frozenset({9})) == [9]


# The law of the emitted tokens, against probabilities by stock transformers.

TINY = 8
PROMPT = [1, 5, 2]
ROWS, AT_ONCE = 1600, 400


def laws(sampling: Sampling, tokens: int) -> torch.Tensor:
    """Exact probabilities of the first `tokens` new tokens, one axis each, with Hugging Face's processors."""
    chain = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_p < 1:
        chain.append(TopPLogitsWarper(sampling.top_p))
    law = torch.ones((), dtype=torch.float64)
    paths = torch.tensor([PROMPT])
    for _ in range(tokens):
        with torch.no_grad():
            logits = toy_target(TINY, spread=0.25).model(paths).logits[:, -1]
        law = (law.reshape(-1, 1) * chain(paths, logits).softmax(-1)).flatten()
        following = torch.arange(TINY).repeat(len(paths))[:, None]
        paths = torch.cat([paths.repeat_interleave(TINY, 0), following], 1)
    return law.reshape([TINY] * tokens)


def p_value(texts: list[list[int]], law: torch.Tensor) -> float:
    """Chi-square of the observed first tokens; cells that expect fewer than 5 are taken together."""
    tokens = torch.tensor([text[: law.ndim] for text in texts])
    places = (tokens * TINY ** torch.arange(law.ndim - 1, -1, -1)).sum(1)
    observed, expected = torch.bincount(places, minlength=law.numel()).double(), law.flatten() * len(texts)
    assert not observed[expected == 0].any()
    order = expected.argsort(descending=True)
    observed, expected = observed[order], expected[order]
    rare = expected < 5
    columns = [torch.cat([column[~rare], column[rare].sum()[None]]) for column in (observed, expected)]
    observed, expected = (column[columns[1] > 0].numpy() for column in columns)
    return stats.chisquare(observed, expected).pvalue


def sample(sampling: Sampling, policy, kind: str = "perturbed") -> list[list[int]]:
    target = toy_target(TINY, spread=0.25)
    draft = {"perturbed": lambda: perturbed(target, 0.1), "eagle": lambda: random_eagle(target)}[kind]()
    starts = range(0, ROWS, AT_ONCE)
    numbers = [range(start, start + AT_ONCE) for start in starts]
    runs = [run(target, draft, policy, [PROMPT] * AT_ONCE, sampling, new=3, sequences=rows)[0] for rows in numbers]
    return [text for texts in runs for text in texts]


TREE = Eagle2(K=2, levels=2, N=None)
LAWS = [Sampling(temperature=1.0, seed=11), Sampling(temperature=0.5, top_p=0.9, seed=12)]


@pytest.mark.parametrize(
    ("draft", "sampling"), [("perturbed", LAWS[0]), ("eagle", LAWS[1])], ids=["T=1", "random head-T=0.5 top-p"]
)
@pytest.mark.slow
def test_first_tokens_follow_the_exact_law(draft: str, sampling: Sampling) -> None:
    """Of real models with Hugging Face's processors; every policy and rule: tests/test_law.py."""
    texts = sample(sampling, TREE, draft)
    assert p_value(texts, laws(sampling, 2)) > 1e-3
    assert p_value([text[1:] for text in texts], laws(sampling, 3).sum(0)) > 1e-3  # drawn in trees


class EagerAccept(TargetSampler):
    """Takes the draft's first child whenever the target gives it some probability."""

    def accept(self, tree, logits, position, rule, constraints=None):
        right = super().accept(tree, logits, position, rule)
        logits = logits.padded()
        likely = logits[:, 0].softmax(-1).gather(1, tree.token[:, 1:2])[:, 0] > 0.3
        bonus = torch.where(likely, self.sample(logits[:, 1], position + 2), right.bonus)
        return right._replace(slots=torch.where(likely[:, None], torch.tensor([0, 1]), right.slots), bonus=bonus)


def forgetful(tree: Tree) -> torch.Tensor:
    """A mask in which nodes see themselves and no ancestor, as orphans would."""
    return torch.eye(tree.size, dtype=torch.bool).expand(len(tree.token), -1, -1)


@pytest.mark.parametrize("wrong", [EagerAccept, forgetful], ids=lambda wrong: wrong.__name__)
@pytest.mark.slow
def test_the_chi_square_catches_wrong_rules(wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    if wrong is forgetful:
        monkeypatch.setattr(Tree, "ancestors", forgetful)
    else:
        monkeypatch.setattr(target_verifier, "TargetSampler", wrong)
        monkeypatch.setattr(decoding, "coupled", lambda draft, policy, verifier: draft)  # which it would prefer more
    policy = Eagle2(K=TINY, levels=1, N=None)  # everything is a child of the root, so the third token is a bonus
    sampling = LAWS[1]
    law = laws(sampling, 3)
    texts = sample(sampling, policy)
    outside = any(law[tuple(text)] == 0 for text in texts)  # tokens that top-p excludes
    assert outside or p_value([text[1:] for text in texts], law.sum(0)) < 1e-6


def test_a_draft_of_the_targets_own_weights_is_accepted_in_full_at_any_temperature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Greedy is no special case. Without the target's noise the most probable child is accepted as often as the target
    draws it."""
    monkeypatch.setattr(coupled, "NOISE_SCALE", 1.0)
    target = toy_target(TINY, spread=0.25)
    sampling = Sampling(temperature=1.0, seed=3)
    _, steps = run(target, DraftLM(target), Eagle2(K=1, levels=1, N=None), [PROMPT] * AT_ONCE, sampling, new=2)
    assert (steps[1].accepted.length == 1).all()
    monkeypatch.setattr(decoding, "coupled", lambda draft, policy, verifier: draft)
    _, steps = run(target, DraftLM(target), Eagle2(K=1, levels=1, N=None), [PROMPT] * AT_ONCE, sampling, new=2)
    accepted = steps[1].accepted.length.double().mean().item()
    law = laws(sampling, 2)
    expected = law.max(1).values.sum().item()
    assert accepted == pytest.approx(expected, abs=4 * (expected * (1 - expected) / AT_ONCE) ** 0.5)
