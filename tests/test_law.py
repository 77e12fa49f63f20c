"""The law of the text under every policy and rule: chi-square of what thousands of rows emit against the target's exact
probabilities, and the same test against wrong rules, which it must catch."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn.functional import one_hot

from c2t import decoding
from c2t.decoding import Step
from c2t.errors import InputError
from c2t.policies import MCSD, Eagle2, SampledChain, SpecInfer
from c2t.sampling import Sampling, TokenCounts
from c2t.tree import Tree
from c2t.verification import target_verifier
from c2t.verification.sampler import TargetSampler
from c2t.verification.target_verifier import generate
from tests.every_policy import EVERY_POLICY, EXACT, ONE_OF_EACH, SAMPLED, for_rows
from tests.markov import VOCABULARY, MarkovDraft, MarkovTarget, tables
from tests.marks import slow_except
from tests.toys import emitted

ROWS = 5000
PROMPT = [3, 5]
SAMPLINGS = {"T=1": Sampling(temperature=1.0, seed=1), "T=0.5 top-p": Sampling(temperature=0.5, top_p=0.9, seed=2)}
TARGET, DRAFT = tables()


def steps_of(policy, sampling: Sampling, rule: str | None = None) -> list[Step]:
    models = MarkovTarget(TARGET), MarkovDraft(DRAFT)
    return list(generate(*models, policy, [PROMPT] * ROWS, max_new_tokens=4, sampling=sampling, rule=rule))


def following(before: Tensor, last: Tensor, sampling: Sampling, counts: TokenCounts | None = None) -> Tensor:
    """Exact probabilities of the token after each pair of tokens."""
    return sampling.process(TARGET[before, last], counts).softmax(-1)


def law(sampling: Sampling, tokens: int) -> Tensor:
    """Exact probabilities of the first `tokens` new tokens, one axis each."""
    paths, probs = torch.tensor([PROMPT]), torch.ones(1, dtype=torch.float64)
    for _ in range(tokens):
        occurs = one_hot(paths, VOCABULARY)
        counts = TokenCounts(occurs.sum(1), occurs[:, len(PROMPT) :].sum(1))
        probs = (probs[:, None] * following(paths[:, -2], paths[:, -1], sampling, counts)).flatten()
        new = torch.arange(VOCABULARY).repeat(len(paths))[:, None]
        paths = torch.cat([paths.repeat_interleave(VOCABULARY, 0), new], 1)
    return probs.reshape([VOCABULARY] * tokens)


def chi_square(observed: Tensor, expected: Tensor) -> tuple[float, int]:
    """Statistic and degrees of freedom; cells that expect fewer than 5 are taken together, and in impossible ones
    whatever was observed is infinitely wrong."""
    observed, expected = observed.flatten().double(), expected.flatten()
    if observed[expected == 0].any():
        return float("inf"), 1
    rare = expected < 5
    columns = [torch.cat([column[~rare], column[rare].sum()[None]]) for column in (observed, expected)]
    observed, expected = (column[columns[1] > 0] for column in columns)
    return ((observed - expected) ** 2 / expected).sum().item(), max(0, len(observed) - 1)


def p_value(*tests: tuple[float, int]) -> float:
    """Of independent chi-squares together; 1 without degrees of freedom."""
    statistic, freedom = (sum(column) for column in zip(*tests, strict=True))
    return float(stats.chi2.sf(statistic, freedom)) if freedom else 1.0


def p_of_texts(steps: list[Step], sampling: Sampling) -> float:
    """Of the first token, which no tree has drafted, and the three after it, which trees and bonuses make."""
    texts = torch.tensor([tokens[:4] for tokens in emitted(steps, ROWS)])
    places = (texts * VOCABULARY ** torch.arange(3, -1, -1)).sum(1)
    counts = torch.bincount(places, minlength=VOCABULARY**4).reshape([VOCABULARY] * 4)
    exact = ROWS * law(sampling, 4)
    views = [(counts.sum((0, 3)), exact.sum((0, 3))), (counts.sum(0), exact.sum(0)), (counts, exact)]
    return min(p_value(chi_square(*view)) for view in views)


def p_of_bonus(steps: list[Step], sampling: Sampling) -> float:
    """Of the token that follows a path accepted down to a leaf: the target's own, given the path's last two tokens."""
    observed, expected = (torch.zeros(3 * [VOCABULARY], dtype=torch.float64) for _ in range(2))
    for step in steps[1:]:
        tree, slots, count = step.tree, step.accepted.slots, step.accepted.length
        leaf = slots.gather(1, count[:, None])
        childless = ~((tree.parent == leaf) & (tree.rank >= 0)).any(1)
        rows = ((count > 0) & childless).nonzero()[:, 0]
        parent = tree.parent.gather(1, leaf).clamp(min=0)
        before, last = (tree.token.gather(1, place)[rows, 0] for place in (parent, leaf))
        observed.index_put_((before, last, step.accepted.bonus[rows]), torch.ones(len(rows)).double(), accumulate=True)
        expected.index_put_((before, last), following(before, last, sampling), accumulate=True)
    return p_value(*map(chi_square, observed.flatten(0, 1), expected.flatten(0, 1)))


@pytest.mark.parametrize("sampling", slow_except(SAMPLINGS, "T=1"))
@pytest.mark.parametrize("name", slow_except(EXACT, "eagle2", *set(ONE_OF_EACH) & set(SAMPLED)))
def test_text_follows_the_targets_law(name: str, sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampled policies by both rules. Ranked ones with the noise of the target's draws, where the text has the law but
    not what follows given the tree, which was grown with these draws; and without, where that has it too."""
    policy, chosen = for_rows(EVERY_POLICY[name].policy, ROWS), SAMPLINGS[sampling]
    for rule in ["target-only", "residual"] if name in SAMPLED else ["noise", "target-only"]:
        if rule == "target-only":
            monkeypatch.setattr(decoding, "coupled", lambda draft, policy, verifier: draft)
        steps = steps_of(policy, chosen, None if rule == "noise" else rule)
        assert p_of_texts(steps, chosen) > 1e-4
        assert rule == "noise" or p_of_bonus(steps, chosen) > 1e-4
        accepted = torch.cat([step.accepted.length for step in steps[1:]]).double().mean()
        assert name == "plain" or accepted > 0.02  # or the law would say nothing about trees


