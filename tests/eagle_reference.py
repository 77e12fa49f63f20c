"""EAGLE heads as upstream publishes and computes them, written down again without the library: files by the table
of their tensors, and the forward in plain torch."""

import json
from collections.abc import Callable
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


def layer_state(tensor: Callable[..., Tensor], config: dict, read: int, biased: str = "") -> dict[str, Tensor]:
    """Random weights of a Llama layer whose attention reads vectors of this width, but for its norms. biased: letters
    of the projections with a bias."""
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    size = config.get("head_dim", hidden // heads)
    query, key = heads * size, config.get("num_key_value_heads", heads) * size
    shapes = {
        "self_attn.q_proj": (query, read),
        "self_attn.k_proj": (key, read),
        "self_attn.v_proj": (key, read),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    state = {f"{name}.weight": tensor(*shape) for name, shape in shapes.items()}
    return state | {f"self_attn.{part}_proj.bias": tensor(shapes[f"self_attn.{part}_proj"][0]) for part in biased}


def random_tensors(seed: int, spread: float) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator) * spread


def head_state(config: dict, seed: int = 1, spread: float = 0.3) -> dict[str, Tensor]:
    """Random tensors of every name that upstream's file has, in float32 as published; embed_tokens left out."""
    tensor, hidden = random_tensors(seed, spread), config["hidden_size"]
    state = {"fc.weight": tensor(hidden, 2 * hidden)}
    if config.get("bias", True):
        state["fc.bias"] = tensor(hidden)
    for layer in range(config.get("num_hidden_layers", 1)):
        own = layer_state(tensor, config, hidden, "qkv" if config.get("qkv_bias") else "")
        for name in ("input_layernorm", "post_attention_layernorm")[not layer :]:  # the first layer has no input norm
            own[f"{name}.weight"] = 1 + tensor(hidden)
        state |= {f"layers.{layer}.{name}": weight for name, weight in own.items()}
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


def linear(weight: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ weight[f"{name}.weight"].T + weight.get(f"{name}.bias", 0)


def norm(config: dict, weight: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + config.get("rms_norm_eps", 1e-6)).rsqrt() * weight[f"{name}.weight"]


def mlp(weight: dict[str, Tensor], x: Tensor) -> Tensor:
    gate, up = linear(weight, "mlp.gate_proj", x), linear(weight, "mlp.up_proj", x)
    return linear(weight, "mlp.down_proj", silu(gate) * up)


def attention(
    config: dict,
    weight: dict[str, Tensor],
    x: Tensor,
    angle: Tensor | None = None,
    scale: float = 1.0,
    window: int = 0,
) -> Tensor:
    """Causal, at positions 0..n-1. angle: of the rotation (n, head_dim), if not the default one; scale: of what is
    rotated; window: positions that a token sees, its own included, 0 for all."""
    heads = config["num_attention_heads"]
    groups = heads // config.get("num_key_value_heads", heads)
    size, length = config.get("head_dim", config["hidden_size"] // heads), len(x)
    if angle is None:
        frequency = 1 / config.get("rope_theta", 10000.0) ** (
            torch.arange(0, size, 2) / size
        )  # in float32, as upstream
        angle = torch.arange(length, dtype=torch.float64)[:, None] * torch.cat([frequency, frequency]).double()

    def split(part: str) -> Tensor:
        y = linear(weight, f"self_attn.{part}_proj", x).view(length, -1, size)
        normed = f"self_attn.{part}_norm.weight" in weight
        return (norm(config, weight, f"self_attn.{part}_norm", y) if normed else y).transpose(0, 1)

    def rotate(x: Tensor) -> Tensor:
        half = torch.cat([-x[..., size // 2 :], x[..., : size // 2]], -1)
        return (x * angle.cos() + half * angle.sin()) * scale

    q, k = rotate(split("q")), rotate(split("k")).repeat_interleave(groups, 0)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    past = torch.ones_like(future).tril(-window) if window else torch.zeros_like(future)
    scores = (q @ k.transpose(1, 2) / size**0.5).masked_fill(future | past, float("-inf"))
    mixed = scores.softmax(-1) @ split("v").repeat_interleave(groups, 0)
    return linear(weight, "self_attn.o_proj", mixed.transpose(0, 1).reshape(length, -1))
