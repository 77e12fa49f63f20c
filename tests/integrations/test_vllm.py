"""c2t-vllm: the estimator scores chains as c2t does, and takes vLLM's place only where it fits."""

import importlib.util
import json
import logging
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from c2t_vllm import CLASSIFIER, SPECULATOR, incompatible, register
from c2t_vllm.estimator import C2TAcceptanceEstimator, with_network
from c2t_vllm.network import ClassifierError, Network
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from c2t.classifier import CONDITIONAL, ClassifierConfig, TreeClassifier
from c2t.policies.c2t import C2T
from c2t.protocols import NextTokenDistributions, Root
from tests.rounding import as_printed, assert_same_sums

REQUESTS, STEPS, VOCABULARY = 5, 4, 40
PAPERS = ("joint_prob", "entropy", "depth")
OWN = ("log_prob", "log_max_prob", "rank", "entropy", "depth")


@pytest.fixture(params=[(PAPERS, "accepted"), (OWN, CONDITIONAL)], ids=["papers", "conditional"])
def classifier(request: pytest.FixtureRequest, tmp_path: Path) -> TreeClassifier:
    features, label = request.param
    model = TreeClassifier(ClassifierConfig(features=features, label=label, M=16, hidden=8))
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    model.save_pretrained(tmp_path / "saved")
    return TreeClassifier.from_pretrained(tmp_path / "saved")


@pytest.fixture
def estimator(classifier: TreeClassifier) -> C2TAcceptanceEstimator:
    return with_network(Network.load(classifier.name))(7, STEPS, torch.device("cpu"))


def logits() -> torch.Tensor:
    return torch.randn(REQUESTS, STEPS, VOCABULARY) * 2


def by_step(estimator: C2TAcceptanceEstimator, logits: torch.Tensor, requests: list[int]) -> torch.Tensor:
    """Confidences as an EAGLE head gets them: one call a draft step."""
    found = torch.full((len(estimator.survival) - 1, STEPS), -1.0)
    for step in range(STEPS):
        estimator.predict(logits[:, step], torch.tensor(requests), torch.tensor(step), found, torch.ones(7))
    return found


def survival_in_c2t(classifier: TreeClassifier, logits: torch.Tensor) -> torch.Tensor:
    draft = SimpleNamespace(expand=lambda tree, slots: NextTokenDistributions(logits[:, tree.size - 1, None]))
    root = Root(torch.zeros(len(logits), dtype=torch.int64), None)
    tree = C2T(classifier, beta=1e-30, K=1, W=1, levels=STEPS)(draft, root)
    return tree.score[:, 1:].cummin(1).values.detach()


def test_survival_is_the_confidence_of_c2ts_chain(classifier: TreeClassifier, estimator) -> None:
    drawn = logits()
    survival = by_step(estimator, drawn, [4, 0, 6, 2, 1])[:REQUESTS].cumprod(1)
    # 16 roundings of the network's sums, and the product along the chain
    assert_same_sums(survival, survival_in_c2t(classifier, drawn), 100)
    assert len(survival.unique()) > REQUESTS


def test_all_steps_in_one_call_are_those_one_by_one(estimator) -> None:
    drawn, found = logits(), torch.full((7, STEPS), -1.0)
    requests, steps = torch.arange(REQUESTS).repeat_interleave(STEPS), torch.arange(STEPS).repeat(REQUESTS)
    estimator.predict(drawn.flatten(0, 1), requests, steps, found, torch.ones(7))
    assert_same_sums(found, by_step(estimator, drawn, [*range(REQUESTS)]), 100)


def test_rows_that_fill_up_a_graph_change_nothing(estimator) -> None:
    drawn = logits()
    whole = by_step(estimator, drawn, [3, 2, 1, 0, 4])
    drawn[3:] = float("nan")
    found = by_step(estimator, drawn, [3, 2, 1, -1, -1])
    assert found[:3].equal(whole[:3])
    assert (found[3:] == -1).all()
    again = by_step(estimator, logits(), [0, 1, 2, 3, 4])  # what padding left behind is in nobody's chain
    assert again[:REQUESTS].isfinite().all()


def test_a_new_round_begins_a_new_chain(estimator) -> None:
    drawn = logits()
    first = by_step(estimator, drawn, [0, 1, 2, 3, 4])
    by_step(estimator, logits(), [0, 1, 2, 3, 4])
    assert by_step(estimator, drawn, [0, 1, 2, 3, 4]).equal(first)