RESCORED = {
    "min-p": Sampling(1.0, seed=5, min_p=0.2),
    "bias": Sampling(1.0, seed=6, logit_bias={0: -100.0, 1: 2.0, 5: -1.0}),
    "frequency": Sampling(0.8, seed=7, frequency_penalty=1.5),
    "presence": Sampling(1.0, seed=8, presence_penalty=-1.5),
    "all": Sampling(0.7, 6, 0.95, 1.2, 9, 0.02, 0.8, 0.4, {2: 1.5}),
}


@pytest.mark.parametrize("sampling", slow_except(RESCORED, "frequency", "all"))
@pytest.mark.parametrize("name", slow_except(EXACT, "eagle2", "mcsd"))
def test_text_follows_the_law_of_bias_penalties_and_min_p(name: str, sampling: str) -> None:
    policy, chosen = for_rows(EVERY_POLICY[name].policy, ROWS), RESCORED[sampling]
    for rule in ["target-only", "residual"] if name in SAMPLED else [None]:
        assert p_of_texts(steps_of(policy, chosen, rule), chosen) > 1e-4


@pytest.mark.parametrize(("name", "rule"), [("eagle2", None), ("mcsd", "residual")])
def test_the_chi_square_catches_counts_without_the_path(name: str, rule: str | None, monkeypatch) -> None:
    """Of nodes that know the text before the tree, and not the tokens between it and them."""
    chosen = RESCORED["frequency"]
    monkeypatch.setattr(TokenCounts, "plus", lambda self, *further: self)
    assert p_of_texts(steps_of(EVERY_POLICY[name].policy, chosen, rule), chosen) < 1e-9


@pytest.mark.parametrize("name", [name for name in EXACT if name not in SAMPLED])
def test_the_residual_rule_is_refused_for_ranked_policies(name: str) -> None:
    with pytest.raises(InputError, match="ranks its candidates"):
        steps_of(EVERY_POLICY[name].policy, SAMPLINGS["T=1"], "residual")


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(InputError, match="no verification rule is called 'lossy'; known: target-only, residual"):
        steps_of(MCSD((2,)), SAMPLINGS["T=1"], "lossy")


