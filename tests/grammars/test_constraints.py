"""Trees under constraints: the text is that of plain constrained decoding, nothing forbidden is verified, and what must
follow is drafted."""

import random
from functools import partial
from itertools import pairwise
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from c2t.batching import BatchDecoder
from c2t.caches.ragged import Ragged, SlotLogits
from c2t.decoder import SpeculativeDecoder
from c2t.decoding import Step, cut
from c2t.errors import InputError
from c2t.grammars.constraint import Vocabulary
from c2t.grammars.constraints import Constraints
from c2t.grammars.forced import LEAST, completed
from c2t.grammars.row_constraint import LONGEST_RUN, RowConstraint
from c2t.kernels import masks, walk
from c2t.kernels.native import kernels
from c2t.models.loading.load import Pair
from c2t.policies import Eagle2, MCSDPlus, Plain
from c2t.protocols import DraftVocabulary, NextTokenDistributions, Policy
from c2t.sampling import Sampling
from c2t.sessions.masked import with_masks
from c2t.tree import Tree
from c2t.verification.sampler import TargetSampler
from c2t.verification.target_verifier import generate
from tests.every_policy import EVERY_POLICY, EXACT, ONE_OF_EACH
from tests.kernels.test_walk import assert_same_path
from tests.marks import slow_except
from tests.table_constraint import (
    Cycle,
    GivesUp,
    Limited,
    SameText,
    TableConstraint,
    WearsOut,
    followers,
    follows,
    rows_of,
)
from tests.test_tree import trees
from tests.toys import PROMPTS, VOCABULARY, emitted, toy_drafts, toy_target, toy_tokenizer

NEW = 16
EOS = frozenset({5, 11, 17})
SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=0.9, seed=3),
    "filtered": Sampling(temperature=0.8, top_p=0.95, repetition_penalty=1.1, seed=3),
}
BEGINNING = followers(VOCABULARY, 0)[-1]
needs_c = pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")


def write(name: str, draft: str, sampling: Sampling, constrained: tuple[int, ...] = (0, 1, 3)) -> list[Step]:
    """Rounds over all prompts; those that are not `constrained` are free."""
    rows = rows_of(len(PROMPTS), VOCABULARY, eos=EOS)
    rows = [row if number in constrained else None for number, row in enumerate(rows)]
    models = toy_target(), toy_drafts()[draft]
    settings = {"max_new_tokens": NEW, "sampling": sampling, "eos": EOS, "rule": None, "constraints": rows}
    if EVERY_POLICY[name].policy.proposal == "sampled":
        settings["rule"] = "target-only"
    return list(generate(*models, EVERY_POLICY[name].policy, PROMPTS, **settings))


def texts(steps: list[Step]) -> list[list[int]]:
    return [cut(tokens, NEW, EOS) for tokens in emitted(steps, len(PROMPTS))]


@pytest.mark.parametrize("sampling", slow_except(SAMPLINGS, "greedy"))
@pytest.mark.parametrize("name", slow_except(EXACT, *set(ONE_OF_EACH) & set(EXACT)))
def test_text_is_that_of_plain_constrained_decoding(name: str, sampling: str) -> None:
    expected = texts(write("plain", "perturbed", SAMPLINGS[sampling]))
    assert texts(write(name, "perturbed", SAMPLINGS[sampling])) == expected
    assert all(follows(expected[number], VOCABULARY) for number in (0, 1, 3))
    assert not follows(expected[2], VOCABULARY)


def test_without_kernels_texts_are_the_same() -> None:
    """By torch everywhere, as on a GPU."""
    for name in ("eagle2", "threshold"):
        for sampling in SAMPLINGS.values():
            with mock.patch.object(walk, "serves", return_value=False):
                found = texts(write(name, "perturbed", sampling))
            assert found == texts(write("plain", "perturbed", sampling))


