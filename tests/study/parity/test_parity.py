"""Plain decoding against a verified tree: exact models are equal, and each planted fault is named alone."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from c2t.errors import InputError
from c2t.models.target.target import Target
from c2t.study.parity.activations import Activations, Difference, difference
from c2t.study.parity.compare import grouped
from c2t.study.parity.kernels import OwnTarget
from c2t.study.parity.nodes import PlainNode, grow, tree_of
from c2t.study.parity.run import MOST_ROWS, lines, parity, prompt_ids
from c2t.study.parity.stock import StockModel
from tests.marks import slow_except
from tests.rounding import assert_equal, assert_same_network
from tests.study.parity.exact_model import (
    REVERSED,
    exact_model,
    in_two_halves,
    next_number,
    plant,
    split_k,
)
from tests.toys import FAMILIES, language_model, toy_target, toy_tokenizer

PROMPT = [1 + i % 40 for i in range(30)]  # longer than a forward in which faults show


def names(model: PreTrainedModel, rows: list[int], chain: bool = False) -> list[list[str]]:
    """The activations that differ by themselves, for each number of rows."""
    result = parity(model, [PROMPT], rows, chain)
    for row, groups in zip(result.rows, result.groups, strict=True):
        assert bool(row.differing) == bool(groups) == (row.first is not None)
    return [[group.name for group in groups] for groups in result.groups]


@pytest.mark.parametrize("chain", [False, True])
def test_rows_that_depend_on_no_other_row_are_equal(chain: bool) -> None:
    result = parity(exact_model(), [PROMPT, PROMPT[:9]], [1, 3, 20], chain)
    assert [(row.rows, row.nodes, row.differing, row.ulp, row.flips, row.first) for row in result.rows] == [
        (rows, 2 * rows, 0, 0.0, (), None) for rows in (1, 3, 20)
    ]
    assert next(lines(result)) == "M = 1: logits of 0 of 2 nodes differ"
    assert not result.unseen


FAULTS: dict[str, tuple[str, Callable]] = {
    "model.layers.1.mlp.down_proj": ("model.layers.*.mlp.down_proj", split_k),
    "lm_head": ("lm_head", split_k),
    "model.layers.0.post_attention_layernorm": ("model.layers.*.post_attention_layernorm", in_two_halves),
    "model.embed_tokens": ("model.embed_tokens", next_number),
    "model.layers.0.mlp.act_fn": ("model.layers.*.mlp.act_fn", next_number),
}


@pytest.mark.parametrize("module", FAULTS)
def test_a_planted_fault_is_named_alone(module: str) -> None:
    model = exact_model()
    name, fault = FAULTS[module]
    plant(model, module, fault)
    assert names(model, [1, 4, 20]) == [[], [name], [name]]


def test_a_fault_of_many_rows_is_named_there_only() -> None:
    model = exact_model()
    plant(model, "model.layers.1.self_attn.v_proj", split_k, least=8)
    assert names(model, [1, 2, 4, 8], chain=True) == [[], [], [], ["model.layers.*.self_attn.v_proj"]]


def test_code_between_modules_is_named_by_the_module_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = exact_model()
    model.config._attn_implementation = REVERSED
    assert names(model, [1, 12]) == [[], ["model.layers.*.self_attn.o_proj <in>"]]
    model = exact_model()
    mlp = model.model.layers[1].mlp

    def fused(x: torch.Tensor) -> torch.Tensor:
        gate, up = mlp.gate_proj(x), mlp.up_proj(x)
        product = mlp.act_fn(gate) * up
        return mlp.down_proj(product.bfloat16().float() if 1 < x.shape[1] <= 20 else product)

    monkeypatch.setattr(mlp, "forward", fused)
    found = parity(model, [PROMPT], [5])
    assert [group.name for group in found.groups[0]] == ["model.layers.*.mlp.down_proj <in>"]
    assert found.groups[0][0].differing == ("model.layers.1.mlp.down_proj <in>",)
    assert "        model.layers.1.mlp.down_proj <in>" in list(lines(found))


def test_one_node_that_differs_is_explained() -> None:
    model = exact_model()
    tree = model.model.forward

    def shifted(*args: object, **kwargs: object) -> object:
        out = tree(*args, **kwargs)
        if kwargs.get("attention_mask") is not None:
            out.last_hidden_state = out.last_hidden_state + 1
        return out

    model.model.forward = shifted
    result = parity(model, [PROMPT], [1])
    assert result.rows[0].first == "lm_head <in>"
    assert "    one node alone differs" in "\n".join(lines(result))
    (row,) = result.figures["rows"]
    assert [(each["name"], each["differing"], each["rows"]) for each in row["activations"]] == [
        ("lm_head <in>", [""], 1)
    ]


def test_random_numbers_are_no_parity() -> None:
    model = exact_model()
    plant(model, "model.layers.0.mlp.up_proj", lambda module, x: module(x) + torch.rand(()))
    with pytest.raises(InputError, match="not deterministic"):
        parity(model, [PROMPT], [4])


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("broken")


def test_the_model_is_as_before_also_after_an_error() -> None:
    def hooks(model: PreTrainedModel) -> int:
        return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())

    model = exact_model()
    state, config = copy.deepcopy(model.state_dict()), model.config.to_dict()
    parity(model, [PROMPT], [3])
    assert hooks(model) == 0
    assert model.config.to_dict() == config
    for name, tensor in model.state_dict().items():
        assert_equal(tensor, state[name])
    model.lm_head = Broken()
    with pytest.raises(RuntimeError, match="broken"):
        parity(model, [PROMPT], [3])
    assert hooks(model) == 0


@torch.inference_mode()
def test_forced_numbers_change_nothing_where_nothing_differs() -> None:
    with Activations(model := exact_model()) as activations:
        stock = StockModel(model, activations, PROMPT, chain=False)
        nodes, alone = grow(stock, 9, 4)
        with activations.comparing(9, force=True) as found:
            assert_equal(stock.verify(nodes), alone)
        assert not found
        assert stock.cache.get_seq_length() == len(PROMPT)


@pytest.mark.parametrize("family", slow_except(FAMILIES, "gemma3", "gpt2"))
@torch.inference_mode()
def test_families_verify_as_c2t_does(family: str) -> None:
    """The same logits as those of c2t's own verification, but for rounding."""
    model = language_model(FAMILIES[family])
    with Activations(model) as activations:
        stock = StockModel(model, activations, PROMPT, chain=False)
        nodes, alone = grow(stock, 12, 4)
        verified = stock.verify(nodes)
    own = OwnTarget(Target(model), PROMPT)
    assert_same_network(verified, own.verify(nodes))
    assert_same_network(alone, own.verify(nodes))
    expected = grow(own, 12, 4)[1]
    assert_same_network(alone, expected)


