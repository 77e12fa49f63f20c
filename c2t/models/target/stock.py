"""Modules of transformers and torch that a packed or fused form may compute in their place, since they were read.

Such a form takes a model's weights and never calls its modules. Whatever else they were made to do would be lost: a
replaced or patched forward, a hook, an adapter, another activation or scale. So a form is made only of modules that are
in this list, by class, forward and numbers; what differs is computed by the modules themselves. The list of a family is
made of its entry in `c2t.models.target.families`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import import_module
from types import FunctionType
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module
from transformers import PreTrainedConfig
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.utils import output_capturing

from c2t.models.target.families import FAMILIES, FULL, SLIDING, Family, head_dim, no_window
from c2t.models.target.taps import Tap

_OWNERS = ("torch", "transformers")  # whose decorators around a forward change nothing that counts here
# Implementation of attention -> transformers' own function for it, and for its mask: softmax over what the mask shows.
ATTENTION = {"sdpa": "sdpa_attention_forward", "eager": "eager_attention_forward"}
MASKS = {"sdpa": "sdpa_mask", "eager": "eager_mask"}
# Kinds of rotary frequencies that do not depend on the text's length, as far as c2t's texts go (`positions_of`).
STATIC = ("default", "linear", "llama3", "yarn", "longrope")


@dataclass(frozen=True)
class StockModule:
    """A kind of module that was read.

    name: its class. numbers: attributes other than weights that its forward reads -> their values in a packed form, by
    the config and the module. parts: the modules that its forward calls. items: what each item of a list is.
    """

    name: str
    numbers: Mapping[str, Callable[[PreTrainedConfig, Any], Any]] = field(default_factory=dict)
    parts: Mapping[str, "StockModule"] = field(default_factory=dict)
    items: "StockModule | None" = None


@dataclass(frozen=True)
class StockFamily:
    """Modules of a family's model, and the functions that their forwards find in the file `module`."""

    module: str
    functions: tuple[str, ...]
    norm: StockModule
    rotary: StockModule
    attention: StockModule
    mlp: StockModule
    layer: StockModule
    model: StockModule

    @classmethod
    def of(cls, family: Family) -> "StockFamily":
        """Return the modules of a family, by its entry."""
        module = f"transformers.models.{family.folder}.modeling_{family.folder}"
        functions = ("apply_rotary_pos_emb", "rotate_half", "repeat_kv", "create_causal_mask")
        if family.window is not no_window:
            functions += ("create_sliding_window_causal_mask",)
        name = f"{module}.{family.prefix}"
        norm = StockModule(f"{name}RMSNorm", {family.epsilon: lambda config, _: config.rms_norm_eps})
        rotary = StockModule(f"{name}RotaryEmbedding", _rotations(family))
        attention = StockModule(
            f"{name}Attention",
            _attention(family),
            dict.fromkeys((*family.reading, "o_proj"), LINEAR) | dict.fromkeys(filter(None, family.head_norms), norm),
        )
        linears = dict.fromkeys((*family.gating, "down_proj"), LINEAR)
        mlp = StockModule(f"{name}MLP", parts={**linears, family.activation: GELU if family.gelu else SILU})
        norms = dict.fromkeys(filter(None, (*family.before, *family.after)), norm)
        inside = {"self_attn": attention, "mlp": mlp, **norms, **dict.fromkeys(family.dropouts, DROPOUT)}
        layer = StockModule(f"{name}DecoderLayer", parts=inside)
        layers = StockModule("torch.nn.modules.container.ModuleList", items=layer)
        model = StockModule(  # embed_tokens is called, whatever it is
            f"{module}.{family.model or family.prefix + 'Model'}",
            parts={"layers": layers, "norm": norm, "rotary_emb": rotary},
        )
        return cls(module, functions, norm, rotary, attention, mlp, layer, model)


