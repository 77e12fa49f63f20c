"""MCSD+: the fork and its mask, what the decision model stops, which fork is kept, and the law that this leaves."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from c2t.classifier import ClassifierConfig, TreeClassifier
from c2t.errors import InputError
from c2t.policies import Eagle2, MCSDPlus, Plain
from c2t.policies.mcsd_plus import topology
from c2t.replay.lockstep import replay, write_continuations
from c2t.sampling import Sampling
from c2t.tree import Tree
from c2t.verification.compatibility import check_rule
from tests.markov import VOCABULARY, MarkovDraft, MarkovTarget
from tests.rounding import assert_within, growth, log_prob_bound
from tests.test_law import DRAFT, PROMPT, SAMPLINGS, TARGET, chi_square, following, p_of_texts, p_value, steps_of
from tests.toys import PROMPTS, Candidates, TableDraft, path_of, random_table, root_of, run, toy_drafts, toy_target

TABLE = random_table(12, seed=4)
FIRST = torch.tensor([[7, 3, 9], [0, 1, 2]])


class Decision(torch.nn.Module):
    """Trusts what it is told to, by (row, depth, fork)."""

    config = SimpleNamespace(M=5, widths={"top_probs": 4})

    def __init__(self, trusted: set[tuple[int, int, int]]):
        super().__init__()
        self.trusted = trusted

    def forward(self, nodes) -> Tensor:
        assert nodes.top_probs.shape == (*nodes.depth.shape, 4)
        confidence = torch.zeros(nodes.depth.shape)
        for row, depth, fork in self.trusted:
            confidence[row, fork] = torch.where(nodes.depth[row, fork] == depth, 0.4, confidence[row, fork])
        return confidence


def fork(trusted: set[tuple[int, int, int]] | None = None, first: Tensor = FIRST, D: int = 4) -> Tree:
    policy = MCSDPlus(W=3, D=D)
    if trusted is not None:
        object.__setattr__(policy, "decision", Decision(trusted))
    return policy(Candidates(TableDraft(TABLE), first), root_of(1, 2))


def test_chains_are_the_drafts_most_probable_tokens_behind_the_targets_candidates() -> None:
    tree = fork()
    assert tree.sizes.tolist() == [1 + 3 * 5] * 2
    assert tree.parent[0].tolist() == [-1, 0, 0, 0, *range(1, 13)]
    assert tree.token[:, 1:4].tolist() == FIRST.tolist()
    for row in range(2):
        for slot in range(4, tree.size):
            path = path_of(tree, row, slot)
            before = TABLE(row, tuple(path[:-1])).log_softmax(-1)
            assert path[-1] == int(before.argmax())
            above = tree.log_joint[row, tree.parent[row, slot]]
            bound = log_prob_bound(before, above.dtype) + growth(2, above.dtype) * abs(float(above + before.max()))
            assert_within(tree.log_joint[row, slot] - above, before.max(), bound)
    assert (tree.log_joint[:, 1:4] == 0).all()


@pytest.mark.parametrize("stop", range(1, 5))
def test_the_sliced_mask_is_the_forks_own(stop: int) -> None:
    """Built once for W = 3, D = 4, whatever the level at which drafting stops."""
    tree = fork({(row, depth, 1) for row in range(2) for depth in range(1, stop)})
    assert tree.size == 1 + 3 * (1 + stop)
    assert torch.equal(tree.ancestors(), replace(tree, mask=None).ancestors())
    whole = topology(3, 4, torch.device("cpu"))
    assert whole.shape == (16, 16)
    assert tree.mask.data_ptr() == whole.data_ptr() == topology(3, 4, torch.device("cpu")).data_ptr()


def test_drafting_goes_on_while_one_fork_is_trusted_in_each_row_for_itself() -> None:
    tree = fork({(0, 1, 2), (0, 2, 0), (1, 1, 1)})
    assert tree.sizes.tolist() == [1 + 3 * 4, 1 + 3 * 3]
    alone = fork({(1, 1, 1)})
    assert tree.token[1, :10].tolist() == alone.token[1, :10].tolist()
    sliced, derived = (t.ancestors()[1, :10, :10] for t in (tree, replace(tree, mask=None)))
    assert torch.equal(sliced, derived)
    assert fork(set()).sizes.tolist() == [1 + 3 * 2] * 2  # the level that is judged stays


def test_a_target_with_few_candidates_has_few_forks() -> None:
    tree = fork(first=torch.tensor([[7, -1, -1], [0, 1, -1]]), D=2)
    assert tree.sizes.tolist() == [1 + 3, 1 + 6]
    assert tree.mask is None
    assert tree.token[0, 1] == 7


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(0.8, top_p=0.95, repetition_penalty=1.3, seed=3, frequency_penalty=0.4)],
    ids=["greedy", "sampled"],
)
def test_one_fork_is_plain_decoding(sampling: Sampling) -> None:
    """Draw for draw: the first candidate is the target's own choice."""
    plain, _ = run(toy_target(), None, Plain(), PROMPTS, sampling, new=16)
    text, steps = run(toy_target(), toy_drafts()["perturbed"], MCSDPlus(W=1, D=3), PROMPTS, sampling, new=16)
    assert text == plain
    assert len(set(torch.cat([step.accepted.length for step in steps[1:]]).tolist())) > 2