@pytest.mark.parametrize("name", ["eagle2", "threshold", "opttree"])
def test_nothing_forbidden_is_verified(name: str) -> None:
    for step in write(name, "eagle", SAMPLINGS["greedy"], (0, 1, 2, 3))[1:]:
        for row in range(len(step.rows)):
            for slot in step.tree.alive[row].nonzero()[:, 0].tolist():
                path = [slot]
                while path[-1] > 0:
                    path.append(int(step.tree.parent[row, path[-1]]))
                tokens = step.tree.token[row, path[::-1]].tolist()
                pairs = pairwise(tokens)
                assert all(followers(VOCABULARY, 0)[before, token] and before not in EOS for before, token in pairs)


def test_forced_tokens_join_the_tree_without_a_draft_forward() -> None:
    constraints = Constraints([*rows_of(2, VOCABULARY), None])
    roots = [next(token for token in range(VOCABULARY) if forced_after(token) >= count) for count in (2, 1)]
    for row, root in zip(constraints.rows, [*roots, None], strict=True):
        if row is not None:
            row._matcher.text.append(root)  # as if committed
    tree = completed(Tree.root(torch.tensor([*roots, 3])), constraints, [20, 20, 20])
    assert tree.sizes.tolist() == [1 + min(forced_after(roots[0]), 16), 1 + forced_after(roots[1]), 1]
    assert (tree.log_joint[tree.alive] == 0).all()
    assert tuple(tree.token[0, 1:].tolist()) == constraints.forced(0, ())[: tree.size - 1]
    limited = completed(Tree.root(torch.tensor([*roots, 3])), constraints, [2, 1, 1])
    assert limited.sizes.tolist() == [2, 1, 1]  # nothing beyond the last tokens that the texts may get


def forced_after(token: int) -> int:
    row = rows_of(1, VOCABULARY)[0]
    row._matcher.text.append(token)
    return len(row.guessed_run(()))


