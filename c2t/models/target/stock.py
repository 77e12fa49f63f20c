"""Modules of transformers and torch that a packed or fused form may compute in their place, since they were read.

Such a form takes a model's weights and never calls its modules. Whatever else they were made to do would be lost: a
replaced or patched forward, a hook, an adapter, another activation or scale. So a form is made only of modules that are
in this list, by class, forward and numbers; what differs is computed by the modules themselves. Another family is one
more entry of FAMILIES, once the kernels compute what its modules do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from types import FunctionType
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module
from transformers import PreTrainedConfig
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.utils import output_capturing

from c2t.models.target.taps import Tap

_OWNERS = ("torch", "transformers")  # whose decorators around a forward change nothing that counts here
# Implementation of attention -> transformers' own function for it, and for its mask: softmax over what the mask shows.
ATTENTION = {"sdpa": "sdpa_attention_forward", "eager": "eager_attention_forward"}
MASKS = {"sdpa": "sdpa_mask", "eager": "eager_mask"}


@dataclass(frozen=True)
class StockModule:
    """A kind of module that was read.

    name: its class. numbers: attributes other than weights that its forward reads -> their values in a packed form, by
    the config. parts: the modules that its forward calls. items: what each item of a list is.
    """

    name: str
    numbers: Mapping[str, Callable[[PreTrainedConfig], Any]] = field(default_factory=dict)
    parts: Mapping[str, "StockModule"] = field(default_factory=dict)
    items: "StockModule | None" = None


@dataclass(frozen=True)
class StockFamily:
    """Modules of a family's model, and the functions that their forwards find in `module`."""

    module: str
    functions: tuple[str, ...]
    model: StockModule


def _head_dim(config: PreTrainedConfig) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


LINEAR = StockModule("torch.nn.modules.linear.Linear")  # with a bias or without
IDENTITY = StockModule("torch.nn.modules.linear.Identity")
EMBEDDING = StockModule("torch.nn.modules.sparse.Embedding", {"max_norm": lambda _: None})
SILU = StockModule("transformers.activations.SiLUActivation")

_LLAMA = "transformers.models.llama.modeling_llama"
LLAMA_NORM = StockModule(f"{_LLAMA}.LlamaRMSNorm", {"variance_epsilon": lambda config: config.rms_norm_eps})
LLAMA_ROTARY = StockModule(f"{_LLAMA}.LlamaRotaryEmbedding", {"attention_scaling": lambda _: 1.0})
LLAMA_ATTENTION = StockModule(
    f"{_LLAMA}.LlamaAttention",
    {
        "config": lambda config: config,  # names the function that attends
        "head_dim": _head_dim,
        "num_key_value_groups": lambda config: config.num_attention_heads // config.num_key_value_heads,
        "scaling": lambda config: _head_dim(config) ** -0.5,
    },
    dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), LINEAR),
)
LLAMA_MLP = StockModule(
    f"{_LLAMA}.LlamaMLP",
    parts={**dict.fromkeys(("gate_proj", "up_proj", "down_proj"), LINEAR), "act_fn": SILU},
)
LLAMA_LAYER = StockModule(
    f"{_LLAMA}.LlamaDecoderLayer",
    parts={
        "self_attn": LLAMA_ATTENTION,
        "mlp": LLAMA_MLP,
        "input_layernorm": LLAMA_NORM,
        "post_attention_layernorm": LLAMA_NORM,
    },
)
LLAMA = StockFamily(
    _LLAMA,
    ("apply_rotary_pos_emb", "repeat_kv", "create_causal_mask"),
    StockModule(
        f"{_LLAMA}.LlamaModel",
        parts={
            # embed_tokens is called, whatever it is
            "layers": StockModule("torch.nn.modules.container.ModuleList", items=LLAMA_LAYER),
            "norm": LLAMA_NORM,
            "rotary_emb": LLAMA_ROTARY,
        },
    ),
)
FAMILIES = {"llama": LLAMA}  # by model_type


def is_stock(model: PreTrainedModel) -> bool:
    """Return True if a model is one of FAMILIES, and nothing of it differs from what was read."""
    family = FAMILIES.get(model.config.model_type)
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
        actual, wanted = getattr(module, name, None), value(config)
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