def test_the_score_reads_no_drawn_token_and_no_order(estimator) -> None:
    """Only the distribution counts: with the vocabulary shuffled the confidences are the same."""
    drawn = logits()
    shuffled = drawn[..., torch.randperm(VOCABULARY)]
    found, expected = (by_step(estimator, each, [0, 1, 2, 3, 4]) for each in (shuffled, drawn))
    assert_same_sums(found, expected, VOCABULARY + 100)


def test_nothing_waits_for_the_device_and_no_shape_depends_on_values(classifier: TreeClassifier) -> None:
    """Tensors without values: reading one, or a shape that depends on one, raises. So it can stand in a CUDA graph."""
    network = Network.load(classifier.name)
    with FakeTensorMode(allow_non_fake_inputs=True):
        estimator = with_network(network)(7, STEPS, torch.device("cpu"))
        given = (torch.randn(REQUESTS, VOCABULARY), torch.arange(REQUESTS), torch.tensor(0), torch.rand(7, STEPS))
        estimator.predict(*given, torch.ones(7))
        estimator.step(given[1], given[1], given[1])
        with pytest.raises(DataDependentOutputException):
            given[0].max().item()


def test_probabilities_of_tokens_that_the_draft_lacks_are_zero(estimator) -> None:
    drawn = logits()
    drawn[..., 10:] = float("-inf")
    assert by_step(estimator, drawn, [0, 1, 2, 3, 4])[:REQUESTS].isfinite().all()


class Theirs:
    """The part of vLLM's class that is looked at."""

    def __init__(self, max_num_reqs, num_speculative_steps, device): ...
    def predict(self, logits, idx_mapping, draft_step, confidence_probs, temperature): ...
    def step(self, idx_mapping, num_sampled, num_rejected): ...


@pytest.fixture
def speculator(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType(SPECULATOR)
    module.OnlineAcceptanceEstimator = Theirs
    monkeypatch.setitem(sys.modules, SPECULATOR, module)
    names = SPECULATOR.split(".")
    for end in range(1, len(names)):
        monkeypatch.setitem(sys.modules, ".".join(names[:end]), ModuleType(names[end - 1]))
    return module


def test_registers_and_says_so(classifier: TreeClassifier, speculator, monkeypatch, caplog) -> None:
    monkeypatch.setenv(CLASSIFIER, str(classifier.name))
    with caplog.at_level(logging.INFO):
        register()
        register()
        made = speculator.OnlineAcceptanceEstimator(7, STEPS, torch.device("cpu"))
    assert isinstance(made, C2TAcceptanceEstimator)
    assert made.network.features == classifier.config.features
    assert [record.message.startswith("c2t-vllm: loaded") for record in caplog.records] == [True, True, False]


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (None, "has no OnlineAcceptanceEstimator"),
        (type("Other", (Theirs,), {"step": None}), "OnlineAcceptanceEstimator.step of this vLLM is missing"),
        (
            type("Other", (Theirs,), {"predict": lambda self, logits: None}),
            r"predict of this vLLM is \['self', 'logits'\] instead of",
        ),
    ],
)
def test_another_vllm_stays_as_it_is(theirs, said: str, classifier, speculator, monkeypatch, caplog) -> None:
    monkeypatch.setenv(CLASSIFIER, str(classifier.name))
    del speculator.OnlineAcceptanceEstimator
    vars(speculator).update({"OnlineAcceptanceEstimator": theirs} if theirs else {})
    before = dict(vars(speculator))
    register()
    assert vars(speculator) == before
    [record] = caplog.records
    assert "\n" not in record.message
    assert re.search(said, record.message)


def test_no_vllm_no_classifier_and_a_wrong_one_are_named_in_a_line(speculator, monkeypatch, caplog, tmp_path) -> None:
    monkeypatch.delenv(CLASSIFIER, raising=False)
    register()
    monkeypatch.setenv(CLASSIFIER, str(tmp_path))
    register()
    said = [record.message.split(":")[1] for record in caplog.records]
    assert said == [" not used", " not used, vLLM keeps its own estimator"]
    assert speculator.OnlineAcceptanceEstimator is Theirs
    assert incompatible(speculator) == ""


def test_both_packages_read_classifiers_by_the_same_file() -> None:
    root = Path(__file__).parents[2] / "integrations"
    texts = [(root / f"{name}/src/c2t_{name}/network.py").read_text() for name in ("sglang", "vllm")]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", ["tiny", "smollm2"])
