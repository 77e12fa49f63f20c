"""EAGLE heads as upstream publishes and computes them, written down again without the library: files by the table
of their tensors, and the forward in plain torch."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu

from tests.toys import VOCABULARY

# As of a published head, in the size of the toy target; absent keys are absent on purpose.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256,
    "vocab_size": VOCABULARY,
    "torch_dtype": "float16",
}


def head_state(config: dict, seed: int = 1, spread: float = 0.3) -> dict[str, Tensor]:
    """Random tensors of every name that upstream's file has, in float32 as published; embed_tokens left out."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    keys = hidden // heads * config.get("num_key_value_heads", heads)

    def tensor(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * spread

    state = {"fc.weight": tensor(hidden, 2 * hidden)}
    if config.get("bias", True):
        state["fc.bias"] = tensor(hidden)
    for layer in range(config.get("num_hidden_layers", 1)):
        prefix = f"layers.{layer}."
        for name, rows, columns in (
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", keys, hidden),
            ("self_attn.v_proj", keys, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            state[f"{prefix}{name}.weight"] = tensor(rows, columns)
            if config.get("qkv_bias") and name.split(".")[1] in ("q_proj", "k_proj", "v_proj"):
                state[f"{prefix}{name}.bias"] = tensor(rows)
        if layer:
            state[prefix + "input_layernorm.weight"] = 1 + tensor(hidden)
        state[prefix + "post_attention_layernorm.weight"] = 1 + tensor(hidden)
    return state


def write_head(folder: Path, config: dict, state: dict[str, Tensor], pickled: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(state, folder / "pytorch_model.bin")
    else:
        save_file(state, folder / "model.safetensors")
    return folder


def head_forward(config: dict, state: dict[str, Tensor], embedding: Tensor, features: Tensor, tokens: Tensor) -> Tensor:
    """y for one sequence: features (n, H) and the tokens after them (n), at positions 0..n-1. One layer."""
    weight = {name.removeprefix("layers.0."): tensor.double() for name, tensor in state.items()}
    u = linear(weight, "fc", torch.cat([embedding[tokens].double(), features.double()], -1))
    a = u + attention(config, weight, u)
    return a + mlp(weight, norm(config, weight, "post_attention_layernorm", a))


def eagle3_state(config: dict, target_width: int, seed: int = 2, spread: float = 0.3) -> dict[str, Tensor]:
    """An EAGLE-3 file: reduced vocabulary, its own LM head, attention over token and state side by side."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner, reduced = config["hidden_size"], config["intermediate_size"], config["draft_vocab_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {
        "fc": (hidden, 3 * target_width),
        "midlayer.self_attn.q_proj": (hidden, 2 * hidden),
        "midlayer.self_attn.k_proj": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, hidden),
        "midlayer.mlp.gate_proj": (inner, hidden),
        "midlayer.mlp.up_proj": (inner, hidden),
        "midlayer.mlp.down_proj": (hidden, inner),
        "lm_head": (reduced, hidden),
    }
    state = {f"{name}.weight": torch.randn(shape, generator=generator) * spread for name, shape in shapes.items()}
    for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        state[f"midlayer.{name}.weight"] = 1 + torch.randn(hidden, generator=generator) * spread
    state["norm.weight"] = 1 + torch.randn(hidden, generator=generator) * spread
    kept = torch.randperm(config["vocab_size"], generator=generator)[:reduced].sort().values
    state["d2t"] = kept - torch.arange(reduced)
    state["t2d"] = torch.zeros(config["vocab_size"], dtype=torch.bool).index_fill(0, kept, True)
    return state


def eagle3_forward(
    config: dict, state: dict[str, Tensor], embedding: Tensor, features: Tensor, tokens: Tensor
) -> tuple[Tensor, Tensor]:
    """y and the logits over the draft's vocabulary; features (n, 3 H) are three of the target's hidden states."""
    weight = {name.removeprefix("midlayer."): tensor.double() for name, tensor in state.items()}
    g = linear(weight, "fc", features.double())
    token = norm(config, weight, "input_layernorm", embedding[tokens].double())
    a = g + attention(config, weight, torch.cat([token, norm(config, weight, "hidden_norm", g)], -1))
    y = a + mlp(weight, norm(config, weight, "post_attention_layernorm", a))
    return y, linear(weight, "lm_head", norm(config, weight, "norm", y))


def linear(weight: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ weight[f"{name}.weight"].T + weight.get(f"{name}.bias", 0)


def norm(config: dict, weight: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + config.get("rms_norm_eps", 1e-6)).rsqrt() * weight[f"{name}.weight"]


def mlp(weight: dict[str, Tensor], x: Tensor) -> Tensor:
    gate, up = linear(weight, "mlp.gate_proj", x), linear(weight, "mlp.up_proj", x)
    return linear(weight, "mlp.down_proj", silu(gate) * up)


def attention(config: dict, weight: dict[str, Tensor], x: Tensor) -> Tensor:
    """Causal, at positions 0..n-1."""
    heads = config["num_attention_heads"]
    groups = heads // config.get("num_key_value_heads", heads)
    size, length = config["hidden_size"] // heads, len(x)
    frequency = 1 / config.get("rope_theta", 10000.0) ** (torch.arange(0, size, 2) / size)  # in float32, as upstream
    angle = torch.arange(length, dtype=torch.float64)[:, None] * torch.cat([frequency, frequency]).double()

    def split(name: str) -> Tensor:
        return linear(weight, f"self_attn.{name}", x).view(length, -1, size).transpose(0, 1)

    def rotate(x: Tensor) -> Tensor:
        return x * angle.cos() + torch.cat([-x[..., size // 2 :], x[..., : size // 2]], -1) * angle.sin()

    q, k = rotate(split("q_proj")), rotate(split("k_proj")).repeat_interleave(groups, 0)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(1, 2) / size**0.5).masked_fill(future, float("-inf"))
    mixed = scores.softmax(-1) @ split("v_proj").repeat_interleave(groups, 0)
    return linear(weight, "self_attn.o_proj", mixed.transpose(0, 1).reshape(length, -1))
