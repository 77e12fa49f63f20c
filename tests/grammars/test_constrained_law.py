"""The law of a constrained text: chi-square of what thousands of rows emit against the target's probabilities among
what may follow, and the same test against a target that is not masked, which it must catch."""

import pytest
import torch

from c2t.decoding import Step
from c2t.grammars.constraints import Constraints
from c2t.sampling import Sampling
from c2t.verification.target_verifier import generate
from tests.every_policy import EVERY_POLICY, EXACT, SAMPLED, for_rows
from tests.markov import VOCABULARY, MarkovDraft, MarkovTarget
from tests.marks import slow_except
from tests.table_constraint import followers, rows_of
from tests.test_law import DRAFT, PROMPT, SAMPLINGS, TARGET, chi_square, p_value
from tests.toys import emitted

ROWS = 1500
SEED = 2  # of the constraint: after most tokens several may follow


def steps_of(name: str, sampling: Sampling, rule: str | None) -> list[Step]:
    settings = {"max_new_tokens": 4, "sampling": sampling, "rule": rule}
    policy = for_rows(EVERY_POLICY[name].policy, ROWS)
    constraints = rows_of(ROWS, VOCABULARY, SEED)
    models = MarkovTarget(TARGET), MarkovDraft(DRAFT)
    return list(generate(*models, policy, [PROMPT] * ROWS, **settings, constraints=constraints))


def law(sampling: Sampling) -> torch.Tensor:
    """Exact probabilities of the first four new tokens, one axis each."""
    paths, probs = torch.tensor([PROMPT]), torch.ones(1, dtype=torch.float64)
    for count in range(4):
        logits = TARGET[paths[:, -2], paths[:, -1]]
        allowed = followers(VOCABULARY, SEED)[paths[:, -1] if count else torch.tensor([-1])]
        following = sampling.process(logits.masked_fill(~allowed, float("-inf"))).softmax(-1)
        probs = (probs[:, None] * following).flatten()
        new = torch.arange(VOCABULARY).repeat(len(paths))[:, None]
        paths = torch.cat([paths.repeat_interleave(VOCABULARY, 0), new], 1)
    return probs.reshape([VOCABULARY] * 4)


def p_of(steps: list[Step], sampling: Sampling) -> float:
    texts = torch.tensor([tokens[:4] for tokens in emitted(steps, ROWS)])
    places = (texts * VOCABULARY ** torch.arange(3, -1, -1)).sum(1)
    counts, exact = torch.bincount(places, minlength=VOCABULARY**4).reshape([VOCABULARY] * 4), ROWS * law(sampling)
    return min(p_value(chi_square(*view)) for view in ((counts.sum((2, 3)), exact.sum((2, 3))), (counts, exact)))


@pytest.mark.parametrize("sampling", slow_except(SAMPLINGS, "T=1"))
@pytest.mark.parametrize("name", slow_except(EXACT, "eagle2", "specinfer"))
def test_text_follows_the_targets_law_among_what_may_follow(name: str, sampling: str) -> None:
    for rule in ["target-only", "residual"] if name in SAMPLED else ["target-only"]:
        steps = steps_of(name, SAMPLINGS[sampling], rule)
        assert p_of(steps, SAMPLINGS[sampling]) > 1e-4
        accepted = torch.cat([step.accepted.length for step in steps[1:]]).double().mean()
        assert name == "plain" or accepted > 0.1  # or the law would say nothing about trees


@pytest.mark.parametrize("rule", ["target-only", "residual"])
def test_what_must_follow_a_sampled_tree_is_accepted(rule: str) -> None:
    policy = EVERY_POLICY["specinfer"].policy
    constraints = rows_of(300, VOCABULARY, SEED)
    settings = {"max_new_tokens": policy.levels + 4, "sampling": SAMPLINGS["T=1"], "rule": rule}
    steps = generate(
        MarkovTarget(TARGET), MarkovDraft(DRAFT), policy, [PROMPT] * 300, **settings, constraints=constraints
    )
    assert max(int(step.accepted.length.max()) for step in list(steps)[1:]) > policy.levels


@pytest.mark.parametrize("rule", ["target-only", "residual"])
def test_the_chi_square_catches_a_target_that_is_not_masked_behind_the_root(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    required = Constraints.required
    monkeypatch.setattr(Constraints, "required", lambda self, row, path: None if path else required(self, row, path))
    monkeypatch.setattr(Constraints, "advance", lambda self, tokens: None)  # which would meet a forbidden token
    assert p_of(steps_of("specinfer", SAMPLINGS["T=1"], rule), SAMPLINGS["T=1"]) < 1e-9