def _attention(family: Family) -> dict[str, Callable[[PreTrainedConfig, Any], Any]]:
    """Return the numbers of a family's attention."""
    numbers: dict[str, Callable[[PreTrainedConfig, Any], Any]] = {
        "config": lambda config, _: config,  # names the function that attends
        "head_dim": lambda config, _: head_dim(config),
        "num_key_value_groups": lambda config, _: config.num_attention_heads // config.num_key_value_heads,
        "scaling": lambda config, _: family.scale(config) ** -0.5,
        "is_causal": lambda *_: True,
    }
    if len(family.reading) == 1:
        numbers["num_key_value_heads"] = lambda config, _: config.num_key_value_heads
    if family.own_window:
        numbers["sliding_window"] = lambda config, attention: family.window(config, attention.layer_idx)
    if family.skips:
        numbers["use_rope"] = lambda config, attention: config.no_rope_layers[attention.layer_idx]
    return numbers


def _rotations(family: Family) -> dict[str, Callable[[PreTrainedConfig, Any], Any]]:
    """Return the numbers of a family's rotary embedding."""
    if not family.own_rotations:
        return {
            "rope_type": lambda config, _: _kind(config.rope_parameters),
            "attention_scaling": lambda config, _: _scaling(config, config.rope_parameters),
        }
    numbers: dict[str, Callable[[PreTrainedConfig, Any], Any]] = {
        "rope_type": lambda config, _: {kind: _kind(config.rope_parameters[kind]) for kind in set(config.layer_types)}
    }
    for kind in (FULL, SLIDING):
        numbers[f"{kind}_attention_scaling"] = partial(_scaling_of, kind)
    return numbers


def _kind(rope: Mapping[str, Any]) -> str | None:
    """Return the kind of some rotary frequencies; None for one that depends on the text's length."""
    return rope["rope_type"] if rope["rope_type"] in STATIC else None


def _scaling(config: PreTrainedConfig, rope: Mapping[str, Any], layer_type: str | None = None) -> float:
    """Return what transformers multiplies cosines and sines by."""
    if rope["rope_type"] == "default":
        return 1.0
    return ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, layer_type=layer_type)[1]


def _scaling_of(layer_type: str, config: PreTrainedConfig, _rotary: Any) -> float | None:
    """Return `_scaling` for one kind of layers; None where a model has no such layers."""
    there = layer_type in config.layer_types
    return _scaling(config, config.rope_parameters[layer_type], layer_type) if there else None


def _by_tanh(_config: PreTrainedConfig, activation: Any) -> Any:
    """Return the function of GELU by tanh, if it is torch's; else None."""
    act = activation.act
    is_gelu = isinstance(act, partial) and act.func is nn.functional.gelu and not act.args
    return act if is_gelu and act.keywords == {"approximate": "tanh"} else None


LINEAR = StockModule("torch.nn.modules.linear.Linear")  # with a bias or without
IDENTITY = StockModule("torch.nn.modules.linear.Identity")
EMBEDDING = StockModule("torch.nn.modules.sparse.Embedding", {"max_norm": lambda *_: None})
DROPOUT = StockModule("torch.nn.modules.dropout.Dropout", {"training": lambda *_: False})
SILU = StockModule("transformers.activations.SiLUActivation")
GELU = StockModule("transformers.activations.GELUTanh", {"act": _by_tanh})
STOCK = {name: StockFamily.of(family) for name, family in FAMILIES.items()}  # by model_type


def is_stock(model: PreTrainedModel) -> bool:
    """Return True if a model is of one of the families, and nothing of it differs from what was read."""
    family = STOCK.get(model.config.model_type)
    if family is None:
        return False
    base = model.base_model
    return is_stock_module(base, family.model, base.config) and has_stock_functions(family, base.config)


