"""The entropy gate: when it opens and shuts, that it goes with its row, and what shut rows cost."""

import pytest
import torch

from c2t.decoding import generate
from c2t.errors import InputError
from c2t.models.remembering import RememberingSession
from c2t.policies import Budget, Eagle2, EntropyGate, JointThreshold, Plain, SpecInfer
from c2t.policies.spec import describe, parse
from c2t.protocols import NextTokenDistributions
from c2t.sampling import Sampling
from tests.policies.test_every_policy import paths_of
from tests.test_joining import assert_join_is_seamless, drafts
from tests.toys import PROMPTS, TableDraft, root_of, toy_drafts, toy_target

EAGLE2 = Eagle2(K=4, levels=3, N=10)
GATE = EntropyGate(EAGLE2, high=2.0, low=1.7)


def with_entropy(*nats: float) -> NextTokenDistributions:
    """Roots whose distributions have these entropies: between one token and eight equal ones."""
    found = []
    for wanted in nats:
        low, high = 0.0, 1.0
        for _ in range(60):  # the share of the seven others
            middle = (low + high) / 2
            probs = torch.tensor([1 - 7 / 8 * middle] + [middle / 8] * 7, dtype=torch.float64)
            low, high = (middle, high) if torch.special.entr(probs).sum() < wanted else (low, middle)
        found.append(probs.log())
    return NextTokenDistributions(torch.stack(found)[:, None])


def plain_gate(gate: EntropyGate, entropies: list[float]) -> list[bool]:
    """What a text's gate is in each of its rounds."""
    mean, is_open, found = None, True, []
    for entropy in entropies:
        mean = entropy if mean is None else gate.share * entropy + (1 - gate.share) * mean
        if mean > gate.high:
            is_open = False
        elif mean < gate.low or not found:
            is_open = True
        found.append(is_open)
    return found


@pytest.mark.parametrize("share", [1.0, 0.35])
def test_it_opens_below_one_mean_and_shuts_above_the_other(share: float) -> None:
    gate = EntropyGate(EAGLE2, high=1.5, low=0.5, share=share)
    texts = [[0.2, 1.0, 1.9, 1.0, 0.6, 0.2, 1.0, 1.4], [1.9, 1.4, 0.9, 0.4, 1.2, 1.9, 1.9, 0.1]]
    memory, found = None, []
    for entropies in zip(*texts, strict=True):
        memory = gate.remember(memory, with_entropy(*entropies))
        found.append([bool(each) for each in memory[:, 1]])
    expected = [plain_gate(gate, text) for text in texts]
    assert [list(each) for each in zip(*found, strict=True)] == expected
    if share == 1:  # in between it stays as it is: 1.0 is open before 1.9 and shut behind it
        assert expected[0] == [True, True, False, False, False, True, True, True]
        assert expected[1][:4] == [False, False, False, True]


@pytest.mark.slow
@torch.no_grad()
def test_rounds_of_a_text_are_those_of_the_plain_gate() -> None:
    """Of a draft that is a language model: its entropies by a forward over the text."""
    target, draft = toy_target(), toy_drafts()["perturbed"]
    settings = {"max_new_tokens": 40, "sampling": Sampling(temperature=0.8, seed=3)}
    steps = list(generate(target, draft, GATE, PROMPTS, **settings))
    texts, entropies, was_open = [list(prompt) for prompt in PROMPTS], [[] for _ in PROMPTS], [[] for _ in PROMPTS]
    for step in steps:
        for row, (number, tokens) in enumerate(step.by_row()):
            if step.tree is not None:
                logits = draft.model.model(torch.tensor([texts[number]])).logits[0, -1]
                entropies[number].append(torch.special.entr(logits.softmax(-1)).sum().item())
                was_open[number].append(int(step.tree.sizes[row]) > 1)
                assert int(step.draft_passes[row]) == (EAGLE2.levels if was_open[number][-1] else 1)
            texts[number] += tokens
    assert was_open == [plain_gate(GATE, each) for each in entropies]
    turns = [tuple(rounds[place : place + 2]) for rounds in was_open for place in range(len(rounds) - 1)]
    assert {(True, False), (False, True)} <= set(turns)  # or this would say little


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle", "lm", "conditioned"])
def test_a_row_that_joins_keeps_its_own_gate(kind: str) -> None:
    target, draft = drafts()[kind]
    for high, low in ((2.2, 1.6), (0.6, 0.2)):
        gate = EntropyGate(JointThreshold(0.03, K=4, W=4, levels=3), high=high, low=low)
        assert_join_is_seamless(target, draft, gate, [Sampling()] * 4)


def test_open_rows_have_the_policys_own_trees() -> None:
    logits = torch.stack([torch.arange(8.0) * 3, torch.zeros(8), torch.arange(8.0) * 2])
    draft = TableDraft(lambda row, path: (logits[row] + 0.1 * len(path)).double())
    tree = EntropyGate(EAGLE2, high=1.0, low=1.0)(draft, root_of(1, 2, 3))
    own = EAGLE2(TableDraft(draft.logits), root_of(1, 2, 3))
    assert [paths_of(tree, row) for row in range(3)] == [paths_of(own, 0), [()], paths_of(own, 2)]
    assert [slots[1].tolist() for slots in draft.expanded[1:]] == [[-1] * 4] * 2
    shut = TableDraft(lambda row, path: torch.zeros(8).double())
    assert EntropyGate(EAGLE2, high=1.0, low=1.0)(shut, root_of(1, 2)).sizes.tolist() == [1, 1]
    assert len(shut.expanded) == 1


def test_a_row_that_left_takes_its_memory_along() -> None:
    session = RememberingSession(toy_drafts()["eagle"].session(), GATE.remember)
    session.select(torch.tensor([0]))  # before anything is observed
    assert session.memory is None
    session.memory = torch.tensor([[1.0, 0.0], [2.0, 1.0], [3.0, 0.0]])
    session.select(torch.tensor([2, 0]))
    assert session.memory.tolist() == [[3.0, 0.0], [1.0, 0.0]]


def test_it_is_written_as_it_is_read() -> None:
    policy = parse("gate:high=1.5,low=1,of=eagle2:K=4,levels=3,N=10", lambda: None)
    assert policy == EntropyGate(EAGLE2, high=1.5, low=1.0)
    assert parse(describe(policy), lambda: None) == policy
    assert describe(policy, brief=True) == "gate:high=1.5,low=1.0,of=eagle2:K=4,levels=3,N=10"
    assert parse("gate", lambda: None) == EntropyGate(Eagle2())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"high": 1.0, "low": 2.0}, "low = 2.0 and high = 1.0 must be nats"),
        ({"low": -1.0}, "low = -1.0"),
        ({"high": float("nan")}, "high = nan"),
        ({"high": float("inf")}, "high = inf"),
        ({"share": 0.0}, "share = 0.0 must be"),
        ({"policy": SpecInfer((2, 1))}, "SpecInfer has sampled candidates"),
        ({"policy": "eagle2"}, "'eagle2' is no policy"),
        ({"policy": Plain()}, "Plain drafts nothing"),
        ({"policy": GATE}, "EntropyGate has a policy of its own"),
        ({"policy": Budget(EAGLE2, nodes=8)}, "Budget has a policy of its own"),
    ],
)
def test_settings_that_are_none_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        EntropyGate(**{"policy": EAGLE2, **settings})


def test_a_budget_takes_no_gate() -> None:
    with pytest.raises(InputError, match="EntropyGate has a policy of its own"):
        Budget(GATE, nodes=8)
