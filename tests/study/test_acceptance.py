"""Acceptance rates by rank: what is counted, where it is kept, and how Sequoia asks for it."""

import json

import pytest
import torch

from c2t.errors import InputError
from c2t.models.loading.load import Pair
from c2t.policies import Sequoia
from c2t.policies.spec import parse
from c2t.sampling import Sampling
from c2t.storage import paths as checkpoints
from c2t.study.acceptance import AcceptanceRates, acceptance_by_rank, key, local_file, lookup, store
from tests.markov import VOCABULARY, MarkovDraft, MarkovTarget, tables
from tests.rounding import figure
from tests.toys import toy_tokenizer

ROWS = 3000


def pair() -> Pair:
    target, draft = tables()
    markov = MarkovTarget(target)
    return Pair("toy", markov, MarkovDraft(draft), toy_tokenizer(VOCABULARY), "", {"draft": ("somewhere", "abc")})


@pytest.fixture
def home(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("C2T_HOME", str(tmp_path))
    return tmp_path


def measure(rule: str, temperature: float = 1.0, children: int = 4, draft_temperature: float = 0.6) -> AcceptanceRates:
    settings = {"draft_temperature": draft_temperature, "children": children, "max_new_tokens": 3}
    return acceptance_by_rank(pair(), [[3, 5]] * ROWS, sampling=Sampling(temperature), rule=rule, **settings)


def after_root() -> tuple[torch.Tensor, torch.Tensor]:
    """Exact distributions after each root that follows the prompt, and how often it does."""
    target, draft = tables()
    return target[5].softmax(-1), draft[5].softmax(-1)


def test_the_first_draw_is_accepted_as_theory_says() -> None:
    """Standard speculative sampling accepts with the overlap of both distributions. The first round only: later roots
    come from wherever the text went."""
    target, draft = after_root()
    roots = tables()[0][3, 5].softmax(-1)
    settings = {"sampling": Sampling(1.0), "draft_temperature": 1.0, "children": 1, "max_new_tokens": 2}
    for rule, exact in (("residual", target.minimum(draft)), ("target-only", target * draft)):
        expected = (roots * exact.sum(1)).sum().item()
        measured = acceptance_by_rank(pair(), [[3, 5]] * ROWS, rule=rule, **settings)
        assert measured.rounds == ROWS
        assert measured.rates[0] == pytest.approx(expected, abs=4 * (expected * (1 - expected) / ROWS) ** 0.5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", ["residual", "target-only"])
def test_rates_sum_to_the_share_of_accepted_rounds(rule: str, temperature: float) -> None:
    measured = measure(rule, temperature)
    assert len(measured.rates) == 4
    assert min(measured.rates) >= 0
    assert 0.3 < sum(measured.rates) < 1
    everything = measure(rule, temperature, children=VOCABULARY)
    assert sum(everything.rates) == figure(1, VOCABULARY, torch.float32)


def test_a_stored_vector_is_found_by_its_key_only(home) -> None:
    loaded = pair()
    first, second = AcceptanceRates((0.5, 0.25), 100), AcceptanceRates((0.6, 0.1), 200)
    store(local_file("toy"), key(loaded, 0.7, 0.6, "residual"), first)
    store(local_file("toy"), key(loaded, 0.7, 0.6, "target-only"), second)
    assert local_file("toy") == home / "checkpoints" / "local" / "toy" / "acceptance.json"
    assert lookup(loaded, 0.7)(0.6) == first.rates
    assert lookup(loaded, 0.7, "target-only")(0.6) == second.rates
    for absent in (lookup(loaded, 0.4), lookup(loaded, 0.7, top_p=0.9)):
        with pytest.raises(InputError, match=r"python -m pipelines\.pair\.acceptance --pair toy"):
            absent(0.6)
    with pytest.raises(InputError, match="not measured for this draft"):
        lookup(loaded, 0.7)(1.0)


def test_a_new_measurement_replaces_the_old_one_and_goes_before_the_pairs_own(home) -> None:
    loaded, wanted = pair(), key(pair(), 1.0, 0.6, "residual")
    store(checkpoints.root() / "checkpoints" / "toy" / "acceptance.json", wanted, AcceptanceRates((0.1,), 1))
    assert lookup(loaded, 1.0)(0.6) == (0.1,)
    for rate in (0.2, 0.3):
        store(local_file("toy"), wanted, AcceptanceRates((rate,), 1))
    assert lookup(loaded, 1.0)(0.6) == (0.3,)
    assert len(json.loads(local_file("toy").read_text())) == 1


@pytest.mark.parametrize("text", ["no json", '{"rates": [1]}', "[{}]", "[1]"])
def test_a_damaged_file_is_named(home, text: str) -> None:
    local_file("toy").parent.mkdir(parents=True)
    local_file("toy").write_text(text)
    with pytest.raises(InputError, match=r"acceptance\.json does not hold measured acceptance rates"):
        lookup(pair(), 1.0)(0.6)


def test_sequoia_takes_the_stored_vector_of_its_draft_temperature() -> None:
    asked: list[float] = []

    def rates(temperature: float) -> tuple[float, ...]:
        asked.append(temperature)
        return (0.5, 0.25)

    assert parse("sequoia", lambda: None, rates) == Sequoia((0.5, 0.25))
    assert parse("sequoia:temperature=1,N=8", lambda: None, rates) == Sequoia((0.5, 0.25), N=8, temperature=1.0)
    assert parse("sequoia:acceptance=0.4x0.3", lambda: None, rates).acceptance == (0.4, 0.3)
    assert asked == [0.6, 1.0]
    with pytest.raises(InputError, match="needs acceptance"):
        parse("sequoia", lambda: None)