def test_a_run_of_forced_tokens_is_asked_for_together_and_a_hostile_one_costs_no_memory() -> None:
    matcher = Cycle(VOCABULARY)
    row = RowConstraint(lambda: matcher, VOCABULARY, frozenset())
    text = []
    for number in range(2 * LONGEST_RUN):
        assert matcher.asked == -(-number // LONGEST_RUN)
        assert len(row.guessed_run(())) == LONGEST_RUN - number % LONGEST_RUN
        text.append(row.required(()).only)
        row.advance(text[-1:])
    assert text == [number % VOCABULARY for number in range(2 * LONGEST_RUN)]


def test_text_that_had_to_follow_before_is_guessed_and_a_wrong_guess_changes_no_text() -> None:
    def write(policy: Policy, sampling: Sampling) -> tuple[list[list[int]], list[RowConstraint]]:
        rows = rows_of(len(PROMPTS), VOCABULARY, eos=EOS)
        for row in rows:
            row._matcher = SameText(row._matcher.allowed, EOS, None)
        models, limits = (toy_target(), toy_drafts()["perturbed"]), {"max_new_tokens": NEW, "eos": EOS}
        steps = list(generate(*models, policy, PROMPTS, **limits, sampling=sampling, constraints=list(rows)))
        return texts(steps), rows

    for sampling in SAMPLINGS.values():
        expected, _ = write(Plain(), sampling)
        assert all(follows(tokens, VOCABULARY) for tokens in expected)
        for name in ("eagle2", "threshold", "opttree"):
            found, rows = write(EVERY_POLICY[name].policy, sampling)
            assert found == expected
            assert all(list(row._runs) == [b"same"] for row in rows)


def test_what_is_improbable_is_not_continued() -> None:
    constraints = Constraints(rows_of(1, VOCABULARY))
    first = next(token for token in BEGINNING.nonzero()[:, 0].tolist() if forced_after(token))
    tree = Tree.root(torch.tensor([1]))
    slot, log_prob = torch.zeros(1, 1, dtype=torch.long), 0.5 * torch.tensor([[[LEAST]]]).log()
    for factor, size in ((1.0, 2 + forced_after(first)), (4.0, 2)):
        child = tree.children(slot, torch.tensor([[[first]]]), factor * log_prob, torch.zeros(1, 1))
        assert completed(tree.extend(child), constraints, [20]).size == size


@needs_c
@settings(max_examples=60, deadline=None)
@given(trees(), st.sampled_from([0.0, 0.7]), st.integers(0, 2**31), st.booleans())
def test_walks_in_c_are_those_of_torch(tree: Tree, temperature: float, seed: int, all_rows: bool) -> None:
    random = torch.Generator().manual_seed(seed)
    rows, size = Ragged.of(tree.alive), 7
    logits = torch.randn(len(rows.row), size, generator=random)
    tree.token.copy_(torch.randint(0, size, tree.token.shape, generator=random))
    count = len(tree.token)

    def found(in_c: bool):
        of_rows = rows_of(count, size, eos=frozenset({2}))
        constraints = Constraints([row if all_rows or number % 2 else None for number, row in enumerate(of_rows)])
        first, ones = tree.token[:, :1], torch.ones(count, dtype=torch.long)
        sampler = TargetSampler(Sampling(temperature, seed=5), size, first, ones)
        with mock.patch.object(walk, "serves", return_value=in_c):
            return sampler.accept(tree, SlotLogits(logits, rows.packed_index), ones * 9, "target-only", constraints)

    assert_same_path(found(True), found(False))


@needs_c
def test_the_walk_in_c_ends_as_that_of_torch_where_nothing_is_required() -> None:
    """Past a token that ends the text, the best token of all follows."""
    end, logits = int(BEGINNING.nonzero()[0]), torch.rand(2, VOCABULARY, generator=torch.Generator().manual_seed(1))
    logits[0, end] = 9
    slot = torch.zeros(1, 1, dtype=torch.long)
    tree = Tree.root(torch.tensor([1]))
    tree = tree.extend(tree.children(slot, torch.tensor([[[end]]]), torch.zeros(1, 1, 1), torch.zeros(1, 1)))
    constraints = Constraints(rows_of(1, VOCABULARY, eos=frozenset({end})))
    found = walk.walk(
        logits, torch.tensor([[0, 1]]), tree.token, tree.parent, tree.alive, ask_after=constraints.ask_required
    )
    assert (found.length.item(), found.bonus.item()) == (1, int(logits[1].argmax()))


@needs_c
@settings(max_examples=60, deadline=None)
@given(trees(), st.integers(0, 2**31), st.booleans(), st.booleans())
def test_masks_in_c_are_those_of_torch(tree: Tree, seed: int, limited: bool, oov: bool) -> None:
    random = torch.Generator().manual_seed(seed)
    size, count = 37, len(tree.token)
    tree.token.copy_(torch.randint(0, size, tree.token.shape, generator=random))
    common = torch.randperm(size, generator=random)[:12].sort().values if limited else torch.arange(size)
    more = torch.randint(-1, size, (count, 3), generator=random) if oov else None
    vocabulary = DraftVocabulary(common, size, more) if limited or oov else None
    width = len(common) + (3 if oov else 0)
    real = Ragged.of(tree.alive)
    logits = torch.randn(len(real.row), width, generator=random)
    slots = torch.where(tree.alive, torch.arange(tree.size), -1)
    constraints = Constraints([row if number % 3 else None for number, row in enumerate(rows_of(count, size))])

    def masked(in_c: bool) -> torch.Tensor:
        given = NextTokenDistributions(logits.clone(), None, vocabulary, real)
        with mock.patch.object(masks, "serves", return_value=in_c):
            return with_masks(given, tree, slots, constraints).drafted

    found = masked(True)
    assert torch.equal(found, masked(False))
    if more is not None:  # -1 is no token, also where every token is forbidden
        assert (found[:, -3:] == float("-inf"))[(more[real.row] < 0) & (real.row % 3 > 0)[:, None]].all()


def test_a_distribution_without_allowed_tokens_becomes_uniform() -> None:
    constraints = Constraints(rows_of(1, VOCABULARY))
    vocabulary = DraftVocabulary((~BEGINNING).nonzero()[:2, 0], VOCABULARY, torch.tensor([[-1]]))
    tree = Tree.root(torch.tensor([1]))
    for in_c in (False, masks.serves(torch.ones(1))):
        rows = NextTokenDistributions(torch.tensor([[[1.0, 9.0, 2.0]]]), None, vocabulary)
        with mock.patch.object(masks, "serves", return_value=in_c):
            found = with_masks(rows, tree, torch.zeros(1, 1, dtype=torch.long), constraints)
        assert found.drafted.tolist() == [[[0.0, 0.0, float("-inf")]]]


def test_requests_with_and_without_constraints_share_a_batch() -> None:
    pair = Pair("toy", toy_target(), toy_drafts()["perturbed"], toy_tokenizer(), "", {})
    found = {}
    for at_once in (1, 3):
        decoder = BatchDecoder(pair, Eagle2(K=3, levels=3, N=8), max_rows=at_once)
        requests = []
        for number, prompt in enumerate(PROMPTS):
            sampling, constraint = Sampling(0.5 * (number % 2), seed=2), TableConstraint() if number != 2 else None
            requests.append(decoder.submit(prompt, NEW - number, sampling, number, EOS, constraint))
            decoder.step()
        while decoder.step():
            pass
        found[at_once] = [request.tokens for request in requests]
    assert found[1] == found[3]
    assert [follows(tokens, VOCABULARY) for tokens in found[3]] == [True, True, False, True]


def test_a_dead_end_ends_its_own_request_only() -> None:
    vocabulary = Vocabulary(None, VOCABULARY, EOS)
    row = RowConstraint.of(TableConstraint(dead_end=-1), vocabulary)
    with pytest.raises(InputError, match="no further token"):
        row.required(())
    assert row.mask(()).empty
    assert row.guessed_run(()) == ()


def test_a_matcher_that_gives_up_beside_the_text_begins_anew() -> None:
    table = TableConstraint().matcher(Vocabulary(None, VOCABULARY, EOS))
    path = next(token for token in range(VOCABULARY) if table.allowed[-1][token] and token not in EOS)
    row = RowConstraint(lambda: GivesUp(table.allowed, EOS, path), VOCABULARY, EOS)
    first = row.mask(()).flags()
    assert row.mask((path,)).empty
    other = next(token for token in range(VOCABULARY) if table.allowed[-1][token] and token not in (*EOS, path))
    assert not row.mask((other,)).empty
    row.advance([other])
    assert first.equal(rows_of(1, VOCABULARY, eos=EOS)[0].mask(()).flags())
    broken = RowConstraint(lambda: GivesUp(table.allowed, EOS, path), VOCABULARY, EOS)
    with pytest.raises(InputError, match="too complex"):
        broken.required((path,))


def test_a_matcher_that_wears_out_costs_no_text() -> None:
    """By what it was asked beside the text; then nothing more is drafted."""
    vocabulary = Vocabulary(None, VOCABULARY, EOS)
    table = TableConstraint().matcher(vocabulary)
    row = RowConstraint(lambda: WearsOut(table.allowed, EOS, None), VOCABULARY, EOS)
    expected, constraints = rows_of(1, VOCABULARY, eos=EOS)[0], Constraints([row])
    for _ in range(40):
        follows = expected.required(()).flags()
        assert row.required(()).flags().equal(follows)
        may = [token for token in follows.nonzero()[:, 0].tolist() if token not in EOS]
        for token in may:
            constraints.draftable(0, (token,))
        row.advance(may[:1])
        expected.advance(may[:1])
    assert not row.may_draft
    assert constraints.draftable(0, ()).empty
    assert constraints.forced(0, ()) == ()


@needs_c
def test_no_order_of_questions_lets_the_target_choose_another_token() -> None:
    """Also where matchers meet their limits, and refuse what they should allow until they are to read a token."""
    for seed in range(300):
        chance, draw = random.Random(seed), torch.Generator().manual_seed(seed)
        follow = (torch.rand(9, 8, generator=draw) < 0.6).logical_or(torch.arange(8) < 2)
        made, often = [], chance.choice([0.02, 0.1, 0.2])
        constraints = Constraints([RowConstraint(partial(limited, follow, made, chance, often), 8, frozenset())])
        last = -1
        for _ in range(6):
            first, second = torch.randperm(8, generator=draw)[:3], torch.rand(3, 8, generator=draw).argsort()[:, :2]
            tree = Tree.root(torch.tensor([max(last, 0)]))
            for parents, tokens in (([[0]], first[None]), ([[1, 2, 3]], second)):
                slots = torch.tensor(parents)
                of_each = torch.zeros(1, len(tokens), tokens.shape[1])
                tree = tree.extend(tree.children(slots, tokens[None], of_each, of_each[..., 0]))
            logits, paths = torch.randn(tree.size, 8, generator=draw), [(), *((token,) for token in first.tolist())]
            for path in paths:
                if chance.random() < 0.7:
                    constraints.ask_draftable(0, path, tuple(chance.sample(range(8), 3)))
            for path in chance.choices(paths, k=chance.randrange(3)):
                constraints.follows(0, path, chance.randrange(8))
            index = torch.arange(tree.size)[None]
            found = walk.walk(logits, index, tree.token, tree.parent, tree.alive, ask_after=constraints.ask_required)
            length = int(found.length)
            slots = found.slots[0, : length + 1].tolist()
            tokens = [*tree.token[0, slots[1:]].tolist(), int(found.bonus)]
            for slot, before, token in zip(slots, [last, *tokens], tokens, strict=False):
                assert token == int(logits[slot].masked_fill(~follow[before], float("-inf")).argmax())
            constraints.advance([tokens])
            last = tokens[-1]


def limited(follow: torch.Tensor, made: list[None], chance: random.Random, often: float) -> Limited:
    """A matcher that meets its limits with each answer as `often`, if it is one of the first four."""
    made.append(None)
    return Limited(follow, chance, often if len(made) < 5 else 0.0)


def test_behind_the_end_of_a_text_everything_goes_and_nothing_is_drafted() -> None:
    row = rows_of(1, VOCABULARY, eos=EOS)[0]
    end = next((token for token in EOS if row._matcher.allowed[-1][token]), None)
    assert end is not None
    assert row.mask((end,)) is None
    assert row.mask((end, 3)) is None
    row.advance([end, 7, 8])
    assert row.required(()) is None
    row.advance([9])


def test_a_stream_writes_what_a_batch_writes_under_the_constraint() -> None:
    """One for every prompt; what ends one of the texts is raised."""
    pair = Pair("toy", toy_target(), toy_drafts()["perturbed"], toy_tokenizer(), "", {})
    decoder, streamed = SpeculativeDecoder(pair, Eagle2(K=3, levels=3, N=8)), [[] for _ in PROMPTS]
    for number, tokens in decoder.stream(PROMPTS, NEW, constraint=TableConstraint(), max_rows=2):
        streamed[number] += tokens
    assert streamed == decoder.generate(PROMPTS, NEW, constraint=TableConstraint()).sequences
    assert all(follows(tokens, VOCABULARY) for tokens in streamed)
    assert streamed != decoder.generate(PROMPTS, NEW).sequences
    with pytest.raises(InputError, match="allows no further token"):
        list(decoder.stream(PROMPTS, NEW, constraint=TableConstraint(dead_end=streamed[1][2])))


def test_policies_with_forks_are_refused() -> None:
    pair = Pair("toy", toy_target(), toy_drafts()["perturbed"], toy_tokenizer(), "", {})
    with pytest.warns(UserWarning, match="not exact"):
        decoder = SpeculativeDecoder(pair, MCSDPlus(W=4, D=3))
    with pytest.raises(InputError, match="forks"):
        decoder.generate([[1, 2]], constraint=TableConstraint())
    with pytest.raises(InputError, match="forks"):
        decoder.stream([[1, 2]], constraint=TableConstraint())
    decoder = SpeculativeDecoder(pair, Plain())
    with pytest.raises(InputError, match="2 for 1 prompts"):
        decoder.generate([[1, 2]], constraint=[None, None])