def test_experts_are_named_as_not_compared() -> None:
    result = parity(language_model(FAMILIES["mixtral"]).float(), [PROMPT], [1, 4])
    assert any("experts" in name for name in result.unseen)
    assert list(lines(result))[-1].startswith("not compared, because their tensors have no row for each token: ")


def test_the_tree_is_best_first_and_its_beginnings_are_trees() -> None:
    own = OwnTarget(toy_target(), PROMPT)
    nodes, _ = grow(own, 30, 4)
    assert nodes[0] == PlainNode(int(own.first.argmax()), -1, 0)
    assert all(node.parent < number for number, node in enumerate(nodes))
    assert all(node.depth == nodes[node.parent].depth + 1 for node in nodes[1:])
    assert [node.parent for node in grow(own, 6, 1)[0]] == [-1, 0, 1, 2, 3, 4]
    assert_equal(
        tree_of(nodes, own.device).positions(torch.tensor([30])), torch.tensor([[30 + node.depth for node in nodes]])
    )


def test_a_difference_is_in_units_of_the_rows_largest_number() -> None:
    expected = torch.tensor([[1.5, 1e-3], [4.0, 0.0], [0.0, 0.0]])
    assert difference(expected.clone(), expected) is None
    found = expected.clone()
    found[0, 0] += 3 * 2**-23
    found[1, 1] = 2**-21 * 5
    assert difference(found, expected) == Difference(5.0, 2)


def test_places_are_grouped_over_layers() -> None:
    order = [f"model.layers.{layer}.{name}" for layer in range(5) for name in ("q", "k")] + ["head"]
    activations = {order[0]: Difference(1.0, 2), order[4]: Difference(0.5, 3), "head": Difference(2.0, 1)}
    first, last = grouped(activations, order)
    assert first == ("model.layers.*.q", (order[0], order[4]), 5, 1.0, 3)
    assert first.layers == ["0", "2"]
    assert last == ("head", ("head",), 1, 2.0, 1)


def test_prompts_have_so_many_tokens() -> None:
    tokenizer = toy_tokenizer()
    assert [len(ids) for ids in prompt_ids(tokenizer, ["w1 w2 w3", "w4"], 2)] == [2, 1]
    (ids,) = prompt_ids(tokenizer, [], 9000)
    assert len(ids) == 9000
    with pytest.raises(InputError, match="no prompt has a token"):
        prompt_ids(tokenizer, [""], 2)


def test_what_cannot_be_compared_is_refused() -> None:
    model = exact_model()
    for rows in ([0], [MOST_ROWS + 1]):
        with pytest.raises(InputError, match="rows"):
            parity(model, [PROMPT], rows)
    with pytest.raises(InputError, match=r"30 tokens and 240 nodes may need more than the model's 256 positions"):
        parity(model, [PROMPT], [240])
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(InputError, match="layers of another kind \\(linear_attention\\)"):
        parity(model, [PROMPT], [1])