def test_the_committed_classifiers_are_read_with_their_calibration(name: str) -> None:
    folder = Path(__file__).parents[2] / "checkpoints" / name / "classifier"
    model, network = TreeClassifier.from_pretrained(folder), Network.load(folder)
    columns = {"log_joint": -torch.rand(20) * 5, "entropy": torch.rand(20) * 4, "depth": torch.arange(20) % 6}
    expected = model(SimpleNamespace(**columns), calibrated=True).detach()
    assert_same_sums(network(columns), expected, 100)


def test_damaged_and_foreign_classifiers_are_refused(classifier: TreeClassifier, tmp_path: Path) -> None:
    with pytest.raises(ClassifierError, match="reads entropy, which the engine does not give"):
        Network.load(classifier.name, known=("joint_prob", "log_prob", "log_max_prob", "rank", "depth"))
    place = Path(classifier.name) / "config.json"
    whole = json.loads(place.read_text())
    wrong = {"negatives_kept": 0, "layers": "two", "M": -1, "hidden": 9, "features": [["depth"]], "schema_version": 2}
    for name, value in wrong.items():
        place.write_text(json.dumps(whole | {name: value}))
        with pytest.raises(ClassifierError, match=r"does not (describe a classifier|fit)"):
            Network.load(classifier.name)
    for text in ("[]", "{}", "null", "7", "{"):
        place.write_text(text)
        with pytest.raises(ClassifierError, match="classifier of c2t"):
            Network.load(classifier.name)
    place.write_text(json.dumps(whole))
    (Path(classifier.name) / "model.safetensors").write_bytes(b"no")
    with pytest.raises(ClassifierError, match="holds no classifier of c2t"):
        Network.load(classifier.name)


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script integrations/vllm/compare.py."""
    place = Path(__file__).parents[2] / "integrations" / "vllm" / "compare.py"
    spec = importlib.util.spec_from_file_location("compare", place)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "compare", module)
    spec.loader.exec_module(module)
    return module


def test_the_online_estimator_is_vllms(compare: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its coefficients after three refits are those of the kernels in vLLM 0.33's wheel, which were run on these rounds
    in Triton's interpreter (float32)."""
    monkeypatch.setattr(compare.Online, "REFIT_INTERVAL", 10)
    online, length = compare.Online(), compare.LENGTH
    for number in range(30):
        places = torch.arange(4 * length).view(4, length) + number * 4 * length
        q = (0.35 + 0.64 * ((places * 37 % 101) / 100) ** 0.5).log()
        accepted = torch.tensor([(number * 5 + row * 3) % (length + 1) for row in range(4)])
        online.learn(compare.Round(torch.arange(4), q, q, accepted))
    kernels = torch.tensor([1.25536, 1.12951, 0.86597, 0.74384, 0.50279, 0.14152, -0.16634])
    assert online.intercepts.tolist() == [as_printed(each, 4) for each in kernels.tolist()]
    assert float(online.slope) == as_printed(0.0855833, 5)


def test_a_budget_goes_to_the_highest_survival_and_chains_stay_chains(compare: ModuleType) -> None:
    estimate = torch.rand(5, compare.LENGTH)
    estimate[2] = 1.0
    for budget in (1, 6, 17, 34):
        chosen = compare.admitted(estimate, budget)
        assert int(chosen.sum()) == budget
        assert (chosen.long().diff(dim=1) <= 0).all()
        survival = estimate.cumprod(1)
        assert survival[chosen].min() >= survival[~chosen].max()


def test_an_outcome_counts_what_is_accepted_by_prompt(compare: ModuleType) -> None:
    columns = torch.full((2, compare.LENGTH), -0.1)
    rounds = [compare.Round(torch.tensor([1, 0]), columns, columns, torch.tensor([0, 3]))] * 2
    equal = compare.run(compare.EqualDepth(), rounds, 2)
    assert equal.accepted.tolist() == [[2, 0], [4, 0], [6, 0], [6, 0], [6, 0]]
    assert equal.admitted.tolist() == [[2, 2], [4, 4], [6, 6], [8, 8], [10, 10]]
    assert equal.log_loss == as_printed(0.6931, 3)
    oracle = compare.run(compare.Oracle(), rounds, 2)
    assert oracle.accepted.sum(1).tolist() == [4, 6, 6, 6, 6]
    assert compare.over(oracle, equal)[0][0] == 2.0
