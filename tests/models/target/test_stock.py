"""Models whose modules were changed: what they compute is never the unchanged model's."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize
from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.llama import modeling_llama as llama

from c2t.errors import InputError
from c2t.hf import TreeDecoding
from c2t.kernels.native import kernels
from c2t.models.drafts.eagle import EagleHead, Head
from c2t.models.drafts.eagle3 import Eagle3Head
from c2t.models.drafts.fused_eagle import FusedEagle
from c2t.models.drafts.head_draft import EagleDraft
from c2t.models.drafts.medusa import MedusaHead
from c2t.models.drafts.packed_heads import packed
from c2t.models.target import stock
from c2t.models.target.packed_model import PackedModel
from c2t.models.target.target import Target
from c2t.policies import Eagle2
from tests.toys import FAMILIES, SIZES, language_model, randomise

needs_kernels = pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")
CONFIG = LlamaConfig(**{**SIZES, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2})
SERVED = {name: config.model_type for name, config in FAMILIES.items() if config.model_type in stock.STOCK}
TREE = Eagle2(K=3, levels=4, N=12)
PROMPT = {"inputs": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9, 10]]), "max_new_tokens": 20, "do_sample": False}
Change = Callable[[PreTrainedModel, pytest.MonkeyPatch], Any]


def model_of() -> PreTrainedModel:
    return language_model(copy.deepcopy(CONFIG)).float()


class Mlp(llama.LlamaMLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flip(-1)


class Scaled(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        return 3 * super().forward(ids)


class Around(nn.Module):
    """An adapter around a module."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, *given: Any, **named: Any) -> Tensor:
        return self.inner(*given, **named).flip(-1)


