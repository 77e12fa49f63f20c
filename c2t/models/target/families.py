"""Families of models whose decoder layers c2t's kernels run: where each keeps its weights, and how it computes.

What differs from Llama is one entry of FAMILIES. `c2t.models.target.stock` makes its list of transformers' modules of
the same entries, so a model is looked through before anything here is read from it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig

from c2t.kernels.decoder_layers import LayerParts, PackedNorm, Weights

SLIDING, FULL = "sliding_attention", "full_attention"  # kinds of layers in a config's `layer_types`


def head_dim(config: PreTrainedConfig) -> int:
    """Return the dimensions of a head of attention."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def no_window(_config: PreTrainedConfig, _number: int) -> int | None:
    return None


def _of_every_layer(config: PreTrainedConfig, _number: int) -> int | None:
    return config.sliding_window


def _of_sliding_layers(config: PreTrainedConfig, number: int) -> int | None:
    return config.sliding_window if config.layer_types[number] == SLIDING else None


@dataclass(frozen=True)
class Family:
    """A family of transformers' models. The defaults are Llama's.

    folder: of its file in transformers.models. prefix: of its classes' names; model: the base model's name.
    reading, gating: linear layers of attention and of the MLP; a single one has the weights of all. activation: the
    name of the MLP's, which is GELU by tanh if `gelu`. before, after: norms of what attention and the MLP read, and of
    what they add. head_norms: norms of queries and keys, of each head or of all together. epsilon: its name in a norm.
    offset: added to a norm's weights. window(config, layer): positions that a layer's tokens see; None for all.
    own_window: True if attention has it as an attribute. own_rotations: True if each kind of layer turns by its own
    table. skips: True if some layers do not turn. partial: True if only a head's first dimensions may turn. scale: by
    what number's root scores are divided. dropouts: modules without effect here.
    """

    folder: str
    prefix: str
    model: str = ""
    reading: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    gating: tuple[str, ...] = ("gate_proj", "up_proj")
    activation: str = "act_fn"
    gelu: bool = False
    before: tuple[str | None, str | None] = ("input_layernorm", "post_attention_layernorm")
    after: tuple[str | None, str | None] = (None, None)
    head_norms: tuple[str | None, str | None] = (None, None)
    epsilon: str = "variance_epsilon"
    offset: float = 0.0
    window: Callable[[PreTrainedConfig, int], int | None] = no_window
    own_window: bool = False
    own_rotations: bool = False
    skips: bool = False
    partial: bool = False
    scale: Callable[[PreTrainedConfig], float] = head_dim
    dropouts: tuple[str, ...] = ()

    def norm(self, module: nn.Module) -> PackedNorm:
        """Return the packed form of one of its norms."""
        return PackedNorm(module.weight, getattr(module, self.epsilon), self.offset)

    def tables(self, rotary: Any) -> list[tuple[Tensor, float]]:
        """Return the frequencies of each table of rotations, and what its cosines and sines are multiplied by."""
        return [
            (getattr(rotary, f"{prefix}{name}"), getattr(rotary, f"{prefix}attention_scaling"))
            for prefix, name in self._frequencies(rotary)
        ]

    def _frequencies(self, rotary: Any) -> list[tuple[str, str]]:
        """Return the prefix of each table's attributes, and the name of its frequencies. LongRoPE has others from a
        position on where c2t's texts end (see `positions_of`)."""
        types = rotary.rope_type if self.own_rotations else {"": rotary.rope_type}
        prefixes = [(f"{kind}_" if kind else "", types[kind]) for kind in sorted(types)]
        return [(prefix, "original_inv_freq" if kind == "longrope" else "inv_freq") for prefix, kind in prefixes]

    def parts(self, layer: Any) -> LayerParts:
        """Return what a layer is made of; its tables of rotations are those of `tables`."""
        attention, mlp = layer.self_attn, layer.mlp
        config, number = attention.config, attention.layer_idx
        gate, up = (weights for name in self.gating for weights in _linear(mlp, name, 3 - len(self.gating)))
        read_norm, norm, out_norm, down_norm = (_weight(layer, name) for name in (*self.before, *self.after))
        query_norm, key_norm = (_weight(attention, name) for name in self.head_norms)
        return LayerParts(
            reading=tuple(weights for name in self.reading for weights in _linear(attention, name)),
            out=_linear(attention, "o_proj")[0],
            gate=gate,
            up=up,
            down=_linear(mlp, "down_proj")[0],
            read_norm=read_norm,
            norm=norm,
            out_norm=out_norm,
            down_norm=down_norm,
            query_norm=query_norm,
            key_norm=key_norm,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            dim=head_dim(config),
            epsilon=config.rms_norm_eps,
            scale=attention.scaling,
            offset=self.offset,
            window=self.window(config, number) or 0,
            table=self._table(config, number),
            gelu=self.gelu,
        )

    def _table(self, config: PreTrainedConfig, number: int) -> int:
        if self.skips and not config.no_rope_layers[number]:
            return -1
        return sorted(set(config.layer_types)).index(config.layer_types[number]) if self.own_rotations else 0


def _linear(module: Any, name: str, parts: int = 1) -> list[Weights]:
    """Return a linear layer's weights and bias, cut into `parts` of its outputs."""
    linear = getattr(module, name)
    biases = [None] * parts if linear.bias is None else linear.bias.chunk(parts)
    return list(map(Weights, linear.weight.chunk(parts), biases))


def _weight(module: Any, name: str | None) -> Tensor | None:
    """Return a norm's weights, None where there is no norm, or one that does nothing (`nn.Identity`)."""
    return None if name is None else getattr(getattr(module, name), "weight", None)


_AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")
_HEAD_NORMS = ("q_norm", "k_norm")
_SLIDING = {"window": _of_sliding_layers, "own_window": True}
_OLMO = {"before": (None, None), "after": _AFTER, "head_norms": _HEAD_NORMS}
FAMILIES = {  # by model_type
    "llama": Family("llama", "Llama"),
    "mistral": Family("mistral", "Mistral", window=_of_every_layer),
    "qwen2": Family("qwen2", "Qwen2", **_SLIDING),
    "qwen3": Family("qwen3", "Qwen3", head_norms=_HEAD_NORMS, **_SLIDING),
    "gemma3_text": Family(
        *("gemma3", "Gemma3", "Gemma3TextModel"),
        gelu=True,
        before=("input_layernorm", "pre_feedforward_layernorm"),
        after=_AFTER,
        head_norms=_HEAD_NORMS,
        epsilon="eps",
        offset=1.0,
        own_rotations=True,
        scale=lambda config: config.query_pre_attn_scalar,
        **_SLIDING,
    ),
    "phi3": Family(
        *("phi3", "Phi3"),
        reading=("qkv_proj",),
        gating=("gate_up_proj",),
        activation="activation_fn",
        window=_of_every_layer,
        partial=True,
        dropouts=("resid_attn_dropout", "resid_mlp_dropout"),
    ),
    "smollm3": Family("smollm3", "SmolLM3", skips=True, **_SLIDING),
    "olmo2": Family("olmo2", "Olmo2", **_OLMO),
    "olmo3": Family("olmo3", "Olmo3", own_rotations=True, **_OLMO, **_SLIDING),
}