def is_stock_module(module: nn.Module, stock: StockModule, config: PreTrainedConfig | None = None) -> bool:
    """Return True if a module, and all those that its forward calls, are what was read. config: of its model, for kinds
    with numbers."""
    kind = type(module)
    if stock.items is None:
        if _own_name(kind, kind.forward, kind.__call__) != stock.name:
            return False
    elif f"{kind.__module__}.{kind.__qualname__}" != stock.name:
        return False
    if not is_untouched(module):
        return False
    for name, value in stock.numbers.items():
        actual, wanted = getattr(module, name, None), value(config, module)
        if actual is not wanted and (isinstance(wanted, PreTrainedConfig) or actual != wanted):
            return False
    parts = module._modules
    if stock.items is not None:
        return all(is_stock_module(item, stock.items, config) for item in parts.values())
    return all(name in parts and is_stock_module(parts[name], part, config) for name, part in stock.parts.items())


def is_untouched(module: nn.Module) -> bool:
    """Return True if nothing was attached to one module that its class does not say: a forward of its own, or a hook
    that could change what it computes."""
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks or "forward" in vars(module):
        return False
    return all(map(_only_looks, (*module._forward_hooks.values(), *module._forward_pre_hooks.values())))


def has_stock_functions(family: StockFamily, config: PreTrainedConfig) -> bool:
    """Return True if the functions that a family's forwards call are its own, and attention is softmax over what the
    mask shows."""
    there = vars(import_module(family.module))
    name, eager = config._attn_implementation, there["eager_attention_forward"]
    attend = ALL_ATTENTION_FUNCTIONS.get(name, eager if name == "eager" else None)
    unchanged = all(_is_own(there[function], function) for function in family.functions)
    return unchanged and name in ATTENTION and _is_own(attend, ATTENTION[name]) and makes_own_masks(name)


def makes_own_masks(attention: str) -> bool:
    """Return True if the masks of an implementation of attention are made by transformers' own function."""
    return attention not in MASKS or _is_own(ALL_MASK_ATTENTION_FUNCTIONS.get(attention, None), MASKS[attention])


def attends_by_softmax(model: PreTrainedModel) -> bool:
    """Return True if a model attends by one of transformers' own functions, flash kernels among them."""
    name = model.config._attn_implementation
    eager = vars(import_module(type(model.base_model).__module__)).get("eager_attention_forward")
    attend = ALL_ATTENTION_FUNCTIONS.get(name, eager if name == "eager" else None)
    return _written_in(getattr(attend, "func", attend))[0].startswith("transformers.")  # func: of a partial


def is_transformers_own(model: PreTrainedModel) -> bool:
    """Return True if a model's class and forward are transformers' own, and nothing is attached to it."""
    kind = model.__class__  # which a weak reference has, too
    stock = _own_name(kind, kind.forward, kind.__call__).startswith("transformers.")
    return stock and not model._forward_hooks and not model._forward_pre_hooks and "forward" not in model.__dict__


@lru_cache(maxsize=512)
def _own_name(kind: type, forward: Any, call: Any) -> str:
    """Return a class' name if its forward and its call are those that stand in its own file; else ""."""
    same = _written_in(forward) == (kind.__module__, f"{kind.__qualname__}.forward")
    return f"{kind.__module__}.{kind.__qualname__}" if same and _written_in(call)[0] == nn.Module.__module__ else ""


@lru_cache(maxsize=512)
def _is_own(function: Any, name: str | None) -> bool:
    """Return True for a function of transformers with this name, as it stands there."""
    module, written = _written_in(function)
    return written == name and module.partition(".")[0] == "transformers"


def _written_in(function: Any) -> tuple[str, str]:
    """Return the module whose code a function is, and its name there; two empty ones if there is code of others around
    it. Neither is what `functools.wraps` copies."""
    while isinstance(function, FunctionType):
        module = function.__globals__.get("__name__", "")
        if module.partition(".")[0] not in _OWNERS:
            break
        if not hasattr(function, "__wrapped__"):
            return module, function.__code__.co_qualname
        function = function.__wrapped__
    return "", ""


def _only_looks(hook: Any) -> bool:
    """Return True for hooks that change nothing: taps, and those of output_hidden_states, which do nothing
    outside of transformers' forward."""
    return type(hook) is Tap or getattr(hook, "__module__", "") == output_capturing.__name__