@pytest.mark.parametrize("draft", ["perturbed", "eagle"])
@pytest.mark.parametrize("penalty", [1.0, 1.5])
@pytest.mark.slow
def test_the_longest_fork_is_kept(penalty: float, draft: str) -> None:
    """Greedy, fork by fork against the stock model: candidates are its most probable tokens, of which the one that the
    draft continues best is written (among equals the most probable)."""
    sampling = Sampling(repetition_penalty=penalty, frequency_penalty=penalty - 1)
    _, steps = run(toy_target(), toy_drafts()[draft], MCSDPlus(W=4, D=3), PROMPTS, sampling, new=12)
    texts = {row: [*PROMPTS[row], int(steps[0].tokens[row, 0])] for row in range(len(PROMPTS))}

    def logits(tokens: list[int], row: int) -> Tensor:
        text, length = torch.tensor([tokens]), torch.tensor([len(tokens)])
        raw = toy_target().model(input_ids=text).logits[:, -1]
        return sampling.process(raw, sampling.count(text, length, length - len(PROMPTS[row]), raw.shape[1]))[0]

    chosen, ended = set(), set()
    for step in steps[1:]:
        for place, row in enumerate(step.rows.tolist()):
            text, tree = texts[row], step.tree
            assert tree.token[place, 1:5].tolist() == logits(text, row).topk(4).indices.tolist()
            lengths = []
            for leaf in range(tree.size - 4, tree.size):
                path = path_of(tree, place, leaf)
                agreed = [int(logits([*text, *path[:i]], row).argmax()) == path[i] for i in range(1, 4)]
                lengths.append([*agreed, False].index(False))
            kept = max(range(4), key=lambda i: lengths[i])
            new = path_of(tree, place, tree.size - 4 + kept)[: 1 + lengths[kept]]
            assert step.tokens[place, : step.count[place]].tolist() == new
            assert step.accepted.length[place] == lengths[kept]
            text += new
            chosen.add(kept)
            ended.add(lengths[kept])
    assert len(chosen) > 1
    assert len(ended) > 1


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.slow
def test_one_fork_is_exact_and_several_are_not(sampling: str) -> None:
    assert p_of_texts(steps_of(MCSDPlus(W=1, D=3), SAMPLINGS[sampling]), SAMPLINGS[sampling]) > 1e-4
    assert p_of_texts(steps_of(MCSDPlus(W=3, D=3), SAMPLINGS[sampling]), SAMPLINGS[sampling]) < 1e-9