def patched(kind: type, change: Callable[[Any], Any]) -> Change:
    """The forward of a whole class, by a function that says that it is the old one."""

    def patch(_: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
        old = kind.forward
        new = functools.wraps(old)(lambda self, *given, **named: change(old(self, *given, **named)))
        monkeypatch.setattr(kind, "forward", new)

    return patch


def each(change: Callable[[nn.Module], Any]) -> Change:
    return lambda model, _: [change(layer) for layer in model.model.layers]


def once(change: Callable[[nn.Module], Any]) -> Change:
    return lambda model, _: change(model.model)


def quieter(module: nn.Module, *given: Any, scaling: float, **named: Any) -> tuple[Tensor, None]:
    return sdpa_attention_forward(module, *given, scaling=scaling / 2, **named)


def flipped(out: BaseModelOutputWithPast) -> BaseModelOutputWithPast:
    return BaseModelOutputWithPast(out.last_hidden_state.flip(-1), out.past_key_values)


def adapted(linear: nn.Linear) -> None:
    parametrize.register_parametrization(linear, "weight", nn.Tanh())


CHANGES: dict[str, Change] = {
    "attention's forward, of the class": patched(llama.LlamaAttention, lambda out: (1.3 * out[0], *out[1:])),
    "MLP's forward, of the class": patched(llama.LlamaMLP, lambda out: 1.1 * out),
    "layer's forward, of the class": patched(llama.LlamaDecoderLayer, lambda out: out.flip(-1)),
    "norm's forward, of the class": patched(llama.LlamaRMSNorm, lambda out: out + 0.1),
    "rotary's forward, of the class": patched(llama.LlamaRotaryEmbedding, lambda out: (0.7 * out[0], 0.7 * out[1])),
    "model's forward, of the class": patched(llama.LlamaModel, flipped),
    "linear layer's forward, of the class": patched(nn.Linear, lambda out: 1.1 * out),
    "call of a class": lambda _, monkeypatch: monkeypatch.setattr(
        llama.LlamaMLP, "__call__", lambda self, x: 1.1 * self.forward(x), raising=False
    ),
    "function that turns": lambda _, monkeypatch: monkeypatch.setattr(
        llama, "apply_rotary_pos_emb", lambda query, key, *_: (query, key)
    ),
    "function that attends": lambda _, monkeypatch: monkeypatch.setitem(
        AttentionInterface._global_mapping, "sdpa", quieter
    ),
    "hook of all modules": lambda _, monkeypatch: monkeypatch.setitem(
        torch_module._global_forward_hooks, 0, lambda module, __, out: 2 * out if type(module) is nn.Linear else out
    ),
    "scaling": each(lambda layer: setattr(layer.self_attn, "scaling", 0.02)),
    "activation": each(lambda layer: setattr(layer.mlp, "act_fn", nn.Tanh())),
    "subclass of the MLP": each(lambda layer: setattr(layer.mlp, "__class__", Mlp)),
    "forward of a module": each(lambda layer: setattr(layer.mlp, "forward", lambda x: 0.3 * x)),
    "epsilon": each(lambda layer: setattr(layer.input_layernorm, "variance_epsilon", 20.0)),
    "norm": each(lambda layer: setattr(layer, "input_layernorm", nn.LayerNorm(64))),
    "parametrization": each(lambda layer: adapted(layer.self_attn.o_proj)),
    "adapter around a projection": each(lambda layer: setattr(layer.mlp, "up_proj", Around(layer.mlp.up_proj))),
    "hook": each(lambda layer: layer.self_attn.v_proj.register_forward_hook(lambda _, __, out: 2 * out)),
    "hook before": each(lambda layer: layer.mlp.register_forward_pre_hook(lambda _, given: (2 * given[0],))),
    "adapters around layers": once(lambda base: setattr(base, "layers", nn.ModuleList(map(Around, base.layers)))),
    "last norm": once(lambda base: setattr(base, "norm", nn.LayerNorm(64))),
    "embedding": once(lambda base: setattr(base, "embed_tokens", Scaled.from_pretrained(base.embed_tokens.weight))),
    "LM head": lambda model, _: setattr(model, "lm_head", Around(model.lm_head)),
    "rotary frequencies": once(lambda base: base.rotary_emb.inv_freq.mul_(0.25)),
}


@pytest.mark.parametrize("name", CHANGES)
@torch.no_grad()
def test_a_changed_model_writes_its_own_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it was changed after a call or before the first one."""
    model, known = model_of(), TreeDecoding("lookup", policy=TREE)
    free = model.generate(**PROMPT, custom_generate=known).tolist()
    CHANGES[name](model, monkeypatch)
    own = model.generate(**PROMPT).tolist()
    assert own != free, "the change says nothing"
    for decoding in (known, TreeDecoding("lookup", policy=TREE)):
        assert model.generate(**PROMPT, custom_generate=decoding).tolist() == own


@needs_kernels
def test_what_changes_nothing_stays_packed() -> None:
    """Its own taps, the hooks that output_hidden_states leaves behind, and eager attention."""
    model = model_of()
    target = Target(model)
    target.tap((1,))
    model(torch.tensor([[1, 2]]), output_hidden_states=True)
    assert any(layer._forward_hooks for layer in model.model.layers)
    assert target.packed is not None
    model.set_attn_implementation("eager")
    assert PackedModel.serves(model)


REFUSED: dict[str, tuple[Change, str]] = {
    "own attention": (lambda model, _: registered(model), "attention by mine takes no mask of a tree"),
    "own masks": (
        lambda _, monkeypatch: monkeypatch.setitem(
            AttentionMaskInterface._global_mapping, "sdpa", lambda *given, **named: sdpa_mask(*given, **named)
        ),
        "the masks of sdpa are not made by transformers' own function",
    ),
    "forward of the whole model": (
        patched(llama.LlamaForCausalLM, lambda out: out.__class__(logits=-out.logits)),
        "the forward of LlamaForCausalLM does more than its layers and its LM head",
    ),
    "layers left out": (
        once(lambda base: setattr(base, "layers", nn.ModuleList([base.layers[1]]))),
        "layers have the layer_idx 1: number them from 0 to 0",
    ),
    "layers twice": (
        once(lambda base: setattr(base, "layers", nn.ModuleList([base.layers[0]] * 2))),
        "layers have the layer_idx 0, 0: number them from 0 to 1",
    ),
    "more layers": (
        once(lambda base: base.layers.append(llama.LlamaDecoderLayer(CONFIG, 2))),
        "the model has 3 layers, and its config says 2: set num_hidden_layers",
    ),
}


def registered(model: PreTrainedModel) -> None:
    AttentionInterface.register("mine", quieter)
    AttentionMaskInterface.register("mine", sdpa_mask)
    model.set_attn_implementation("mine")


@pytest.mark.parametrize("name", REFUSED)
def test_what_trees_would_pass_over_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, decoding = model_of(), TreeDecoding("lookup", policy=TREE)
    model.generate(**PROMPT, custom_generate=decoding)
    change, message = REFUSED[name]
    change(model, monkeypatch)
    for trees in (decoding, TreeDecoding("lookup", policy=TREE)):
        with pytest.raises(InputError, match=message):
            model.generate(**PROMPT, custom_generate=trees)


def test_a_forward_that_only_adds_a_name_is_served() -> None:
    """Of a subclass, as code that comes with a checkpoint has it."""

    class Own(llama.LlamaForCausalLM):
        def forward(self, *given: Any, **named: Any) -> Any:
            return super().forward(*given, **named)

    model = model_of()
    model.__class__ = Own
    assert model.generate(**PROMPT).equal(model.generate(**PROMPT, custom_generate=TreeDecoding("lookup", policy=TREE)))


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2"])
def test_layers_may_be_fewer_than_the_config_says(family: str) -> None:
    model = model_of() if family == "llama" else language_model(copy.deepcopy(FAMILIES[family])).float()
    base = model.base_model
    name = "h" if family == "gpt2" else "layers"
    setattr(base, name, getattr(base, name)[:1])
    decoding = TreeDecoding("lookup", policy=TREE)
    assert model.generate(**PROMPT).equal(model.generate(**PROMPT, custom_generate=decoding))


HEADS: dict[str, Callable[[], Head]] = {
    "eagle": lambda: EagleHead(CONFIG),
    "medusa": lambda: MedusaHead(CONFIG, 2),
    "eagle3": lambda: Eagle3Head(CONFIG, SIZES["vocab_size"]),
}
HEAD_CHANGES: dict[str, Callable[[Head, nn.Module, pytest.MonkeyPatch], Any]] = {
    "activation": lambda _, layer, __: setattr(layer.mlp, "act_fn", nn.GELU()),
    "scaling": lambda _, layer, __: setattr(layer.self_attn, "scaling", 0.08),
    "norm": lambda _, layer, __: setattr(layer, "post_attention_layernorm", nn.LayerNorm(64)),
    "fc": lambda head, _, __: setattr(head, "fc", Around(head.fc)),
    "hook": lambda _, layer, __: layer.register_forward_hook(lambda _, __, out: 2 * out),
    "forward": lambda head, _, __: setattr(head, "forward", lambda *given: head.fc(given[0])),
    "class": lambda head, _, monkeypatch: patched(llama.LlamaMLP, lambda out: 1.1 * out)(head, monkeypatch),
    "rotary": lambda head, _, __: setattr(head.rotary, "attention_scaling", 2.0),
}


@needs_kernels
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("name", HEAD_CHANGES)
def test_a_changed_head_has_no_packed_or_fused_form(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head = randomise(HEADS[kind](), 1).float().requires_grad_(False)
    target = Target(model_of())
    head.embed_tokens = target.embed_tokens
    assert packed(head, False) is not None
    assert FusedEagle.serves(head) == (kind != "eagle3")
    layer = head.midlayer if isinstance(head, Eagle3Head) else head.layers[0]
    HEAD_CHANGES[name](head, layer, monkeypatch)
    assert packed(head, False) is None
    assert not FusedEagle.serves(head)


@needs_kernels
def test_frequencies_of_a_head_are_packed_anew() -> None:
    target, head = Target(model_of()), EagleHead(CONFIG).float().requires_grad_(False)
    head.embed_tokens = target.embed_tokens
    draft = EagleDraft(head, target.lm_head)
    before, fused = draft.packed, draft.fused
    assert draft.packed is before
    head.rotary.inv_freq.mul_(0.5)
    assert draft.packed is not before
    assert draft.fused is not fused


def test_every_part_that_was_read_is_there() -> None:
    """So that a new version of transformers does not quietly take the packed form from everybody."""
    for family in SERVED:
        assert stock.is_stock(language_model(copy.deepcopy(FAMILIES[family]))), family
    assert set(SERVED.values()) == set(stock.STOCK)


PARTS = ("norm", "rotary", "attention", "mlp", "layer", "model")
# Numbers that some family's attention reads, and others that it shall not have.
NUMBERS = {"scaling": 0.02, "head_dim": 4, "sliding_window": 5, "use_rope": 2, "num_key_value_heads": 3}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("family", SERVED)
def test_a_changed_part_of_a_family_is_noticed(family: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = language_model(copy.deepcopy(FAMILIES[family]))
    name = getattr(stock.STOCK[SERVED[family]], part).name.rpartition(".")[2]
    kind = next(type(module) for module in model.modules() if type(module).__name__ == name)
    patched(kind, lambda out: out)(model, monkeypatch)
    assert not stock.is_stock(model)


@pytest.mark.parametrize("family", SERVED)
def test_changed_numbers_of_a_family_are_noticed(family: str) -> None:
    for name in (name for name in NUMBERS if name in stock.STOCK[SERVED[family]].attention.numbers):
        model = language_model(copy.deepcopy(FAMILIES[family]))
        setattr(model.base_model.layers[1].self_attn, name, NUMBERS[name])
        assert not stock.is_stock(model), name
    model = language_model(copy.deepcopy(FAMILIES[family]))
    for name in stock.STOCK[SERVED[family]].rotary.numbers:
        if name.endswith("scaling"):
            setattr(model.base_model.rotary_emb, name, 2.0)
    assert not stock.is_stock(model)


def test_another_gelu_is_noticed() -> None:
    model = language_model(copy.deepcopy(FAMILIES["gemma3"]))
    act = model.base_model.layers[0].mlp.act_fn
    act.act = functools.partial(nn.functional.gelu, approximate="none")
    assert not stock.is_stock(model)
    act.act = act._gelu_tanh_python
    assert not stock.is_stock(model)
