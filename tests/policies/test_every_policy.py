"""What holds of every policy: the text is the target's own, rows of a batch do not know of each other, replay is the
live run, and trees are trees of the promised size."""

from functools import cache

import pytest
import torch

from c2t.decoding import Step, cut
from c2t.policies import POLICIES, Hierarchical
from c2t.replay.lockstep import replay, write_continuations
from c2t.sampling import Sampling
from c2t.tree import Tree
from c2t.verification.target_verifier import generate
from tests.every_policy import EVERY_POLICY, EXACT, ONE_OF_EACH, SAMPLED, SHARED
from tests.marks import slow_except
from tests.replay.test_lockstep import assert_same
from tests.toys import (
    PROMPTS,
    Candidates,
    TableDraft,
    deep_pairs,
    emitted,
    random_table,
    root_of,
    toy_drafts,
    toy_target,
)

NEW = 10
GREEDY, SAMPLING = Sampling(), Sampling(temperature=0.8, top_p=0.95, repetition_penalty=1.1, seed=3)
SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLING}
RUNS = [("eagle", "greedy"), ("perturbed", "greedy"), ("perturbed", "sampled")]


def live(name: str, draft: str, sampling: Sampling, rule: str | None = None, only: int | None = None) -> list[Step]:
    numbers = range(len(PROMPTS)) if only is None else [only]
    settings = {"max_new_tokens": NEW, "sampling": sampling, "sequences": numbers, "rule": rule}
    drafter = toy_drafts()[draft]
    return list(generate(toy_target(), drafter, EVERY_POLICY[name].policy, [PROMPTS[i] for i in numbers], **settings))


def texts_of(steps: list[Step], prompts: int = len(PROMPTS)) -> list[list[int]]:
    return [cut(tokens, NEW, frozenset()) for tokens in emitted(steps, prompts)]


@cache
def plain(sampling: str) -> list[list[int]]:
    settings = {"max_new_tokens": NEW, "sampling": SAMPLINGS[sampling]}
    return texts_of(list(generate(toy_target(), None, EVERY_POLICY["plain"].policy, PROMPTS, **settings)))


def test_no_policy_is_left_out() -> None:
    live_only = {Hierarchical}  # needs a running target: tests/policies/hierarchical/
    assert {type(case.policy) for case in EVERY_POLICY.values()} | live_only == set(POLICIES.values())


def test_greedy_texts_are_those_of_generate() -> None:
    for prompt, text in zip(PROMPTS, plain("greedy"), strict=True):
        ids = torch.tensor([prompt])
        stock = toy_target().model.generate(ids, max_new_tokens=NEW, do_sample=False, pad_token_id=0)
        assert text == stock[0, len(prompt) :].tolist()


@pytest.mark.parametrize(("draft", "sampling"), RUNS)
@pytest.mark.parametrize("name", slow_except(EXACT, *ONE_OF_EACH))
def test_text_is_plain_decodings_and_replay_is_the_live_run(name: str, draft: str, sampling: str) -> None:
    case, chosen = EVERY_POLICY[name], SAMPLINGS[sampling]
    steps = live(name, draft, chosen, "target-only")
    assert texts_of(steps) == plain(sampling)
    assert name not in SHARED or any(step.tree.size > 1 for step in steps[1:])
    if draft == "perturbed":
        for step in steps[1:]:
            check_trees(step.tree, case.nodes, case.levels)
            assert int(step.draft_passes.max()) <= case.levels
        texts = write_continuations(toy_target(), PROMPTS, max_new_tokens=NEW, beyond=case.levels + 1, sampling=chosen)
        assert_same(
            steps,
            list(replay(toy_drafts()[draft], case.policy, texts, seed=chosen.seed, temperature=chosen.temperature)),
        )


COUNTED = {
    "greedy": Sampling(frequency_penalty=0.9, presence_penalty=0.3, logit_bias={7: -100.0, 30: 1.5}),
    "sampled": Sampling(0.8, 20, 0.95, 1.1, 3, 0.01, 0.7, -0.4, {7: 2.0}),
}


@pytest.mark.parametrize("sampling", COUNTED)
@pytest.mark.parametrize("name", slow_except(EXACT, "c2t", "dyspec"))
def test_text_is_plain_decodings_with_bias_and_penalties(name: str, sampling: str) -> None:
    chosen = COUNTED[sampling]
    assert texts_of(live(name, "perturbed", chosen, "target-only")) == texts_of(live("plain", "perturbed", chosen))


