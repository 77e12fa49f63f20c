"""c2t-sglang: trees chosen from SGLang's lists of candidates, which EAGLE-2's full trees of c2t give here."""

import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from c2t_sglang import CLASSIFIER, FUNCTION, HOOKS, MODULE, Rerank, register
from c2t_sglang.network import Network
from c2t_sglang.rerank import KNOWN, candidates, reranked, survival
from torch._subclasses.fake_tensor import FakeTensorMode

from c2t.classifier import CONDITIONAL, ClassifierConfig, TreeClassifier
from c2t.policies.eagle2 import Eagle2, rerank
from c2t.protocols import NextTokenDistributions, Root
from c2t.tree import Tree
from tests.rounding import assert_same_sums

TOPK, STEPS, N, ROWS, VOCABULARY = 3, 4, 9, 6, 30
OWN = ("log_prob", "log_max_prob", "rank", "depth", "joint_prob")


class Random:
    """Draft with random distributions."""

    def expand(self, tree: Tree, slots: torch.Tensor) -> NextTokenDistributions:
        return NextTokenDistributions(torch.randn(*slots.shape, VOCABULARY) * 3)


@pytest.fixture
def full() -> Tree:
    return Eagle2(K=TOPK, levels=STEPS, N=None)(Random(), Root(torch.zeros(ROWS, dtype=torch.int64), None))


def lists(tree: Tree) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Scores, tokens and parents of a full tree as SGLang's `draft_forward` collects them."""
    sizes = [TOPK, *[TOPK * TOPK] * (STEPS - 1)]
    scores, tokens, parents = (column[:, 1:] for column in (tree.log_joint.exp(), tree.token, tree.parent - 1))
    by_level = [score.unflatten(1, (-1, TOPK)) for score in scores.split(sizes, 1)]
    groups = parents[:, ::TOPK].split([1, *[TOPK] * (STEPS - 1)], 1)
    last = torch.full((ROWS, TOPK), 10**6)  # of the last step's best: nobody's parents
    return by_level, list(tokens.split(sizes, 1)), [torch.cat(groups[:2], 1), *groups[2:], last]


def organize_draft_results(score_list, token_list, parents_list, num_draft_token):
    """The function of SGLang 0.5.23, without its check of bounds."""
    scores = torch.cat(score_list, dim=1).flatten(1)
    index = torch.sort(torch.topk(scores, num_draft_token - 1, dim=-1).indices).values
    return torch.cat(parents_list[:-1], dim=1), index, torch.gather(torch.cat(token_list, dim=1), 1, index)


@pytest.fixture(params=["accepted", CONDITIONAL])
def classifier(request: pytest.FixtureRequest, tmp_path: Path) -> TreeClassifier:
    model = TreeClassifier(ClassifierConfig(features=OWN, label=request.param, hidden=8))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    model.save_pretrained(tmp_path / "saved")
    return TreeClassifier.from_pretrained(tmp_path / "saved")


@pytest.fixture
def network(classifier: TreeClassifier) -> Network:
    return Network.load(classifier.name, KNOWN)


def joint_probability() -> Network:
    """Network whose score of a path is its joint probability: exp(log_prob) by sigmoid(logit)."""

    class Joint(Network):
        def __call__(self, columns):
            return columns["log_prob"].exp()

    return Joint((), (), None, conditional=True, shift=0.0)


def test_columns_are_those_of_the_tree(full: Tree) -> None:
    scores, _, parents = lists(full)
    found = candidates(scores, parents)
    assert found.parent.equal(full.parent[:, 1:] - 1)
    for name, column in found.columns.items():
        # differences of logs of float32 probabilities
        assert_same_sums(column.float(), getattr(full, name)[:, 1:].float(), 100)


def test_the_joint_probability_gives_eagle2s_tree(full: Tree) -> None:
    _, index, token = Rerank(joint_probability())(organize_draft_results, *lists(full), N)
    expected, slots = rerank(full, N), torch.nn.functional.pad(index + 1, (1, 0))
    assert token.equal(expected.token[:, 1:])
    assert full.parent.gather(1, index + 1).equal(slots.gather(1, expected.parent[:, 1:]))


def test_survival_is_that_of_c2ts_classifier(full: Tree, classifier: TreeClassifier, network: Network) -> None:
    scores, _, parents = lists(full)
    estimate = classifier(full, calibrated=True).detach()
    expected = torch.ones_like(estimate)
    for slot in range(1, full.size):
        above = expected.gather(1, full.parent[:, slot, None])[:, 0]
        conditional = classifier.config.label == CONDITIONAL
        expected[:, slot] = above * estimate[:, slot] if conditional else torch.minimum(above, estimate[:, slot])
    assert_same_sums(survival(network, candidates(scores, parents)), expected[:, 1:])