# Wrong rules. Each is a policy that lies about its tree, or a target that does not keep to its own law.


@dataclass(frozen=True)
class Wrong:
    """A policy whose trees are changed before they are verified by the residual rule."""

    policy: Any
    proposal = "sampled"
    exact = True

    @property
    def levels(self) -> int:
        return self.policy.levels

    def __call__(self, draft, root) -> Tree:
        return self.change(self.policy(draft, root), draft)


class RankedAsSampled(Wrong):
    """Says that the most probable children were drawn from the draft."""

    def change(self, tree: Tree, draft) -> Tree:
        slots = torch.where(tree.depth < 1, torch.arange(tree.size), -1)
        return tree.with_proposals(slots, draft.after(tree, slots.clamp(min=0)).log_softmax(-1), independent=False)


class Renormalised(Wrong):
    """Takes a rejected token out of D although it could have been drawn again."""

    def change(self, tree: Tree, draft) -> Tree:
        return replace(tree, proposals=replace(tree.proposals, independent=False))


class NotRenormalised(Wrong):
    """Leaves a rejected token in D although it could not be drawn again."""

    def change(self, tree: Tree, draft) -> Tree:
        return replace(tree, proposals=replace(tree.proposals, independent=True))


class Choosy(Wrong):
    """Drops what it has drawn, and sees to be improbable, as if it had stopped before."""

    def change(self, tree: Tree, draft) -> Tree:
        drop = (tree.log_prob < -1.5) & (tree.rank == tree.rank.max())
        return replace(tree, alive=tree.alive & ~drop, rank=torch.where(drop, -1, tree.rank))


class OneOfEach(Wrong):
    """Offers a token that was drawn twice once only."""

    def change(self, tree: Tree, draft) -> Tree:
        return replace(tree, rank=torch.where(tree.alive, tree.rank, -1))


class Warmer(Wrong):
    """Names another temperature than the tokens were drawn at."""

    def change(self, tree: Tree, draft) -> Tree:
        log_probs = (tree.proposals.log_probs * 0.6).log_softmax(-1)
        return replace(tree, proposals=replace(tree.proposals, log_probs=log_probs))


WRONG = [
    RankedAsSampled(Eagle2(2, 2, None)),
    Renormalised(SpecInfer((3, 2))),
    NotRenormalised(MCSD((3, 2))),
    Choosy(SampledChain(2)),
    OneOfEach(SpecInfer((6, 3), temperature=0.7)),
    Warmer(SampledChain(2)),
    Warmer(MCSD((3, 2))),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{type(wrong).__name__}-{type(wrong.policy).__name__}")
def test_the_chi_square_catches_wrong_trees(wrong: Wrong) -> None:
    right = steps_of(wrong.policy, SAMPLINGS["T=1"])
    assert p_of_texts(right, SAMPLINGS["T=1"]) > 1e-4
    assert p_of_texts(steps_of(wrong, SAMPLINGS["T=1"]), SAMPLINGS["T=1"]) < 1e-9


class RawBonus(TargetSampler):
    """Draws what follows a leaf from unprocessed logits, as upstream did before its fix."""

    def accept(self, tree, logits, position, rule, constraints=None):
        right = super().accept(tree, logits, position, rule)
        last = right.slots.gather(1, right.length[:, None])
        leaf = ~((tree.parent == last) & (tree.rank >= 0)).any(1)
        raw = Sampling(temperature=1.0, seed=self.sampling.seed)
        unprocessed = logits.at(torch.arange(len(last)), last[:, 0])
        bonus = raw.sample(unprocessed, self.sequence, position + right.length + 1)
        return right._replace(bonus=torch.where(leaf, bonus, right.bonus))


@pytest.mark.parametrize("policy", [Eagle2(3, 2, None), MCSD((3, 2))], ids=lambda policy: type(policy).__name__)
def test_the_chi_square_catches_a_bonus_from_unprocessed_logits(policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_verifier, "TargetSampler", RawBonus)
    sampling = SAMPLINGS["T=0.5 top-p"]
    steps = steps_of(policy, sampling)
    assert p_of_texts(steps, sampling) < 1e-9
    assert p_of_bonus(steps, sampling) < 1e-9
