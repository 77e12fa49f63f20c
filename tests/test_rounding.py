"""The bounds of rounding.py: what they assume of the toys, and that they are broken by what is no rounding."""

import ast
from pathlib import Path

import pytest
import torch

from tests.rounding import assert_within, confidence_bound, dot_bound, growth, log_prob_bound
from tests.toys import PROMPTS, deep_pairs, random_eagle, toy_classifier, toy_target

HERE = Path(__file__).parent


@torch.no_grad()
@pytest.mark.parametrize("name", ["toy", "deep"])
def test_toy_networks_enlarge_errors_less_than_1000_fold(name: str) -> None:
    """Of embeddings that are off by a billionth; errors that arise later have fewer layers to grow in."""
    target = toy_target() if name == "toy" else deep_pairs()["lm"][0]
    embedded = target.embed_tokens(torch.tensor([PROMPTS[1]]))
    exact = target.model(inputs_embeds=embedded).logits
    for _ in range(20):
        off = target.model(inputs_embeds=embedded * (1 + 1e-9 * (2 * torch.rand_like(embedded) - 1))).logits
        assert (off - exact).abs().max() / exact.abs().max() < 1000 * 1e-9


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("label", ["accepted", "accepted_given_parent"])
def test_terms_of_the_toy_classifiers_logit_add_up_to_less_than_100(seed: int, label: str) -> None:
    model = toy_classifier(seed, label=label)
    x = torch.tensor([[1.0, 4.0, 11.0]])
    assert confidence_bound(model, x, torch.float64) < growth(3) * 100 / 4 * 1.01


def test_toys_are_the_same_whatever_was_drawn_before() -> None:
    first = random_eagle(toy_target()).head.state_dict()
    torch.rand(7)
    assert all(tensor.equal(first[name]) for name, tensor in random_eagle(toy_target()).head.state_dict().items())


def test_sums_in_any_order_are_within_the_bound_and_a_missing_term_is_not() -> None:
    a, b = torch.randn(40, 300), torch.randn(300, 5)
    exact, bound = a.double() @ b.double(), dot_bound(a, b)
    assert_within(a @ b, exact, bound)
    assert_within(a.flip(1) @ b.flip(0), exact, bound)
    one_by_one = torch.zeros(40, 5)
    for i in range(300):
        one_by_one += a[:, i, None] * b[i]
    assert_within(one_by_one, exact, bound)
    with pytest.raises(AssertionError, match="differ by more than rounding explains"):
        assert_within(a[:, 1:] @ b[1:], exact, bound)


def test_half_precision_does_not_pass_for_float32() -> None:
    logits = 3 * torch.randn(4, 50)
    exact = logits.double().log_softmax(-1)
    assert_within(logits.log_softmax(-1), exact, log_prob_bound(logits))
    with pytest.raises(AssertionError, match="rounding"):
        assert_within(logits.half().log_softmax(-1), exact, log_prob_bound(logits))


def test_nan_and_infinity_equal_themselves_only() -> None:
    special = torch.tensor([float("nan"), float("inf"), float("-inf")])
    assert_within(special, special, 0.0)
    for other in ([0.0, 1.0, 2.0], [float("nan"), float("-inf"), float("inf")]):
        with pytest.raises(AssertionError):
            assert_within(special, torch.tensor(other), 1.0)


CLOSE = {"allclose", "assert_close", "assert_allclose", "assert_almost_equal", "isclose"}
TOLERANCES = {"atol", "rtol", "abs", "rel", "rel_tol", "abs_tol", "places", "decimal"}


def is_typed(value: ast.expr) -> bool:
    """True for numbers other than 0, and for what is computed of numbers alone."""
    nodes = [node for node in ast.walk(value) if isinstance(node, ast.expr)]
    numbers = all(isinstance(node, ast.Constant | ast.BinOp | ast.UnaryOp) for node in nodes)
    return numbers and not (isinstance(value, ast.Constant) and value.value == 0)


@pytest.mark.parametrize("file", sorted(HERE.rglob("*.py")), ids=lambda file: file.relative_to(HERE).as_posix())
def test_no_tolerance_is_typed(file: Path) -> None:
    """Each follows from the length of a sum, a number of samples or a step of the code, by rounding.py."""
    if file.name == "rounding.py":
        return
    for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        given = {word.arg: word.value for word in call.keywords if word.arg in TOLERANCES}
        place = f"{file.relative_to(HERE)}:{call.lineno}: {ast.unparse(call)[:80]}"
        assert not any(map(is_typed, given.values())), place
        assert name not in CLOSE or given, f"{place} has tolerances of its own"
        assert name != "approx" or given, f"{place} has a tolerance of its own"
