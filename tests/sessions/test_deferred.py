"""A draft that reads late has read the same."""

import pytest
import torch

from c2t.decoding import open_session
from c2t.models.wrappers.ngrams import NgramDraft
from c2t.policies import Budget, Eagle2, Plain
from c2t.replay.lockstep import replay, write_continuations
from c2t.sampling import Sampling
from c2t.sessions.deferred import DeferredSession, Observed, joined
from c2t.sessions.stateless import NoDraft
from c2t.tree import Tree
from c2t.verification.target_verifier import TargetVerifier, generate
from tests.every_policy import toy_costs
from tests.replay.test_lockstep import assert_same
from tests.rounding import assert_same_network
from tests.toys import PROMPTS, deep_pairs, emitted, root_of, toy_drafts, toy_target

NEW = 14
INNER = Eagle2(K=3, levels=2, N=8)
SAMPLING = Sampling(temperature=0.8, seed=5)


def drafter(name: str):
    if name == "ngrams":
        return toy_target(), NgramDraft(toy_drafts()["perturbed"], prior_weight=2.0)
    return deep_pairs()[name]


@pytest.mark.parametrize("name", ["eagle", "eagle3", "mtp", "medusa", "dspark", "lm", "ngrams"])
@torch.inference_mode()  # as every loop decodes: some drafts keep tensors from it
def test_one_late_forward_is_all_the_early_ones(name: str) -> None:
    """Ragged rows, several rounds, and a row that ended in between."""
    target, draft = drafter(name)
    generator = torch.Generator().manual_seed(0)
    early, late = draft.session(), DeferredSession(draft.session())
    size = target.session().prefill(torch.tensor([[1, 2]]), torch.tensor([2])).features.shape[2]
    counts = [[4, 2, 7], [1, 3, 2], [2, 1], [3, 1]]
    last = torch.zeros(3, dtype=torch.long)
    for number, count in enumerate(map(torch.tensor, counts)):
        if number == 2:
            going = torch.tensor([2, 0])
            last = last[going]
            for session in (early, late):
                session.select(going)
        tokens = torch.randint(48, (len(count), int(count.max()) + 1), generator=generator)
        tokens[:, 0] = last if number else tokens[:, 0]
        features = torch.randn(len(count), int(count.max()), size, generator=generator, dtype=torch.float64)
        for session in (early, late):
            session.observe(tokens, features, count)
        last = tokens.gather(1, count[:, None])[:, 0]
        assert late.passes.tolist() == [0] * len(count)
        late.refuse_nan()
    tree, slots = Tree.root(last), torch.zeros(2, 1, dtype=torch.long)
    mine, theirs = (session.expand(tree, slots) for session in (late, early))
    assert_same_network(mine.log_probs, theirs.log_probs)
    assert late.passes.tolist() == early.passes.tolist()
    assert late.backlog == []


def test_joined_rows_stand_end_to_end() -> None:
    first = Observed(torch.tensor([[5, 6, 7], [1, 2, 0]]), torch.tensor([[[0.5], [0.6]], [[0.1], [9.0]]]),
                     torch.tensor([2, 1]))  # fmt: skip
    second = Observed(torch.tensor([[7, 8, 0], [2, 3, 4]]), torch.tensor([[[0.7], [9.0]], [[0.2], [0.3]]]),
                      torch.tensor([1, 2]))  # fmt: skip
    tokens, features, count = joined([first, second])
    assert count.tolist() == [3, 3]
    assert tokens.tolist() == [[5, 6, 7, 8], [1, 2, 3, 4]]
    assert features[..., 0].equal(torch.tensor([[0.5, 0.6, 0.7], [0.1, 0.2, 0.3]]))


def switching() -> Budget:
    """A budget that drafts nothing for more than two rows, and two levels once rows have ended."""
    costs = toy_costs(2, a_token=0.08, per_level=0.01)
    budget = Budget(INNER, costs=costs)
    assert budget(NoGuess(), root_of(*range(4))).size == 1
    return budget


class NoGuess:
    def expand(self, tree, slots):
        raise AssertionError("nothing is to be drafted")


@pytest.mark.parametrize("name", ["perturbed", "eagle"])
def test_text_is_plain_decodings_when_drafting_starts_late(name: str) -> None:
    draft, policy = toy_drafts()[name], switching()
    free = emitted(list(generate(toy_target(), None, Plain(), PROMPTS, max_new_tokens=NEW, sampling=SAMPLING)), 4)
    eos = frozenset({free[0][3], free[2][2]})
    settings = {"max_new_tokens": NEW, "sampling": SAMPLING, "eos": eos}
    plain = emitted(list(generate(toy_target(), None, Plain(), PROMPTS, **settings)), 4)
    steps = list(generate(toy_target(), draft, policy, PROMPTS, **settings))
    ended = [[place for place, token in enumerate(text) if token in eos] for text in plain]
    for text, whole, ends in zip(emitted(steps, 4), plain, ended, strict=True):
        last = ends[0] + 1 if ends else NEW
        assert text[:last] == whole[:last]
    sizes = [step.tree.size for step in steps[1:]]
    assert sizes[0] == 1
    assert max(sizes) > 1, "drafting never started"
    assert [int(step.draft_passes.max()) > 0 for step in steps[1:]] == [size > 1 for size in sizes]
    texts = write_continuations(
        toy_target(), PROMPTS, max_new_tokens=NEW, beyond=policy.levels + 1, sampling=SAMPLING, eos=eos
    )
    assert_same(steps, list(replay(draft, policy, texts, seed=SAMPLING.seed, temperature=SAMPLING.temperature)))


def test_the_draft_sees_nothing_where_nothing_is_guessed() -> None:
    class Unread(NoDraft):
        def session(self):
            return self

        def observe(self, *_):
            raise AssertionError("the draft was asked to read")

    late = switching()  # all rows go on to the end, so never
    steps = list(generate(toy_target(), Unread(), late, PROMPTS, max_new_tokens=6, sampling=SAMPLING))
    plain = list(generate(toy_target(), None, Plain(), PROMPTS, max_new_tokens=6, sampling=SAMPLING))
    assert emitted(steps, 4) == emitted(plain, 4)


@pytest.mark.parametrize(
    ("budget", "follows"),
    [
        (Budget(INNER, nodes=4), True),
        (Budget(INNER, costs=toy_costs(2, a_token=0.15, per_level=0.01)), True),  # for one row
        (Budget(INNER, costs=toy_costs(2, per_level=0.3)), False),  # 11 % faster than plain decoding at best
    ],
)
def test_a_draft_follows_the_text_only_if_it_may_be_asked(budget: Budget, follows: bool) -> None:
    verifier = TargetVerifier(toy_target(), budget, PROMPTS, max_new_tokens=4, sampling=SAMPLING)
    session = open_session(toy_drafts()["perturbed"], budget, 4, verifier)
    assert isinstance(session, DeferredSession if follows else NoDraft)