def test_trees_have_n_nodes_and_are_connected_and_others_than_eagle2s(full: Tree, network: Network) -> None:
    kept_parents, index, token = Rerank(network)(organize_draft_results, *lists(full), N)
    eagles_parents, eagles_index, _ = organize_draft_results(*lists(full), N)
    assert token.shape == (ROWS, N - 1)
    assert kept_parents.equal(eagles_parents)
    for row in range(ROWS):
        chosen = set(index[row].tolist())
        assert len(chosen) == N - 1
        assert {int(full.parent[row, 1 + one]) - 1 for one in chosen} <= chosen | {-1}
    assert not index.equal(eagles_index)


@pytest.mark.parametrize("certain", [1.0, 0.0])
def test_ties_keep_parents_before_children(certain: float, full: Tree) -> None:
    """Where all scores are equal (a draft that is certain; probabilities that underflow) trees stay connected."""
    scores, _, parents = lists(full)
    scores = [torch.full_like(score, certain) for score in scores]
    whole = torch.cat([score.flatten(1) for score in reranked(joint_probability(), scores, parents)], 1)
    assert all(len(row.unique()) == len(row) for row in whole)
    parent = full.parent[:, 1:] - 1
    above = torch.where(parent < 0, 1.0, whole.gather(1, parent.clamp(min=0)))
    assert (whole < above).all()


def test_nothing_waits_for_the_device_and_no_shape_depends_on_values(full: Tree, network: Network) -> None:
    scores, _, parents = lists(full)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        found = reranked(network, *([fake.from_tensor(each) for each in given] for given in (scores, parents)))
    assert [each.shape for each in found] == [each.shape for each in scores]


def test_one_step_and_chains(full: Tree, network: Network) -> None:
    scores, _, parents = lists(full)
    [one] = reranked(network, scores[:1], parents[:1])
    assert one.shape == scores[0].shape
    chain = [torch.rand(ROWS, 1, 1) for _ in range(STEPS)]
    got = Rerank(network)(lambda scores, *_: scores, chain, [], [], STEPS + 1)
    assert got is chain


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """SGLang's module and registry, as far as the plug-in needs them."""
    found = SimpleNamespace(registered=[])
    eagle, hooks = ModuleType(MODULE), ModuleType(HOOKS)
    setattr(eagle, FUNCTION, organize_draft_results)
    hooks.HookType = SimpleNamespace(AROUND="around")
    hooks.HookRegistry = SimpleNamespace(register=lambda *given: found.registered.append(given))
    for module in (eagle, hooks):
        names = module.__name__.split(".")
        for end in range(1, len(names)):
            monkeypatch.setitem(sys.modules, ".".join(names[:end]), ModuleType(names[end - 1]))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    found.eagle = eagle
    return found


def test_registers_and_says_so(classifier: TreeClassifier, sglang, monkeypatch, caplog) -> None:
    monkeypatch.setenv(CLASSIFIER, str(classifier.name))
    with caplog.at_level(logging.INFO):
        register()
    [(target, hook, kind)] = sglang.registered
    assert (target, type(hook), kind) == ("sglang.srt.speculative.eagle_utils.organize_draft_results", Rerank, "around")
    assert caplog.records[-1].message.startswith("c2t-sglang: loaded")


def test_what_it_cannot_use_is_named_in_a_line(classifier, sglang, monkeypatch, caplog) -> None:
    monkeypatch.delenv(CLASSIFIER, raising=False)
    register()
    monkeypatch.setenv(CLASSIFIER, str(Path(__file__).parents[2] / "checkpoints/tiny/classifier"))
    register()
    monkeypatch.setenv(CLASSIFIER, str(classifier.name))
    setattr(sglang.eagle, FUNCTION, lambda score_list: None)
    register()
    delattr(sglang.eagle, FUNCTION)
    register()
    assert sglang.registered == []
    said = ["set C2T_CLASSIFIER", "reads entropy", "is ['score_list'] instead of", "is missing instead of"]
    assert all(part in record.getMessage() for part, record in zip(said, caplog.records, strict=True))


def test_the_copy_of_the_wheels_function_is_right(full: Tree) -> None:
    wheel = pytest.importorskip("sglang.srt.speculative.eagle_utils", reason="SGLang is not installed")
    both = (organize(*lists(full), N) for organize in (wheel.organize_draft_results, organize_draft_results))
    for found, wanted in zip(*both, strict=True):
        assert found.equal(wanted)