def test_the_law_of_two_forks_is_the_one_computed() -> None:
    """Of the first token of a round: of candidates a, b the first is written unless the target's draw behind them
    (one uniform for both) agrees with the draft's token after b only."""
    sampling = SAMPLINGS["T=1"]
    step = steps_of(MCSDPlus(W=2, D=1), sampling)[1]
    last = PROMPT[-1]
    roots = step.tree.token[:, 0]
    observed, expected, plain = (torch.zeros(VOCABULARY, VOCABULARY, dtype=torch.float64) for _ in range(3))
    observed.index_put_((roots, step.tokens[:, 0]), torch.ones(len(roots)).double(), accumulate=True)
    for first in range(VOCABULARY):
        p = TARGET[last, first].softmax(-1)
        upper = TARGET[first].softmax(-1).cumsum(-1)  # by candidate
        drafted = DRAFT[first].argmax(-1, keepdim=True)
        high = upper.gather(1, drafted)[:, 0]
        low = high - TARGET[first].softmax(-1).gather(1, drafted)[:, 0]
        both = (torch.minimum(high[:, None], high) - torch.maximum(low[:, None], low)).clamp(min=0)
        only_second = (high - low) - both  # [a, b]
        pairs = p[:, None] * p / (1 - p[:, None]) * (1 - torch.eye(VOCABULARY))
        count = (roots == first).sum()
        expected[first] = count * ((pairs * (1 - only_second)).sum(1) + (pairs * only_second).sum(0))
        plain[first] = count * p
    assert p_value(*(chi_square(*rows) for rows in zip(observed, expected, strict=True))) > 1e-4
    assert p_value(*(chi_square(*rows) for rows in zip(observed, plain, strict=True))) < 1e-9


def test_candidates_differ_and_come_from_the_processed_distribution() -> None:
    step = steps_of(MCSDPlus(W=3, D=1), SAMPLINGS["T=0.5 top-p"])[1]
    tree = step.tree
    firsts = (tree.depth == 0) & tree.alive
    allowed = following(torch.full_like(tree.token[:, 0], PROMPT[-1]), tree.token[:, 0], SAMPLINGS["T=0.5 top-p"]) > 0
    assert allowed.gather(1, tree.token)[firsts].all()
    assert (firsts.sum(1) == allowed.sum(1).clamp(max=3)).all()
    assert len(set(firsts.sum(1).tolist())) > 1  # top-p leaves fewer than three in some rows


def test_there_is_one_rule_for_it_and_no_replay() -> None:
    assert check_rule(MCSDPlus(), None) == "longest-fork"
    for rule in ("target-only", "residual"):
        with pytest.raises(InputError, match="use longest-fork"):
            check_rule(MCSDPlus(), rule)
    with pytest.raises(InputError, match="by the rule longest-fork; use target-only"):
        check_rule(Eagle2(), "longest-fork")
    policy = Eagle2()
    object.__setattr__(policy, "proposal", "rank")
    with pytest.raises(InputError, match="Eagle2's proposal is 'rank'; known: ranked, "):
        check_rule(policy, None)
    texts = write_continuations(toy_target(), PROMPTS[:1], max_new_tokens=4, beyond=3, sampling=Sampling())
    with pytest.raises(InputError, match="mcsd\\+ cannot be replayed"):
        list(replay(toy_drafts()["perturbed"], MCSDPlus(W=2, D=1), texts))


@pytest.mark.parametrize(
    ("wrong", "message"), [({"W": 0}, "W = 0"), ({"D": 0}, "D = 0"), ({"threshold": 0.0}, "thresh")]
)
def test_settings_are_checked(wrong: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MCSDPlus(**wrong)


def test_a_greedy_text_of_several_forks_is_not_the_greedy_one() -> None:
    models = MarkovTarget(TARGET), MarkovDraft(DRAFT)
    prompts = [[a, b] for a in range(VOCABULARY) for b in range(VOCABULARY)]
    plain, _ = run(models[0], None, Plain(), prompts, new=6)
    forks, _ = run(*models, MCSDPlus(W=4, D=3), prompts, new=6)
    assert sum(a != b for a, b in zip(plain, forks, strict=True)) > len(prompts) / 4


def test_a_classifier_of_columns_that_forks_do_not_have_is_refused() -> None:
    conditional = TreeClassifier(
        ClassifierConfig(features=("log_prob", "entropy", "rank"), label="accepted_given_parent")
    )
    with pytest.raises(InputError, match="reads log_prob, rank, which forks do not have: train one by c2t train"):
        MCSDPlus(decision=conditional)