@cache
def deep_texts() -> list[list[int]]:
    model, settings = deep_pairs()["mtp"][0].model, {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    return [model.generate(torch.tensor([prompt]), **settings)[0, len(prompt) :].tolist() for prompt in PROMPTS[:2]]


@pytest.mark.parametrize("draft", ["eagle3", "mtp", "medusa", "dspark"])
@pytest.mark.parametrize("name", slow_except(EXACT, "eagle2"))
def test_greedy_text_is_that_of_generate_with_other_heads(name: str, draft: str) -> None:
    target, drafter = deep_pairs()[draft]
    policy, settings = EVERY_POLICY[name].policy, {"max_new_tokens": 6, "sampling": GREEDY}
    steps = list(generate(target, drafter, policy, PROMPTS[:2], **settings))
    assert [tokens[:6] for tokens in emitted(steps, 2)] == deep_texts()


@pytest.mark.parametrize("name", slow_except(EVERY_POLICY, *ONE_OF_EACH))
def test_each_row_is_its_run_alone(name: str) -> None:
    rule = "residual" if name in SAMPLED else None
    together = live(name, "perturbed", SAMPLING, rule)
    prompt = 2  # the shortest, and neither the first nor the last row
    alone = live(name, "perturbed", SAMPLING, rule, prompt)
    mine = [(step, step.rows.tolist().index(prompt)) for step in together if prompt in step.rows.tolist()]
    assert texts_of(alone, 1) == texts_of(together)[prompt : prompt + 1]
    if name in SHARED:
        return  # its trees are those that the other rows leave room for
    for (step, row), own in zip(mine[1:], alone[1:], strict=True):
        assert step.draft_passes[row] == own.draft_passes[0]
        assert paths_of(step.tree, row) == paths_of(own.tree, 0)


def test_drafts_of_these_tests_are_partly_accepted() -> None:
    """Else exactness would say nothing."""
    accepted = {name: live(name, "perturbed", SAMPLING) for name in ("eagle2", "mcsd", "dyspec", "c2t")}
    for steps in accepted.values():
        assert len(set(torch.cat([step.accepted.length for step in steps[1:]]).tolist())) > 1


@pytest.mark.parametrize("peak", [0.5, 3.0, 60.0], ids=["flat", "usual", "saturated"])
@pytest.mark.parametrize("name", EVERY_POLICY)
def test_trees_are_trees(name: str, peak: float) -> None:
    """On any draft: one that is nearly flat, and one whose probabilities are 0 and 1 in float32, with equal values."""
    table, case = random_table(12, seed=5), EVERY_POLICY[name]

    def logits(row: int, path: tuple[int, ...]) -> torch.Tensor:
        return ((table(row, path) * 2).round() / 2 * peak).float()

    candidates = torch.tensor([[7, 3, 9, 1], [0, 1, 2, 3], [5, 11, -1, -1]])
    root = root_of(1, 2, 3)._replace(key=torch.tensor([11, 12, 13]))
    draft = TableDraft(logits)
    tree = case.policy(Candidates(draft, candidates), root)
    check_trees(tree, min(case.nodes, case.policy.size.tokens), case.levels)
    assert len(draft.expanded) <= case.levels
    assert tree.size == int(tree.sizes.max()) or name in SAMPLED  # tokens drawn again stay as dead slots


def check_trees(tree: Tree, nodes: int, levels: int) -> None:
    """Parents first, mask rows of depth + 2, at most so many nodes and levels; siblings differ; ranks are draws in
    order; what could be offered hangs where it was drawn."""
    slots = torch.arange(tree.size)
    inner, parent = slots > 0, tree.parent.clamp(min=0)
    assert (tree.parent < slots).all()
    assert tree.alive.gather(1, parent)[tree.alive].all()
    assert (tree.ancestors().sum(2) == tree.depth + 2)[tree.alive].all()
    assert int(tree.sizes.max()) <= nodes
    assert int(tree.depth.max()) < max(levels, 1)
    placed = (tree.alive | (tree.rank >= 0 if tree.proposals else tree.alive)) & inner
    assert (tree.depth == tree.depth.gather(1, parent) + 1)[placed].all()
    for row in range(len(tree.token)):
        paths = paths_of(tree, row)
        assert len(paths) == len(set(paths))
        if tree.proposals:
            for slot in tree.alive[row].nonzero()[:, 0].tolist():
                ranks = tree.rank[row][(tree.parent[row] == slot) & (tree.rank[row] >= 0) & inner].tolist()
                assert sorted(ranks) == list(range(len(ranks)))
                assert not ranks or tree.proposals.row[row, slot] >= 0


def paths_of(tree: Tree, row: int) -> list[tuple[int, ...]]:
    """The alive nodes as paths of tokens, in their order."""
    paths: dict[int, tuple[int, ...]] = {0: ()}
    for slot in tree.alive[row].nonzero()[1:, 0].tolist():
        paths[slot] = (*paths[int(tree.parent[row, slot])], int(tree.token[row, slot]))
    return list(paths.values())
